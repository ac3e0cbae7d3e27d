"""The picture of `kvrelay calibrate`: for each engine its curves, and what it has observed.

Two panels an engine, what steps take by tokens and what loads take by bytes; both axes are
logarithmic, so equal distances are equal factors. Below each, by what the observed seconds
differed from those that had been predicted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrelay.cluster.calibration_rows import Row, formula, main_ways, name_of, way_text
from kvrelay.cluster.scales import LogScale
from kvrelay.cluster.svg import FAINT, GREY, INK, document, line, text

_WIDTH, _LEFT, _PANEL, _GAP = 1040, 76, 410, 114
_TOP, _HEAD, _CURVES, _STRIP, _FOOT = 84, 30, 240, 72, 56
_ENGINE = _HEAD + _CURVES + 14 + _STRIP + _FOOT
_COLOURS = ("#1f5fa8", "#b3261e", "#1a7f4b", "#8a5a00", "#6b3fa0", "#00707a")
_MOST_OFF = 4.0  # the strip's end; what was off by more lies there
_MB = 1e6
_CAPTION = (
    "Lines: what is expected now, and the band that 90 of 100 are expected in. Dots: what was "
    "observed; hollow ones had something before them (tokens that were there, loads under way), so "
    "they belong above the line. Below: observed over predicted seconds, as predicted at that time."
)
_CAPTION_CHARACTERS, _LINE = 150, 16


@dataclass(frozen=True)
class _Point:
    x: float
    seconds: float
    ratio: float
    is_alone: bool


@dataclass(frozen=True)
class _Curve:
    """One cost. `at` gives seconds, `factor` the quantiles that are around them."""

    name: str
    at: Callable[[float], float]
    factor: Row
    points: Sequence[_Point]


def draw(engines: Sequence[Row]) -> str:
    """An SVG of what these engines have learnt."""
    words = textwrap.wrap(_CAPTION, _CAPTION_CHARACTERS)
    bottom = _TOP + _ENGINE * len(engines)
    parts = [
        text(20, 30, "What engines have learnt about seconds", size=18, weight=600),
        text(20, 52, "lower is faster; dots near the line were predicted well", colour=GREY),
    ]
    for number, engine in enumerate(engines):
        parts += _engine(engine, _TOP + _ENGINE * number)
    parts += [
        text(20, bottom + 4 + _LINE * number, each, size=11, colour=GREY)
        for number, each in enumerate(words)
    ]
    return document(_WIDTH, bottom + 16 + _LINE * len(words), parts)


def _engine(engine: Row, top: float) -> list[str]:
    prefill = engine["prefill"]
    steps = _Curve(
        formula(prefill),
        lambda tokens: (
            prefill["fixed_s"]
            + prefill["per_token_s"] * tokens
            + prefill["per_token_squared_s"] * tokens**2
        ),
        prefill["factor"],
        [
            _point(point, point["tokens"], point["squares"] == point["tokens"] ** 2)
            for point in prefill["observed"]
        ],
    )
    loads = [_load(row) for row in main_ways(engine["loads"])[: len(_COLOURS)]]
    second = _LEFT + _PANEL + _GAP
    return [
        text(20, top, name_of(engine), size=14, weight=600),
        *_panel("seconds of a step, by tokens", [steps], (32, 2048), _LEFT, top + _HEAD),
        *_panel("seconds of a load, by MB", loads, (1, 100), second, top + _HEAD),
    ]


def _load(row: Row) -> _Curve:
    return _Curve(
        way_text(row),
        lambda mb: row["fixed_s"] + row["per_byte_s"] * mb * _MB,
        row["factor"],
        [
            _point(point, point["num_bytes"] / _MB, not point["bytes_ahead"])
            for point in row["observed"]
        ],
    )


def _point(point: Row, x: float, is_alone: bool) -> _Point:
    off = point["off"]
    return _Point(x, point["seconds"], 1.0 if off is None else 1.0 + off, is_alone)


def _panel(
    title: str, curves: Sequence[_Curve], usual: tuple[float, float], left: float, top: float
) -> list[str]:
    """Curves with their points above, ratios below; `usual`: x that is shown in any case."""
    right, bottom = left + _PANEL, top + _CURVES
    if not curves:
        x_middle, y_middle = left + _PANEL / 2, top + _CURVES / 2
        middle = text(x_middle, y_middle, "none yet", anchor="middle", colour=GREY)
        return [text(left, top - 8, title, colour=GREY), middle]
    xs = [point.x for curve in curves for point in curve.points if point.x > 0]
    x = LogScale(min([usual[0], *xs]), max([usual[1], *xs]), left, right)
    low, high = _seconds(curves, x)
    y = LogScale(low, high, bottom, top)
    strip = LogScale(1 / _MOST_OFF, _MOST_OFF, bottom + 14 + _STRIP, bottom + 14)
    parts = [text(left, top - 8, title, colour=GREY)]
    parts += _grid(x, y, strip)
    for number, (curve, colour) in enumerate(zip(curves, _COLOURS, strict=False)):
        parts += _curve(curve, colour, x, y)
        for point in curve.points:
            parts.append(_dot(x.at(point.x), y.at(point.seconds), colour, point.is_alone))
            parts.append(_dot(x.at(point.x), strip.at(point.ratio), colour, point.is_alone))
        parts.append(text(left + 10, top + 18 + 16 * number, curve.name, size=11, colour=colour))
    return parts


def _seconds(curves: Sequence[_Curve], x: LogScale) -> tuple[float, float]:
    """What the axis of seconds shows: all points, and the curves with their bands."""
    shown = [point.seconds for curve in curves for point in curve.points]
    for curve in curves:
        shown += [curve.at(x.low) * curve.factor["p5"], curve.at(x.high) * curve.factor["p95"]]
    some = [seconds for seconds in shown if seconds > 0] or [0.001]
    return min(some) / 1.3, max(some) * 1.3


def _grid(x: LogScale, y: LogScale, strip: LogScale) -> list[str]:
    parts = []
    for tick in x.ticks():
        at = x.at(tick)
        parts.append(line(at, y.end, at, y.start, colour=FAINT, stroke=1.0))
        parts.append(line(at, strip.end, at, strip.start, colour=FAINT, stroke=1.0))
        parts.append(text(at, strip.start + 18, f"{tick:,g}", anchor="middle", size=11))
    for tick in y.ticks():
        parts.append(line(x.start, y.at(tick), x.end, y.at(tick), colour=FAINT, stroke=1.0))
        parts.append(text(x.start - 8, y.at(tick) + 4, f"{tick:g} s", anchor="end", size=11))
    for ratio, label in ((_MOST_OFF, "4 x"), (1.0, "as predicted"), (1 / _MOST_OFF, "1/4")):
        at = strip.at(ratio)
        colour = INK if ratio == 1 else FAINT
        parts.append(line(x.start, at, x.end, at, colour=colour, stroke=1.0))
        parts.append(text(x.start - 8, at + 4, label, anchor="end", size=11))
    return parts


def _curve(curve: _Curve, colour: str, x: LogScale, y: LogScale) -> list[str]:
    values = [x.low * (x.high / x.low) ** (step / 40) for step in range(41)]

    def path(factor: float) -> list[str]:
        return [f"{x.at(value)},{y.at(max(curve.at(value) * factor, y.low))}" for value in values]

    factor = curve.factor
    band = " ".join([*path(factor["p5"]), *reversed(path(factor["p95"]))])
    middle = " ".join(path(factor["p50"]))
    return [
        f'<polygon points="{band}" fill="{colour}" fill-opacity="0.10"/>',
        f'<polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="2"/>',
    ]


def _dot(x: float, y: float, colour: str, is_full: bool) -> str:
    fill = colour if is_full else "#ffffff"
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{fill}" stroke="{colour}" fill-opacity="0.8"/>'
