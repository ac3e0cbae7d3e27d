"""Pictures over an axis: the effect by length and link, and both arms by how many relay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvrelay.bench.audit.report.blocks import Figure
from kvrelay.bench.audit.report.names import link_words, outcome_words, stratum_words
from kvrelay.bench.audit.report.numbers import measured, percent, tokens
from kvrelay.bench.audit.report.plot import (
    BOLD,
    FAINT,
    GREY,
    INK,
    NARROW,
    SERIES,
    WIDE,
    figure,
    frame,
    inner_range,
    label,
    legend,
    series_mark,
    tick_words,
    upright,
    width_of,
    wrapped,
)
from kvrelay.bench.audit.report.reading import (
    Analysis,
    Estimate,
    Stratum,
    link_order,
    number,
    part,
    primary_outcome,
    relative,
    rows,
    verdict_rows,
    words,
)
from kvrelay.bench.audit.report.tables import mean_of
from kvrelay.cluster.scales import LinearScale, LogScale
from kvrelay.cluster.svg import line

_LEFT, _EDGE, _HEIGHT, _GAP, _STEP = 46, 12, 180, 26, 276
_LINE = 15
_DODGE = 11.0


@dataclass(frozen=True, slots=True)
class Point:
    """A value over a place on the axis, and what a pointer resting on it shows."""

    x: float
    y: Estimate
    hint: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One small picture: points by the number of their series."""

    title: str
    points: Mapping[int, Sequence[Point]]


def by_length(analysis: Analysis) -> Figure | None:
    """The effect by length, a line for each link, a panel for each of the other conditions."""
    outcome = primary_outcome(analysis)
    known = [
        (stratum, value)
        for stratum, row in verdict_rows(analysis, "relay")
        if stratum.tokens and (value := relative(part(row, "latency"))) is not None
    ]
    if not known:
        return None
    links = sorted({stratum.link for stratum, _ in known}, key=link_order)
    others: dict[tuple[str, str, str], list[tuple[Stratum, Estimate]]] = {}
    for stratum, value in sorted(known, key=lambda pair: pair[0].order[1:]):
        others.setdefault(stratum.but_tokens[1:], []).append((stratum, value))
    panels = [
        Panel(
            stratum_words(here[0][0], link=False, length=False),
            {
                number_: [_point(*pair) for pair in here if pair[0].link == link]
                for number_, link in enumerate(links)
            },
        )
        for here in others.values()
    ]
    title = f"{outcome_words(outcome)} with relay against recompute, by length and link"
    caption = (
        f"Across: tokens of the prompt. Up: change of {outcome_words(outcome)} in percent with its "
        "95 % interval; below zero is faster. Marks of one length stand beside each other."
    )
    names = [link_words(link) for link in links]
    axes = (f"change of {outcome_words(outcome)}, %", "prompt, tokens")
    return _grid_of("by-length", title, caption, panels=panels, names=names, axes=axes, is_log=True)


def saturation(analysis: Analysis) -> Figure | None:
    """Mean outcome of those that recompute and those that relay, by the share that may relay."""
    found: dict[tuple[str, str], dict[int, list[Point]]] = {}
    for row in rows(analysis, "saturation"):
        outcome, share = words(row, "outcome"), number(row, "share")
        if share is None or not outcome.endswith("_s") or outcome.endswith("per_s"):
            continue  # the axis is in seconds; the table has the rest
        points = found.setdefault((words(row, "stratum"), outcome), {0: [], 1: []})
        for series, side in enumerate(("control", "treated")):
            value = mean_of(row, side)
            if value is not None:
                hint = f"{100 * share:.0f} %: {measured(value, outcome, sign=False)}"
                points[series].append(Point(100 * share, value, hint))
    panels = [
        Panel(_panel_title(*place), points)
        for place, points in found.items()
        if any(points.values())
    ]
    if not panels:
        return None
    title = "What relay does to others: both arms by the share that may relay"
    caption = (
        "Across: share of requests that may relay. Up: mean seconds with their 95 % interval. If "
        "those that recompute move with the share, relay touches requests that do not relay."
    )
    names = ["requests that recompute", "requests that relay"]
    axes = ("mean, s", "share that may relay, %")
    return _grid_of(
        "saturation", title, caption, panels=panels, names=names, axes=axes, is_log=False
    )


def _panel_title(stratum: str, outcome: str) -> str:
    where = f": {stratum_words(Stratum.parse(stratum))}" if stratum else ""
    return outcome_words(outcome) + where


def _point(stratum: Stratum, value: Estimate) -> Point:
    length = stratum.tokens or 0
    hint = f"{link_words(stratum.link)}, {tokens(length)}: {percent(value)}"
    return Point(float(length), value.scaled(100.0), hint)


def _grid_of(
    key: str,
    title: str,
    caption: str,
    *,
    panels: Sequence[Panel],
    names: Sequence[str],
    axes: tuple[str, str],
    is_log: bool,
) -> Figure:
    wide, narrow = (_drawn(panels, names, axes, width, is_log=is_log) for width in (WIDE, NARROW))
    return figure(key, title, caption, (wide, narrow))


def _drawn(
    panels: Sequence[Panel],
    names: Sequence[str],
    axes: tuple[str, str],
    width: float,
    *,
    is_log: bool,
) -> tuple[float, list[str]]:
    """Height and parts of panels with the same axes: two a row at a desk, one on a phone."""
    across = 2 if width == WIDE and len(panels) > 1 else 1
    each = (width - _GAP * (across - 1)) / across
    entries = [(series_mark(0, 0, number_), name) for number_, name in enumerate(names)]
    parts, top = legend(entries, 10, 12, width)
    points = [point for panel in panels for found in panel.points.values() for point in found]
    span = inner_range([point.y for point in points])
    places = sorted({point.x for point in points})
    titles = [wrapped(panel.title, each, BOLD) for panel in panels]
    more = _LINE * (max(map(len, titles)) - 1)  # so that panels beside each other are level
    step = _STEP + more
    for place, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        left, y = (place % across) * (each + _GAP), top + step * (place // across)
        parts += [
            label(left, y + 12 + _LINE * row, said, weight=600) for row, said in enumerate(title)
        ]
        parts += _panel(panel, axes, (left, y + more, each), span, places, is_log=is_log)
    return top + step * math.ceil(len(panels) / across), parts


def _panel(
    panel: Panel,
    axes: tuple[str, str],
    place: tuple[float, float, float],
    span: tuple[float, float],
    places: Sequence[float],
    *,
    is_log: bool,
) -> list[str]:
    left, top, width = place
    start, end, ceiling, floor = left + _LEFT, left + width - _EDGE, top + 38, top + 38 + _HEIGHT
    y = frame(*span, floor, ceiling)
    x: LogScale | LinearScale
    if is_log:
        x = LogScale(places[0] / 1.35, places[-1] * 1.35, start, end)
    else:
        x = frame(min(places), max(places), start, end, pad=0.08)
    parts = [
        label(left, top + 29, axes[0], colour=GREY, size=11),
        label((start + end) / 2, floor + 34, axes[1], anchor="middle", colour=GREY, size=11),
    ]
    for tick in y.ticks(7):
        colour, stroke = (INK, 1.2) if tick == 0 else (FAINT, 1.0)
        parts.append(line(start, y.at(tick), end, y.at(tick), colour=colour, stroke=stroke))
        said = tick_words(tick) if span[0] < 0 else tick_words(tick).lstrip("+")
        parts.append(label(start - 6, y.at(tick) + 4, said, anchor="end", colour=GREY, size=11))
    parts += _ticks_below(x, places, floor)
    shown = [series for series in sorted(panel.points) if panel.points[series]]
    for place_, series in enumerate(shown):
        offset = (place_ - (len(shown) - 1) / 2) * _DODGE
        parts += _series(panel.points[series], series, x, y, offset)
    return parts


def _ticks_below(x: LogScale | LinearScale, places: Sequence[float], floor: float) -> list[str]:
    """A label at each place that was measured, as far as they do not touch."""
    parts = []
    last = -math.inf
    for place in places:
        at, said = x.at(place), f"{place:,.7g}"
        half = width_of(said, 11) / 2
        if at - half > last + 4:
            parts.append(label(at, floor + 16, said, anchor="middle", colour=GREY, size=11))
            last = at + half
    return parts


def _series(
    points: Sequence[Point],
    series: int,
    x: LogScale | LinearScale,
    y: LinearScale,
    offset: float,
) -> list[str]:
    colour = SERIES[series % len(SERIES)]
    ordered = sorted(points, key=lambda point: point.x)
    places = [(x.at(point.x) + offset, y.at(point.y.estimate)) for point in ordered]
    parts = []
    if len(places) > 1:
        path = " ".join(f"{across:g},{up:g}" for across, up in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4" '
            'stroke-opacity="0.55"/>'
        )
    for point, (across, up) in zip(ordered, places, strict=True):
        parts += upright(y, across, point.y, colour)
        parts.append(series_mark(across, up, series, point.hint))
    return parts
