"""The section `break_even` as the report's map and table need it; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvrelay.bench.audit.report.names import clean
from kvrelay.bench.audit.report.numbers import NOT_MEASURED, tokens
from kvrelay.bench.audit.report.reading import Row, estimate, number, rows, words


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where relay breaks even, and between which lengths that may be.

    Attributes:
        at: tokens; None where the estimate has no one length.
        low: 0 where nothing bounds it from below.
        high: infinite where nothing bounds it from above.
    """

    ratio: float
    at: float | None
    low: float
    high: float


def link_crossings(section: Row, load: str) -> list[Crossing]:
    """The break-even of each link as measured, where there is a band around it."""
    return [
        Crossing(ratio, at, low, high)
        for row in rows(section, "curve")
        if row.get("link") is not None and words(row, "load") == load
        if (ratio := _ratio_of(section, row)) is not None
        and (at := number(row, "tokens_at_break_even")) is not None
        and is_banded(section, row)
        and (low := _bound(row, "low", 0.0)) <= (high := _bound(row, "high", math.inf))
    ]


def law_crossings(section: Row, load: str) -> list[Crossing]:
    """The law's break-even along ratios, from the lowest."""
    found = []
    for row in rows(section, "curve"):
        ratio = number(row, "ratio")
        if ratio is None or ratio <= 0 or words(row, "load") != load:
            continue
        low, high = _bound(row, "low", math.inf), _bound(row, "high", math.inf)
        found.append(Crossing(ratio, number(row, "tokens_at_break_even"), low, high))
    return sorted(found, key=lambda each: each.ratio)


def is_banded(section: Row, curve: Row) -> bool:
    """Whether every point of a curve of one link has an interval; else its crossing has none."""
    here = [
        estimate(row) is not None
        for row in rows(section, "points")
        if words(row, "link") == words(curve, "link") and words(row, "load") == words(curve, "load")
    ]
    return bool(here) and all(here)


def crossing_words(section: Row, row: Row) -> str:
    """A curve's break-even in words; those of the analysis where it has some."""
    if row.get("link") is not None and not is_banded(section, row):
        return NOT_MEASURED
    said = clean(words(row, "words"))
    if said:
        return said
    at, low, high = (number(row, name) for name in ("tokens_at_break_even", "low", "high"))
    bounds = f"[{_length(low, 'no lower bound')}, {_length(high, 'no upper bound')}]"
    if at is None:
        is_known = "tokens_at_break_even" in row and (low is not None or high is not None)
        return f"no one length {bounds}" if is_known else NOT_MEASURED
    return f"{tokens(at)} {bounds}"


def _ratio_of(section: Row, curve: Row) -> float | None:
    """A curve's own ratio; else the mean of its points'."""
    own = number(curve, "wire_over_prefill")
    if own is None:
        found = [
            ratio
            for row in rows(section, "points")
            if words(row, "link") == words(curve, "link")
            and words(row, "load") == words(curve, "load")
            and (ratio := number(row, "wire_over_prefill")) is not None
        ]
        own = sum(found) / len(found) if found else None
    return own if own is not None and own > 0 else None


def _bound(row: Row, name: str, without: float) -> float:
    value = number(row, name)
    return without if value is None else value


def _length(value: float | None, without: str) -> str:
    return without if value is None else f"{value:,.0f}"
