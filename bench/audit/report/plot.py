"""Parts that the report's pictures share: marks, legends, labels that fit, a frame.

Colours are CSS variables, so that one picture serves a light page, a dark one and paper. What a
mark means is told by its shape too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from kvrelay.bench.audit.report.blocks import Figure
from kvrelay.bench.audit.report.names import clean
from kvrelay.bench.audit.report.reading import Estimate
from kvrelay.bench.audit.report.style import HALO, VARIABLES
from kvrelay.cluster.scales import LinearScale
from kvrelay.cluster.svg import inline, line, text

WIDE, NARROW = 760, 350
INK, GREY, FAINT, PAPER = "var(--ink)", "var(--grey)", "var(--faint)", "var(--paper)"
SMALL = 12
BOLD = 13  # bold letters of size 12 are about as wide as others of this one
SERIES = tuple(f"var(--series-{number})" for number in range(1, 7))
_MARGIN = 16  # around a picture that has no page around it
_LETTER = 0.56  # of the size: a letter's mean width in the usual fonts without serifs
_SHAPES = ("circle", "square", "triangle", "diamond")
# Shape and fill by tone; `words.TONES` says which verdict has which.
_MARKS = {
    "pays": ("circle", True),
    "costs": ("square", True),
    "same": ("diamond", True),
    "open": ("circle", False),
    "none": ("square", False),
}


def tone_colour(tone: str) -> str:
    """The colour of a tone."""
    return f"var(--{tone})"


def mark(x: float, y: float, tone: str, hint: str = "") -> str:
    """The mark of a tone at a point."""
    shape, is_full = _MARKS[tone]
    return shaped(x, y, shape, tone_colour(tone), is_full=is_full, hint=hint)


def series_mark(x: float, y: float, number: int, hint: str = "") -> str:
    """The mark of the nth series."""
    shape = _SHAPES[number % len(_SHAPES)]
    return shaped(x, y, shape, SERIES[number % len(SERIES)], is_full=True, hint=hint)


def shaped(x: float, y: float, shape: str, colour: str, *, is_full: bool, hint: str = "") -> str:
    """A circle, square, triangle or diamond; `hint` is what a pointer resting on it shows."""
    paint = f'fill="{colour if is_full else PAPER}" stroke="{colour}" stroke-width="1.6"'
    name = f"<title>{escape(clean(hint))}</title>" if hint else ""
    if shape == "circle":
        return f'<circle cx="{x:g}" cy="{y:g}" r="3.6" {paint}>{name}</circle>'
    corners = {
        "square": ((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)),
        "triangle": ((0, -4.4), (4.2, 3.2), (-4.2, 3.2)),
        "diamond": ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)),
    }[shape]
    points = " ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in corners)
    return f'<polygon points="{points}" {paint}>{name}</polygon>'


def sign_tone(value: Estimate | None) -> str:
    """The tone of an effect in seconds or percent by its interval alone; less is better."""
    if value is None:
        return "none"
    return {-1: "pays", 0: "open", 1: "costs"}[value.sign]


def width_of(words: str, size: int = SMALL) -> float:
    """About how wide words are; letters of East Asian scripts are as wide as high."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in words)
    return size * (wide + _LETTER * (len(words) - wide))


def fitted(words: str, width: float, size: int = SMALL) -> str:
    """Words cut to a width, with a sign that they were."""
    words = clean(words)
    if width_of(words, size) <= width:
        return words
    while words and width_of(words + "…", size) > width:
        words = words[:-1]
    return words.rstrip(" ,") + "…"


def wrapped(words: str, width: float, size: int = SMALL) -> list[str]:
    """Words in two lines at the most; what does not fit into those is cut, and seen to be."""
    words = clean(words)
    if width_of(words, size) <= width:
        return [words]
    head = words
    while width_of(head, size) > width and " " in head:
        head = head.rpartition(" ")[0]
    rest = words[len(head) :].lstrip()
    return [fitted(each, width, size) for each in (head, rest) if each]


def label(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = INK,
    size: int = SMALL,
    weight: int = 400,
) -> str:
    """Words in the page's colours."""
    return text(
        round(x, 1), round(y, 1), words, size=size, anchor=anchor, colour=colour, weight=weight
    )


def tick_words(value: float) -> str:
    """A number at an axis that has a zero."""
    form = "+,.6g" if abs(value) < 1e5 else "+.0e"
    return f"{value:{form}}".replace("-", "−") if value else "0"


def ticks_apart(scale: LinearScale, size: int) -> list[float]:
    """As many round numbers as can be written along a level axis without touching."""
    for about in (8, 6, 5, 4, 3):
        ticks = scale.ticks(about)
        ends = [(scale.at(tick), width_of(tick_words(tick), size) / 2) for tick in ticks]
        if all(b - a > half_a + half_b + 6 for (a, half_a), (b, half_b) in pairwise(ends)):
            return ticks
    return scale.ticks(2)


def across(
    scale: LinearScale, y: float, value: Estimate, colour: str, *, stroke: float = 2.5
) -> list[str]:
    """A level interval: feet that no mark hides, or an arrow's head where it goes on."""
    left, right = scale.at(value.low), scale.at(value.high)
    parts = [line(left, y, right, y, colour=colour, stroke=stroke)]
    for at, is_beyond, step in (
        (left, value.low < scale.low, 6),
        (right, value.high > scale.high, -6),
    ):
        if is_beyond:
            parts += [
                line(at, y, at + step, y + each, colour=colour, stroke=1.6) for each in (-4, 4)
            ]
        else:
            parts.append(line(at, y - 6, at, y + 6, colour=colour, stroke=1.5))
    return parts


def upright(scale: LinearScale, x: float, value: Estimate, colour: str) -> list[str]:
    """An upright interval with feet."""
    low, high = scale.at(value.low), scale.at(value.high)
    return [
        line(x, low, x, high, colour=colour, stroke=1.8),
        *(line(x - 5, y, x + 5, y, colour=colour, stroke=1.5) for y in (low, high)),
    ]


def legend(
    entries: Sequence[tuple[str, str]], left: float, top: float, width: float
) -> tuple[list[str], float]:
    """Marks and what they mean, in as many lines as they take.

    Args:
        entries: a mark as SVG drawn around (0, 0), and its words.
        left: of the first mark's centre.
        top: the first line's middle.
        width: of the picture, from 0.

    Returns:
        The parts, and where the next thing may begin.
    """
    parts, x, y = [], left, top
    for drawn, words in entries:
        shown = fitted(words, width - left - 24)
        taken = 22 + width_of(shown) + 14
        if x > left and x + taken > width:
            x, y = left, y + 20
        parts.append(f'<g transform="translate({x:g} {y:g})">{drawn}</g>')
        parts.append(label(x + 12, y + 4, shown, colour=GREY))
        x += taken
    return parts, (y + 22 if entries else top)


def frame(low: float, high: float, start: float, end: float, *, pad: float = 0.06) -> LinearScale:
    """A scale with some room at both ends; a range of nothing gets one of its own."""
    span = high - low
    room = span * pad if span > 0 else max(abs(high), 1.0) * 0.5
    return LinearScale(low - room, high + room, start, end)


def inner_range(values: Sequence[Estimate], *more: float) -> tuple[float, float]:
    """What a frame shows: everything, unless few lie so far out that the rest would be one dot.

    Beyond three times what nine of ten values reach from zero the frame ends; there an arrow
    stands for what goes on.
    """
    points = [each for value in values for each in (value.low, value.estimate, value.high)]
    points += [0.0, *more]
    reach = sorted(abs(each) for each in points)
    most = 3 * reach[max(0, -(-9 * len(reach) // 10) - 1)]
    if most > 0:
        points = [min(max(each, -most), most) for each in points]
    return min(points), max(points)


def figure(
    key: str,
    title: str,
    caption: str,
    shapes: tuple[tuple[float, Sequence[str]], tuple[float, Sequence[str]]],
) -> Figure:
    """A figure of its wide and its narrow parts, each with its height."""
    (wide_height, wide), (narrow_height, narrow) = shapes
    return Figure(
        key,
        title,
        caption,
        inline(WIDE, wide_height, wide, title=title, desc=caption, key=f"{key}-wide"),
        inline(NARROW, narrow_height, narrow, title=title, desc=caption, key=f"{key}-narrow"),
        wide_height,
    )


def standalone(figure_: Figure) -> str:
    """The wide picture as a file of its own, for a README: it brings its colours along."""
    opening, rest = figure_.wide.split("\n", 1)
    height = figure_.height
    box = (-_MARGIN, -_MARGIN, WIDE + 2 * _MARGIN, height + 2 * _MARGIN)
    place = f'x="{box[0]:g}" y="{box[1]:g}" width="{box[2]:g}" height="{box[3]:g}"'
    opening = opening.replace(
        f'viewBox="0 0 {WIDE:g} {height:g}"',
        f'viewBox="{box[0]:g} {box[1]:g} {box[2]:g} {box[3]:g}" width="{box[2]:g}" fill="{INK}"',
    )
    ground = f'<rect {place} fill="{PAPER}"/>'
    return "\n".join([opening, f"<style>{VARIABLES}text{{{HALO}}}</style>", ground, rest, ""])
