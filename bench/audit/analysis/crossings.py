"""Where an effect, known at a few lengths, changes its sign, and where it may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Pays(StrEnum):
    """For which of the measured lengths an arm pays, by the estimates."""

    FROM = "from"
    UP_TO = "up_to"
    ALWAYS = "always"
    NEVER = "never"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The break-even of one curve.

    Attributes:
        pays: where, by the estimates.
        tokens: the one change of sign; None without one, and if there are several.
        low, high: no change of sign is below or above these, by the band; None where the band
            does not bound it within the measured lengths, and for both if there is no band or
            the sign is certain at every length.
        certain: whether the band leaves no doubt about where it pays but for `low` to `high`.
        words: all that for a reader.
    """

    pays: Pays
    tokens: float | None
    low: float | None
    high: float | None
    certain: bool
    words: str


def find_crossing(
    tokens: Sequence[float],
    effects: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
) -> Crossing:
    """The break-even of effects along lengths, straight lines between them; below 0 it pays.

    Args:
        tokens: lengths, ascending.
        effects: at each.
        lows, highs: a simultaneous band; NaN where there is none.

    Raises:
        ValueError: there is no length.
    """
    if not tokens:
        raise ValueError("a curve needs a length at least")
    changes = [
        start + (end - start) * before / (before - after)
        for (start, before), (end, after) in pairwise(zip(tokens, effects, strict=True))
        if (before < 0) != (after < 0)
    ]
    pays = _pays(effects, len(changes))
    found = changes[0] if len(changes) == 1 else None
    banded = all(map(math.isfinite, (*lows, *highs)))
    possible = _possible(tokens, lows, highs) if banded else []
    low = high = None
    if possible and possible[0] > tokens[0]:
        low = possible[0]
    if possible and possible[-1] < tokens[-1]:
        high = possible[-1]
    one_sign = pays in (Pays.ALWAYS, Pays.NEVER)
    bounded = low is not None and high is not None and not one_sign and pays is not Pays.MIXED
    certain = banded and (not possible or bounded)
    span = (tokens[0], tokens[-1])
    words = _words(pays, found, span, (low, high), banded=banded, certain=certain)
    return Crossing(pays, found, low, high, certain, words)


def _pays(effects: Sequence[float], changes: int) -> Pays:
    if changes > 1:
        return Pays.MIXED
    if changes == 1:
        return Pays.FROM if effects[-1] < 0 else Pays.UP_TO
    return Pays.ALWAYS if effects[0] < 0 else Pays.NEVER


def _possible(
    tokens: Sequence[float], lows: Sequence[float], highs: Sequence[float]
) -> list[float]:
    """Bounds, ascending, of the lengths at which zero is in the band; empty if nowhere.

    Between lengths the band is that of straight lines, which holds a true curve of straight lines
    wherever it holds it at the lengths.
    """
    if len(tokens) == 1:
        return list(tokens) if lows[0] <= 0 <= highs[0] else []
    found: list[float] = []
    points = zip(tokens, lows, highs, strict=True)
    for (start, low_a, high_a), (end, low_b, high_b) in pairwise(points):
        # As shares of the way: where the lower line is at most 0, and the upper one at least.
        first = _not_above(low_a, low_b)
        second = _not_above(-high_a, -high_b)
        if first is None or second is None:
            continue
        begin, stop = max(first[0], second[0]), min(first[1], second[1])
        if begin <= stop:
            found += [start + (end - start) * begin, start + (end - start) * stop]
    return sorted(found)


def _not_above(a: float, b: float) -> tuple[float, float] | None:
    """The part of [0, 1] where the line from a to b is at most 0."""
    if a > 0 and b > 0:
        return None
    if a <= 0 and b <= 0:
        return 0.0, 1.0
    zero = a / (a - b)
    return (0.0, zero) if a <= 0 else (zero, 1.0)


def _words(
    pays: Pays,
    tokens: float | None,
    measured: tuple[float, float],
    bounds: tuple[float | None, float | None],
    *,
    banded: bool,
    certain: bool,
) -> str:
    span = f"{measured[0]:,.0f} to {measured[1]:,.0f} tokens"
    if pays is Pays.ALWAYS:
        text = f"pays at every length measured ({span})"
    elif pays is Pays.NEVER:
        text = f"does not pay at any length measured ({span})"
    elif pays is Pays.MIXED:
        text = f"changes its sign more than once within {span}"
    elif pays is Pays.FROM:
        text = f"pays from {tokens:,.0f} tokens on"
    else:
        text = f"pays up to {tokens:,.0f} tokens"
    if not banded:
        return f"{text}; too few sessions for an interval"
    if certain and tokens is None:
        return f"{text}; certain at each"
    low = f"below {measured[0]:,.0f}" if bounds[0] is None else f"{bounds[0]:,.0f}"
    high = f"above {measured[1]:,.0f}" if bounds[1] is None else f"{bounds[1]:,.0f}"
    if tokens is None:
        return f"{text}, but the sign may change between {low} and {high}"
    return f"{text} [{low}, {high}]"
