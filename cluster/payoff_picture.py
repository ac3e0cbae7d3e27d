"""The picture of `kvrelay payoff`: a line for each kind of request, its interval against zero."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kvrelay.cluster.payoff_rows import Row, saving_text, verdict_text
from kvrelay.cluster.scales import LinearScale
from kvrelay.cluster.svg import FAINT, GREY, INK, document, line, text

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 1040, 190, 640, 76, 32
_COLOURS = {"pays": "#1a7f4b", "does not pay": "#b3261e", "not known yet": "#8a8f98"}
_CAPTION_CHARACTERS, _LINE = 150, 16


def draw(rows: Sequence[Row], caption: str) -> str:
    """An SVG of estimates and intervals; bars that end at the frame go on beyond it."""
    x = LinearScale(*_range(rows), _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    lines = textwrap.wrap(caption, _CAPTION_CHARACTERS)
    height = bottom + 56 + _LINE * len(lines)

    parts = [
        text(20, 30, "What relay saves per request", size=18, weight=600),
        text(20, 52, "seconds to the first token; right of zero relay pays", colour=GREY),
    ]
    for tick in x.ticks():
        zero = tick == 0
        colour, stroke = (INK, 1.2) if zero else (FAINT, 1.0)
        parts.append(line(x.at(tick), _TOP - 6, x.at(tick), bottom, colour=colour, stroke=stroke))
        parts.append(text(x.at(tick), bottom + 18, f"{tick:+g}" if tick else "0", anchor="middle"))
    for number, row in enumerate(rows):
        parts += _row(row, _TOP + _ROW * number + _ROW / 2, x)
    parts += [
        text(20, bottom + 48 + _LINE * number, words, size=11, colour=GREY)
        for number, words in enumerate(lines)
    ]
    return document(_WIDTH, height, parts)


def _row(row: Row, y: float, x: LinearScale) -> list[str]:
    colour = _COLOURS[row["verdict"]]
    weight = 600 if row["stratum"] == "all" else 400
    parts = [text(_LEFT - 14, y + 4, row["stratum"], anchor="end", weight=weight)]
    words = f"{saving_text(row)}  {verdict_text(row)}"
    if row["lower_s"] is not None:
        lower, upper, middle = (x.at(row[name]) for name in ("lower_s", "upper_s", "saving_s"))
        parts.append(line(lower, y, upper, y, colour=colour, stroke=3.0))
        parts.append(f'<circle cx="{middle}" cy="{y}" r="5" fill="{colour}"/>')
    else:
        words = verdict_text(row)
    parts.append(text(_RIGHT + 20, y + 4, words, colour=colour, weight=weight))
    return parts


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    """What the frame shows: zero, all estimates, and the intervals that tell a sign."""
    points = [0.0]
    for row in rows:
        if row["lower_s"] is not None:
            points.append(row["saving_s"])
            if row["lower_s"] > 0 or row["upper_s"] < 0:
                points += [row["lower_s"], row["upper_s"]]
    pad = 0.12 * (max(points) - min(points)) or 0.1
    return min(points) - pad, max(points) + pad
