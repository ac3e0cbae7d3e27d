"""What every estimator returns, and Student's interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Labels = NDArray[np.str_]

LEVEL = 0.95
ALPHA = 1.0 - LEVEL


@dataclass(frozen=True, slots=True)
class Estimate:
    """An effect with its 95 % interval.

    Attributes:
        estimate: arm minus control in the outcome's unit; negative seconds are faster.
        low, high: the interval; infinite where the data say nothing.
        p: two-sided, of no effect; None where there is no test.
        n: rows, pairs or blocks that it rests on.
        sessions: independent units among them.
        control_mean: the mean outcome without treatment.
        relative_error: standard error of estimate over control_mean, where it is known to be
            another than that of the estimate divided by the mean.
        degrees: of freedom of the interval, where it is Student's.
        note: what a reader has to know, in words.
    """

    estimate: float
    low: float
    high: float
    p: float | None
    n: int
    sessions: int
    control_mean: float = math.nan
    relative_error: float = math.nan
    degrees: float = math.nan
    note: str = ""

    def covers(self, truth: float) -> bool:
        """Whether the interval holds a value."""
        return self.low <= truth <= self.high

    def relative(self) -> tuple[float, float, float]:
        """The estimate as a share of the control's mean, and its interval.

        By the delta method where the estimator has given a standard error of the ratio; else the
        control's mean counts as known.
        """
        mean = self.control_mean
        if not mean > 0.0:
            return math.nan, math.nan, math.nan
        share = self.estimate / mean
        if not math.isnan(self.relative_error):
            reach = quantile_t(self.degrees) * self.relative_error
            return share, share - reach, share + reach
        return share, self.low / mean, self.high / mean

    def noted(self, words: str) -> Estimate:
        """With one more remark."""
        return replace(self, note="; ".join(filter(None, [self.note, words])))


def students(
    estimate: float,
    error: float,
    degrees: float,
    n: int,
    sessions: int,
    *,
    control_mean: float = math.nan,
    relative_error: float = math.nan,
) -> Estimate:
    """An estimate whose error over its standard error is Student's t."""
    from scipy import stats

    if not error > 0.0 or not degrees > 0.0:
        # All alike: no variance was seen, which is no evidence that there is none.
        return Estimate(estimate, -math.inf, math.inf, None, n, sessions, control_mean).noted(
            "no variation: no interval"
        )
    reach = quantile_t(degrees) * error
    p = float(2.0 * stats.t.sf(abs(estimate / error), degrees))
    low, high = estimate - reach, estimate + reach
    return Estimate(estimate, low, high, p, n, sessions, control_mean, relative_error, degrees)


def quantile_t(degrees: float, level: float = LEVEL) -> float:
    """The half width of a two-sided interval in standard errors."""
    from scipy.special import ndtri, stdtrit

    if math.isinf(degrees):
        return float(ndtri(0.5 + level / 2.0))
    return float(stdtrit(degrees, 0.5 + level / 2.0))


def count(clusters: Ints | None, n: int) -> int:
    """How many independent units there are."""
    return n if clusters is None else len(np.unique(clusters))
