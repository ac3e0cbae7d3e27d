"""Differences of means: between arms, and within pairs."""

from __future__ import annotations

import math

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, count, students
from kvrelay.bench.audit.estimate.regression import clustered_mean


def difference(y: Floats, treated: Bools) -> Estimate:
    """Mean of the treated minus mean of the others, whose requests were drawn one by one.

    The variance is s1^2/n1 + s0^2/n0, with Welch's degrees of freedom.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].

    Source: Neyman 1923 (Statist. Sci. 5, 1990); Welch, Biometrika 34, 1947.
    """
    one, zero = y[treated], y[~treated]
    if min(len(one), len(zero)) < 2:
        return nothing(len(y), "fewer than two rows in an arm")
    v1, v0 = float(one.var(ddof=1)) / len(one), float(zero.var(ddof=1)) / len(zero)
    degrees = welch([v1, v0], [len(one) - 1, len(zero) - 1])
    effect, mean = float(one.mean() - zero.mean()), float(zero.mean())
    relative_error = math.nan
    if mean > 0.0:
        # d(one/zero - 1) = d one / zero - one d zero / zero^2
        relative_error = math.sqrt(v1 + v0 * (float(one.mean()) / mean) ** 2) / mean
    error = math.sqrt(v1 + v0)
    return students(
        effect, error, degrees, len(y), len(y), control_mean=mean, relative_error=relative_error
    )


def within_pairs(treated: Floats, control: Floats, sessions: Ints | None = None) -> Estimate:
    """Mean difference within pairs: the same request under both arms, from the same cache state.

    What makes one request slower than another cancels. Where a session has several pairs they
    are not independent: then the error is clustered by session (CR2).

    Args:
        treated, control: outcomes of the pairs [n].
        sessions: the session of each pair [n].
    """
    differences = treated - control
    n = len(differences)
    if n < 2:
        return nothing(n, "fewer than two pairs")
    mean = float(control.mean())
    groups = sessions if count(sessions, n) < n else None
    error, degrees = clustered_mean(differences, groups)
    relative_error = math.nan
    if mean > 0.0:
        share = float(differences.mean()) / mean
        relative_error = clustered_mean(differences - share * control, groups)[0] / mean
    effect = float(differences.mean())
    return students(
        effect,
        error,
        degrees,
        n,
        count(groups, n),
        control_mean=mean,
        relative_error=relative_error,
    )


def welch(variances: list[float], degrees: list[float]) -> float:
    """Degrees of freedom of a sum of estimated variances (Satterthwaite's approximation)."""
    total = sum(variances)
    parts = sum(v * v / d for v, d in zip(variances, degrees, strict=True) if d > 0)
    return total * total / parts if parts > 0.0 else 0.0


def nothing(n: int, words: str) -> Estimate:
    """No estimate, and why."""
    return Estimate(math.nan, -math.inf, math.inf, None, n, n, note=words)


def mean_of(values: Floats) -> float:
    """The mean, or NaN of nothing, without numpy's warning."""
    return float(np.mean(values)) if len(values) else math.nan
