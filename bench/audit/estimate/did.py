"""Relay enabled on one replica after another: difference in differences.

The effect is estimated from means per replica and period: each replica against itself before, and
against replicas that are not enabled yet or were before. With a handful of replicas, clustered
errors are far too small, so the inference is by the orders in which the replicas could have been
enabled: the order is drawn.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, students
from kvrelay.bench.audit.estimate.neyman import difference, nothing
from kvrelay.bench.audit.estimate.randomisation import infer

DRAWS = 1999
# With four replicas there are 24 orders: the fewest of which one in twenty can be told.
_FEW = 4


def panel(y: Floats, treated: Bools, unit: Ints, period: Ints) -> tuple[Floats, Floats] | None:
    """Mean outcome and treatment of each replica and period [units, periods].

    None if a cell has no rows: then what is a replica's own and what a period's cannot be told.
    """
    units, u = np.unique(unit, return_inverse=True)
    periods, t = np.unique(period, return_inverse=True)
    shape = (len(units), len(periods))
    cell = u * shape[1] + t
    sizes = np.bincount(cell, minlength=shape[0] * shape[1])
    if (sizes == 0).any():
        return None
    means = np.bincount(cell, y, len(sizes)) / sizes
    enabled = np.bincount(cell, treated, len(sizes)) * 2 > sizes
    return means.reshape(shape), enabled.astype(np.float64).reshape(shape)


def staggered(means: Floats, enabled: Floats, seed: int) -> Estimate:
    """The effect of being enabled, with effects of replicas and periods taken out.

    Taken to be the same for every replica and period since enabling; where it grows with time,
    comparing with replicas enabled before is biased (Goodman-Bacon, J. Econometrics 225, 2021).

    Args:
        means: of the outcome [units, periods].
        enabled: 0 or 1 [units, periods].
        seed: of the orders.

    With fewer than four replicas no order could be told from chance. Then those enabled at the same
    time are compared with those that never were, before and after, periods being independent.
    """
    n = means.size
    if len(means) < _FEW:
        return _before_and_after(means, enabled)
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(np.arange(len(means)), (DRAWS, 1)), axis=1)
    observed = _within(enabled[None])[0]
    strength = float((observed * enabled).sum())
    if strength <= 0.0:
        return nothing(n, "no replica was enabled while another was not")
    drawn = _within(enabled[orders])
    # The same replicas in another order have the same strength.
    effect, low, high, p = infer(
        means.reshape(-1),
        enabled.reshape(-1),
        observed.reshape(-1) / strength,
        drawn.reshape(DRAWS, -1) / strength,
    )
    before = means[enabled == 0.0]
    mean = float(before.mean()) if len(before) else math.nan
    return Estimate(effect, low, high, p, n, len(means), mean)


def _before_and_after(means: Floats, enabled: Floats) -> Estimate:
    """Difference between enabled and other replicas, after less before, over periods."""
    ever = enabled.any(axis=1)
    if ever.all() or not ever.any() or (enabled[ever] != enabled[ever][0]).any():
        return nothing(means.size, "fewer than four replicas, not enabled at one time")
    apart = means[ever].mean(axis=0) - means[~ever].mean(axis=0)
    after = enabled[ever][0] > 0.0
    found = difference(apart, after)
    words = "over periods, taken to be independent: too few replicas"
    level = float(means[ever][:, ~after].mean()) if (~after).any() else math.nan
    return replace(found, control_mean=level, relative_error=math.nan, note=words)


def trend_before(means: Floats, enabled: Floats) -> Estimate:
    """By how much replicas enabled early already moved apart from late ones, per period, before
    any was enabled: zero if they are comparable."""
    first = int(np.argmax(enabled.any(axis=0)))
    if first < 2:
        return nothing(means.size, "fewer than two periods before the first was enabled")
    since = enabled.sum(axis=1)
    steps = np.arange(first) - (first - 1) / 2.0
    slopes = means[:, :first] @ steps / float(steps @ steps)
    early = since - since.mean()
    spread = float(early @ early)
    if len(slopes) < 4 or not spread > 0.0:
        return nothing(means.size, "too few replicas to compare trends")
    slope = float(early @ slopes) / spread
    residual = slopes - slopes.mean() - slope * early
    error = math.sqrt(float(residual @ residual) / (len(slopes) - 2) / spread)
    return students(slope, error, len(slopes) - 2, means.size, len(slopes))


def _within(enabled: Floats) -> Floats:
    """Treatment less the means of replicas and periods [..., units, periods]."""
    return np.asarray(
        enabled
        - enabled.mean(axis=-1, keepdims=True)
        - enabled.mean(axis=-2, keepdims=True)
        + enabled.mean(axis=(-1, -2), keepdims=True)
    )
