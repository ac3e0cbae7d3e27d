"""The law that an audit's effects are summed up by, and where it says that relay begins to pay.

    effect = fixed + wire_factor * W - saved_factor * S      seconds; below 0 relay pays

W are the seconds for which KV is on its way, S those of prefill that it saves. Divided by S, and
with w and p for the seconds of one token, it is a law without units, in which engines and links of
any speed have their place:

    effect / S = (fixed / p) / m  +  wire_factor * (w / p)  -  saved_factor

m tokens come over, w/p is *wire over prefill*, fixed/p the *fixed cost in tokens*. Where p does not
depend on m, relay pays from m = (fixed / p) / (saved_factor - wire_factor * w / p) on, and never
where w/p is above saved_factor / wire_factor. With prefill a*m + b*m^2 the break-even is a root of
a quadratic, and a link that is too slow for short prompts may do for long ones.

The three coefficients are fitted by least squares to cells in the form without units: cells count
the same, whether they take milliseconds or seconds. What the law leaves (`misfit`, noise and
wrong form alike) is added to whatever is predicted by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Range = tuple[float, float]

MIN_CELLS = 5
# Columns of the fit, each of length one: how far apart they have to point.
_APART = 0.03


class Mean(NamedTuple):
    """Means of one cell, as the law sees it.

    Attributes:
        tokens: that came over.
        effect_s, wire_s, saved_s: see `Pair`.
    """

    tokens: float
    effect_s: float
    wire_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Law:
    """The fitted law, and the range of what it was fitted to.

    Attributes:
        fixed_s: seconds that a relay takes besides, less those that recomputing does.
        wire_factor: seconds of effect per second on the wire; 1 if nothing overlaps.
        saved_factor: seconds of effect per second of prefill saved; 1 if it is all gained.
        covariance: [3][3] of these, in this order.
        misfit: standard deviation of what is left, as a share of the prefill saved.
        num_cells: of the fit.
        tokens: that came over, shortest and longest cell.
        wire_over_prefill: w/p, lowest and highest cell.
        prefill_s_per_token: p, lowest and highest cell.
        typical_prefill_s_per_token: the median cell's.
    """

    fixed_s: float
    wire_factor: float
    saved_factor: float
    covariance: tuple[tuple[float, ...], ...]
    misfit: float
    num_cells: int
    tokens: Range
    wire_over_prefill: Range
    prefill_s_per_token: Range
    typical_prefill_s_per_token: float

    @property
    def fixed_cost_tokens(self) -> float:
        """The fixed seconds as tokens of prefill, in a typical cell."""
        return self.fixed_s / self.typical_prefill_s_per_token

    def effect_s(self, wire_s: float, saved_s: float) -> float:
        """Seconds that a relay takes longer than recomputing."""
        return self.fixed_s + self.wire_factor * wire_s - self.saved_factor * saved_s

    def drawn(self, draws: int, seed: int) -> Floats:
        """Coefficients as they may as well be, [draws, 3], the misfit included."""
        rng = np.random.default_rng(seed)
        mean = (self.fixed_s, self.wire_factor, self.saved_factor)
        found = rng.multivariate_normal(mean, np.array(self.covariance), draws, method="eigh")
        found[:, 2] += self.misfit * rng.standard_normal(draws)
        return np.asarray(found, np.float64)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "fixed_cost_s": self.fixed_s,
            "wire_factor": self.wire_factor,
            "saved_factor": self.saved_factor,
            "covariance": [list(row) for row in self.covariance],
            "misfit": self.misfit,
            "cells": self.num_cells,
            "range": {
                "tokens": list(self.tokens),
                "wire_over_prefill": list(self.wire_over_prefill),
                "prefill_s_per_token": list(self.prefill_s_per_token),
            },
            "typical_prefill_s_per_token": self.typical_prefill_s_per_token,
        }

    @classmethod
    def of_dict(cls, row: Mapping[str, Any]) -> Law:
        """The law that `to_dict` has written.

        Raises:
            ValueError: a field is missing or is not what it should be.
        """
        try:
            ranges = row["range"]
            covariance = np.array(row["covariance"], np.float64)
            law = cls(
                float(row["fixed_cost_s"]),
                float(row["wire_factor"]),
                float(row["saved_factor"]),
                tuple(tuple(map(float, each)) for each in covariance),
                float(row["misfit"]),
                int(row["cells"]),
                _range(ranges["tokens"]),
                _range(ranges["wire_over_prefill"]),
                _range(ranges["prefill_s_per_token"]),
                float(row["typical_prefill_s_per_token"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no law: {error!r}") from None
        numbers = (law.fixed_s, law.wire_factor, law.saved_factor, law.misfit)
        if covariance.shape != (3, 3) or not np.isfinite((*numbers, *covariance.flat)).all():
            raise ValueError("no law: its coefficients are not finite numbers")
        if not law.typical_prefill_s_per_token > 0:
            raise ValueError("no law: typical_prefill_s_per_token is not positive")
        return law


def _range(values: Sequence[float]) -> Range:
    low, high = values
    return float(low), float(high)


def fit_law(cells: Sequence[Mean]) -> Law:
    """The law of least squares.

    Args:
        cells: those without relayed tokens or measured seconds, or in which nothing was saved, are
            left out: they have no place on the map.

    Raises:
        ValueError: what is left cannot tell the three coefficients apart; says why.
    """
    kept = [
        cell
        for cell in cells
        if all(map(math.isfinite, cell))
        and cell.tokens > 0
        and cell.saved_s > 0
        and cell.wire_s >= 0
    ]
    if len(kept) < MIN_CELLS:
        raise ValueError(
            f"{len(kept)} cells with relayed tokens, wire seconds and prefill seconds; a law needs "
            f"{MIN_CELLS} or more"
        )
    tokens, effect_s, wire_s, saved_s = (np.array(column) for column in zip(*kept, strict=True))
    ratio, prefill = wire_s / saved_s, saved_s / tokens
    design = np.column_stack([1 / saved_s, ratio, -np.ones(len(kept))])
    scale = np.sqrt((design**2).sum(axis=0))
    if not scale.all() or np.linalg.svd(design / scale, compute_uv=False)[-1] < _APART:
        raise ValueError(
            "the cells differ too little in length or in link to tell fixed cost, wire and prefill "
            "apart"
        )
    target = effect_s / saved_s
    coefficients = np.linalg.lstsq(design / scale, target, rcond=None)[0] / scale
    left = target - design @ coefficients
    variance = float(left @ left) / (len(kept) - 3)
    covariance = variance * np.linalg.inv(design.T @ design)
    fixed_s, wire_factor, saved_factor = (float(each) for each in coefficients)
    return Law(
        fixed_s,
        wire_factor,
        saved_factor,
        tuple(tuple(float(each) for each in row) for row in covariance),
        math.sqrt(variance),
        len(kept),
        (float(tokens.min()), float(tokens.max())),
        (float(ratio.min()), float(ratio.max())),
        (float(prefill.min()), float(prefill.max())),
        float(np.median(prefill)),
    )


def tokens_from(fixed_s: Floats, gain_s: Floats, growth_s: Floats) -> Floats:
    """From how many tokens on gain*m + growth*m^2 exceeds fixed, for good.

    0 where it does at any length, infinity where it never does, or not for good.

    Args:
        fixed_s: seconds.
        gain_s: seconds per token.
        growth_s: seconds per token, squared.
    """
    fixed, gain, growth = np.broadcast_arrays(
        *(np.asarray(each, np.float64) for each in (fixed_s, gain_s, growth_s))
    )
    with np.errstate(all="ignore"):
        root = np.sqrt(gain**2 + 4 * growth * fixed)  # NaN: the two are never equal
        # Two forms of one root, each without the difference of two nearly equal numbers.
        found = np.where(gain >= 0, 2 * fixed / (gain + root), (root - gain) / (2 * growth))
        wins = (growth > 0) | ((growth == 0) & (gain > 0))
        wins_at_once = (growth == 0) & (gain == 0) & (fixed < 0)
    at_any = wins_at_once | (wins & (np.isnan(found) | (found <= 0)))
    return np.where(at_any, 0.0, np.where(wins, found, math.inf))
