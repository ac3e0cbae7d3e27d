"""Numbers as people read them: with their interval, their unit, and no more digits than it bears.

The digits of an estimate follow the width of its interval. Signs are typographic, so that lines
do not break at them.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from kvrelay.bench.audit.report.reading import Estimate

NOT_MEASURED = "not measured"
_NARROW = "\u00a0"  # a space at which no line breaks
_MOST_DIGITS = 3
_SCIENTIFIC_FROM = 1e7


def signed(value: float, digits: int) -> str:
    """A number with its sign; zero has none."""
    return _sign(value, digits) + unsigned(abs(value), digits)


def unsigned(value: float, digits: int) -> str:
    """A number with thousands marked, or powers of ten where it is huge."""
    if abs(value) >= _SCIENTIFIC_FROM:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e").replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")


def interval(value: Estimate, unit: str, *, sign: bool = True) -> str:
    """ "−83 % [−85, −81]": estimate, unit, bounds in the same unit."""
    digits = digits_for(value)
    form = signed if sign else unsigned
    if 0 < max(abs(value.estimate), abs(value.low), abs(value.high)) < 10.0**-_MOST_DIGITS:
        form = _tiny
    bounds = f"[{form(value.low, digits)}, {form(value.high, digits)}]"
    space = _NARROW if unit else ""
    return f"{form(value.estimate, digits)}{space}{unit} {bounds}".replace(", ", f",{_NARROW}")


def percent(value: Estimate, *, sign: bool = True) -> str:
    """A fraction and its interval in percent."""
    return interval(value.scaled(100.0), "%", sign=sign)


def seconds(value: Estimate, *, sign: bool = True) -> str:
    """Seconds and their interval, in the unit that suits the largest of the three."""
    factor, unit = _unit(value, ((1.0, "s"), (1e3, "ms"), (1e6, "µs")))
    return interval(value.scaled(factor), unit, sign=sign)


def num_bytes(value: Estimate, *, sign: bool = True) -> str:
    """Bytes and their interval, in the unit that suits the largest of the three."""
    units = ((1e-9, "GB"), (1e-6, "MB"), (1e-3, "kB"), (1.0, "B"))
    factor, unit = _unit(value, units)
    return interval(value.scaled(factor), unit, sign=sign)


def measured(value: Estimate, outcome: str, *, sign: bool = True) -> str:
    """An outcome in its own unit, which its name tells."""
    if outcome.endswith("_s") and not outcome.endswith("per_s"):
        return seconds(value, sign=sign)
    if "bytes" in outcome:
        return num_bytes(value, sign=sign)
    unit = {"tokens_per_s": "tokens/s", "relayed_tokens": "tokens"}.get(outcome, "")
    return interval(value, unit, sign=sign)


def tokens(count: float) -> str:
    """ "2,048 tokens"."""
    return f"{unsigned(count, 0)}{_NARROW}tokens"


def between(low: str, high: str) -> str:
    """ "−40 % to −12 %"; just one of them if they read the same."""
    return low if low == high else f"{low} to {high}"


def p_value(value: float | None) -> str:
    """A p value; a tiny one as a bound, since its digits mean nothing."""
    if value is None:
        return NOT_MEASURED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def share(hits: float, n: float) -> Estimate | None:
    """A share of n trials with its 95 % interval; None where there is no trial.

    Args:
        hits: the share that was seen, from 0 to 1.
        n: trials.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if n < 1 or not 0 <= hits <= 1:
        return None
    z = NormalDist().inv_cdf(0.975)
    middle = (hits + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(hits * (1 - hits) / n + z * z / (4 * n * n))
    return Estimate(hits, min(max(0.0, middle - half), hits), max(min(1.0, middle + half), hits))


def widened(value: Estimate, comparisons: int) -> Estimate:
    """A 95 % interval made simultaneous over so many comparisons (Bonferroni, normal quantiles).

    Each side keeps its own width, so that an interval of a ratio stays lopsided.
    """
    normal = NormalDist()
    factor = normal.inv_cdf(1 - 0.025 / max(comparisons, 1)) / normal.inv_cdf(0.975)
    return Estimate(
        value.estimate,
        value.estimate - (value.estimate - value.low) * factor,
        value.estimate + (value.high - value.estimate) * factor,
    )


def digits_for(value: Estimate) -> int:
    """Digits after the point: a unit of the last is at most half of the interval's width."""
    width = value.high - value.low
    if width <= 0:
        width = abs(value.estimate) / 50 or 1.0
    if not math.isfinite(width):
        return 0
    return min(max(0, math.ceil(-math.log10(width / 2))), _MOST_DIGITS)


def _sign(value: float, digits: int) -> str:
    if round(value, digits) == 0:
        return ""
    return "+" if value > 0 else "−"


def _tiny(value: float, digits: int) -> str:
    """What fixed digits would round to nothing."""
    return f"{value:.1e}".replace("e-0", "e-").replace("-", "−") if value else "0"


def _unit(value: Estimate, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    largest = max(abs(value.estimate), abs(value.low), abs(value.high))
    for factor, unit in units:
        if largest * factor >= 1:
            return factor, unit
    return units[-1] if largest else units[0]
