"""Parts of the pictures: SVG, written by hand, which every browser opens without a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, FAINT, GREY = "#1d2128", "#dfe3e8", "#5b626c"


def document(width: int, height: int, parts: Sequence[str]) -> str:
    """A whole picture on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13" '
        f'fill="{INK}">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>", ""])


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    anchor: str = "start",
    colour: str = INK,
    weight: int = 400,
) -> str:
    """Words whose base line begins, ends or has its middle at a point."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, colour: str, stroke: float) -> str:
    """A straight line."""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" '
        f'stroke-width="{stroke}" stroke-linecap="round"/>'
    )


def inline(
    width: float, height: float, parts: Sequence[str], *, title: str, desc: str, key: str
) -> str:
    """A picture within a page: as wide as its place, named for those who do not see it.

    Args:
        title: what it is called.
        desc: what it shows, in a sentence or more.
        key: makes its ids unique in the page; letters, digits and hyphens.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc" font-family="system-ui, sans-serif" '
        'font-size="13">'
    )
    names = [
        f'<title id="{key}-title">{escape(title)}</title>',
        f'<desc id="{key}-desc">{escape(desc)}</desc>',
    ]
    return "\n".join([head, *names, *parts, "</svg>"])
