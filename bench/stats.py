"""Pure statistics of the benchmarks: figures, paired ratios, intervals."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DIGITS = 6


def figure(values: Sequence[float]) -> dict[str, float | int]:
    """The form in which every measured figure is written.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("a figure needs at least one value")
    return {
        "min": round(min(values), _DIGITS),
        "median": round(statistics.median(values), _DIGITS),
        "max": round(max(values), _DIGITS),
        "n": len(values),
    }


def ratio_of_medians(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median over median; what a reader computes from two columns of the table."""
    return round(statistics.median(numerators) / statistics.median(denominators), 4)


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Ratio within each pair, so that what slows a whole pair cancels.

    Raises:
        ValueError: the sequences do not pair up.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} values cannot pair with {len(denominators)}")
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float | int]:
        """The form in which it is written."""
        return {
            "estimate": round(self.estimate, 5),
            "low": round(self.low, 5),
            "high": round(self.high, 5),
            "n": self.n,
        }


def ratio_interval(
    strata: Mapping[int, Sequence[float]], seed: int, num_draws: int = 4000
) -> Interval:
    """Geometric mean of paired ratios with a stratified bootstrap interval.

    The pairs are drawn anew within each stratum, the strata (restarts of the engines) stay:
    the interval is about the engines that ran. `interval_over_strata` is about others too. Every
    stratum counts the same, so that with rotated roles the place of an engine cancels.

    Args:
        strata: ratios of the pairs of each stratum.
        seed: of the draws.
        num_draws: bootstrap repetitions.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 8 and 13.

    Raises:
        ValueError: there is no stratum, an empty one, or a ratio that is not positive.
    """
    logs = [_logs(ratios) for ratios in strata.values()]
    if not logs or not all(logs):
        raise ValueError("an interval needs at least one ratio in every stratum")
    estimate = statistics.fmean(statistics.fmean(each) for each in logs)
    rng = random.Random(seed)
    draws = sorted(
        statistics.fmean(statistics.fmean(rng.choices(each, k=len(each))) for each in logs)
        for _ in range(num_draws)
    )
    low, high = draws[int(0.025 * num_draws)], draws[min(num_draws - 1, int(0.975 * num_draws))]
    total = sum(map(len, logs))
    return Interval(math.exp(estimate), math.exp(low), math.exp(high), total)


def interval_over_strata(strata: Mapping[int, Sequence[float]]) -> Interval | None:
    """The same estimate for strata (restarts of the engines) that have not been run.

    By Student's t on the logarithms of the strata's means. `n` counts strata.

    Args:
        strata: ratios of the pairs of each stratum.

    Returns:
        None below four strata, about which nothing can be said.

    Raises:
        ValueError: there is an empty one, or a ratio that is not positive.
    """
    means = [statistics.fmean(_logs(ratios)) for ratios in strata.values()]
    if len(means) < 4:
        return None
    estimate = statistics.fmean(means)
    half = t975(len(means) - 1) * statistics.stdev(means) / math.sqrt(len(means))
    low, high = math.exp(estimate - half), math.exp(estimate + half)
    return Interval(math.exp(estimate), low, high, len(means))


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios for which a/b and b/a count alike."""
    return math.exp(statistics.fmean(_logs(ratios)))


def _logs(ratios: Sequence[float]) -> list[float]:
    if any(ratio <= 0 for ratio in ratios):
        raise ValueError("a ratio of times is positive")
    return [math.log(ratio) for ratio in ratios]


def half_width(ratios: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the geometric mean of paired ratios, as a fraction.

    By Student's t on the logarithms, which for a few pairs is wider, and truer, than a bootstrap.
    Infinite below four pairs, about which nothing can be said.
    """
    logs = _logs(ratios)
    if len(logs) < 4:
        return math.inf
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.expm1(t975(len(logs) - 1) * error)


def t975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, within 1 % from three degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
