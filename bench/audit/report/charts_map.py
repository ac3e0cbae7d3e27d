"""The break-even map: length against wire over prefill, both without the units of one machine.

Where a point lies up and down says how dear the wire is beside the computation that it saves; what
it looks like says whether relay was faster there. Marks with level bars are the break-even of one
link with its simultaneous band, the shaded strip is that of the law fitted to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvrelay.bench.audit.report.blocks import Figure
from kvrelay.bench.audit.report.map_reading import Crossing, law_crossings, link_crossings
from kvrelay.bench.audit.report.names import clean, link_words
from kvrelay.bench.audit.report.numbers import seconds, tokens
from kvrelay.bench.audit.report.plot import (
    FAINT,
    GREY,
    INK,
    NARROW,
    PAPER,
    WIDE,
    figure,
    fitted,
    label,
    legend,
    mark,
    sign_tone,
    width_of,
)
from kvrelay.bench.audit.report.reading import Analysis, Row, estimate, number, part, rows, words
from kvrelay.cluster.scales import LogScale
from kvrelay.cluster.svg import line

_LEFT, _EDGE, _HEIGHT, _GAP = 52, 10, 300, 30
_MANY_LENGTHS = 7
_TONES = {"pays": "relay faster", "costs": "relay slower", "open": "undecided"}
_EQUAL = 1.0
_Span = tuple[float, float]


def break_even_map(analysis: Analysis) -> Figure | None:
    """The map, a panel for each load; None without a point that has a place and an interval."""
    found = part(analysis, "break_even")
    points = [row for row in rows(found, "points") if _is_placed(row)]
    if not points:
        return None
    loads = sorted({words(row, "load") for row in points}, key=lambda load: (load != "idle", load))
    title = "Where relay pays: prompt length and wire over prefill"
    caption = (
        "Across: tokens of the prompt. Up: seconds on the wire per token over seconds of prefill "
        "per token. A point's mark follows from its simultaneous 95 % interval (in the table "
        "below). Diamonds: a link's break-even with its interval; strip: the 95 % interval of the "
        "law fitted to all links, below and right of which relay pays. Arrows go on beyond what "
        "was measured."
    )
    return figure(
        "break-even",
        title,
        caption,
        (_drawn(found, points, loads, WIDE), _drawn(found, points, loads, NARROW)),
    )


def _drawn(
    section: Row, points: Sequence[Row], loads: Sequence[str], width: float
) -> tuple[float, list[str]]:
    across = 2 if width == WIDE and len(loads) > 1 else 1
    panel = (width - _GAP * (across - 1)) / across
    seen = {sign_tone(estimate(row)) for row in points}
    entries = [(mark(0, 0, tone), said) for tone, said in _TONES.items() if tone in seen]
    if any(link_crossings(section, load) for load in loads):
        entries.append((_diamond(0, 0), "break-even of a link"))
    if any(len(law_crossings(section, load)) > 1 for load in loads):
        strip = '<rect x="-7" y="-6" width="14" height="12" fill="var(--open-wash)"/>'
        entries.append((strip, "break-even, 95 %"))
    parts, top = legend(entries, 10, 12, width)
    spans = _span(points, "tokens", 1.5), _span(points, "wire_over_prefill", 2.0, _EQUAL)
    step = _HEIGHT + 98
    for place, load in enumerate(loads):
        left = (place % across) * (panel + _GAP)
        here = [row for row in points if words(row, "load") == load]
        parts += _panel(section, load, here, spans, (left, top + step * (place // across), panel))
    return top + step * math.ceil(len(loads) / across), parts


def _panel(
    section: Row,
    load: str,
    points: Sequence[Row],
    spans: tuple[_Span, _Span],
    place: tuple[float, float, float],
) -> list[str]:
    left, top, width = place
    start, end = left + _LEFT, left + width - _EDGE
    bottom = top + 40 + _HEIGHT
    x = LogScale(*spans[0], start, end)
    y = LogScale(*spans[1], bottom, top + 40)
    parts = [
        label(left, top + 12, fitted(clean(load) or "any load", width), weight=600),
        label(left, top + 30, "wire seconds ÷ prefill seconds, per token", colour=GREY, size=11),
    ]
    parts += _strip(law_crossings(section, load), x, y)
    parts += _grid(x, y, _lengths(points, x))
    for crossing in link_crossings(section, load):
        parts += _level(crossing, x, y)
    for row in points:
        value, length = estimate(row), number(row, "tokens")
        ratio = number(row, "wire_over_prefill")
        if value is None or length is None or ratio is None:
            continue
        hint = f"{link_words(words(row, 'link'))}, {tokens(length)}: {seconds(value)}"
        parts.append(mark(x.at(length), y.at(ratio), sign_tone(value), hint))
    parts += _link_names(points, y, (start + 4, top + 40, bottom))
    parts.append(
        label((start + end) / 2, bottom + 34, "prompt, tokens", anchor="middle", colour=GREY)
    )
    return parts


def _grid(x: LogScale, y: LogScale, lengths: Sequence[float]) -> list[str]:
    parts = []
    last = -math.inf
    for tick in lengths:
        at, said = x.at(tick), f"{tick:,.7g}"
        parts.append(line(at, y.end, at, y.start, colour=FAINT, stroke=1.0))
        half = width_of(said, 11) / 2
        if at - half > last + 4:
            parts.append(label(at, y.start + 16, said, anchor="middle", colour=GREY, size=11))
            last = at + half
    for tick in y.ticks():
        at = y.at(tick)
        is_equal = tick == _EQUAL
        colour = INK if is_equal else FAINT
        parts.append(line(x.start, at, x.end, at, colour=colour, stroke=1.2 if is_equal else 1.0))
        parts.append(label(x.start - 6, at + 4, f"{tick:,g}", anchor="end", colour=GREY, size=11))
    if y.low <= _EQUAL <= y.high:
        said = "wire as dear as prefill"
        parts.append(label(x.end, y.at(_EQUAL) - 5, said, anchor="end", colour=GREY, size=11))
    return parts


def _strip(crossings: Sequence[Crossing], x: LogScale, y: LogScale) -> list[str]:
    """The law's break-even: its interval as an area, its estimate as a line."""
    if len(crossings) < 2:
        return []
    near = [f"{x.at(max(each.low, x.low)):g},{y.at(each.ratio):g}" for each in crossings]
    far = [f"{x.at(max(each.high, x.low)):g},{y.at(each.ratio):g}" for each in crossings]
    middle = [
        f"{x.at(each.at):g},{y.at(each.ratio):g}"
        for each in crossings
        if each.at is not None and x.low <= each.at <= x.high
    ]
    area = " ".join([*near, *reversed(far)])
    parts = [f'<polygon points="{area}" fill="var(--open-wash)"/>']
    if len(middle) > 1:
        parts.append(
            f'<polyline points="{" ".join(middle)}" fill="none" stroke="var(--open)" '
            'stroke-width="2" stroke-dasharray="6 4"/>'
        )
    return parts


def _level(crossing: Crossing, x: LogScale, y: LogScale) -> list[str]:
    at = y.at(crossing.ratio)
    low, high = x.at(max(crossing.low, x.low)), x.at(min(crossing.high, x.high))
    parts = [line(low, at, high, at, colour=INK, stroke=2.5)]
    for edge, is_beyond, step in (
        (x.start, crossing.low < x.low, 6),
        (x.end, crossing.high > x.high, -6),
    ):
        if is_beyond:
            parts += [line(edge, at, edge + step, at + each, colour=INK, stroke=1.6)
                      for each in (-4, 4)]  # fmt: skip
    middle = x.at(crossing.at or x.low)
    said = f"break-even at {tokens(crossing.at or 0)}"
    return [*parts, _diamond(middle, at, said)]


def _diamond(x: float, y: float, hint: str = "") -> str:
    name = f"<title>{hint}</title>" if hint else ""
    points = f"{x:g},{y - 7:g} {x + 7:g},{y:g} {x:g},{y + 7:g} {x - 7:g},{y:g}"
    paint = f'fill="{PAPER}" stroke="{INK}" stroke-width="2"'
    return f'<polygon points="{points}" {paint}>{name}</polygon>'


def _link_names(points: Sequence[Row], y: LogScale, place: tuple[float, float, float]) -> list[str]:
    """The name of each link at the height of its points; those too near to another stay out."""
    left, top, bottom = place
    heights: dict[str, list[float]] = {}
    for row in points:
        ratio = number(row, "wire_over_prefill")
        if ratio is not None:
            heights.setdefault(words(row, "link"), []).append(y.at(ratio))
    parts: list[str] = []
    taken: list[float] = []
    for link, found in sorted(heights.items(), key=lambda pair: min(pair[1])):
        at = min(max(min(found) - 8, top + 10), bottom - 4)
        if all(abs(at - other) >= 14 for other in taken):
            taken.append(at)
            parts.append(label(left, at, fitted(link_words(link), 110, 11), size=11, weight=600))
    return parts


def _lengths(points: Sequence[Row], x: LogScale) -> list[float]:
    """The lengths that were measured, if they are few; else round numbers."""
    found = {length for row in points if (length := number(row, "tokens")) is not None}
    return sorted(found) if len(found) <= _MANY_LENGTHS else x.ticks()


def _span(points: Sequence[Row], name: str, room: float, *more: float) -> _Span:
    found = [value for row in points if (value := number(row, name)) is not None]
    found += more
    return min(found) / room, max(found) * room


def _is_placed(row: Row) -> bool:
    place = number(row, "tokens"), number(row, "wire_over_prefill")
    return estimate(row) is not None and all(each is not None and each > 0 for each in place)
