"""What a report is made of, whatever it is written in: sections of paragraphs, figures, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of a table.

    Attributes:
        text: what is written, not yet escaped.
        tone: `pays`, `costs`, `same`, `open` or `none` for a mark in that colour; empty for none.
    """

    text: str
    tone: str = ""


Cells = list[str | Cell]  # of a row, before they are put into a table


@dataclass(frozen=True, slots=True)
class Table:
    """A table; without rows it stands for something that was not measured."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False  # long ones are opened by those who want them


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture in two shapes, since letters of a shrunk picture cannot be read on a phone.

    Attributes:
        key: unique within the report; letters and hyphens.
        title: what it shows.
        caption: how to read it.
        wide: SVG for a screen of a desk, 760 units wide.
        narrow: SVG for a phone, 350 units wide.
        height: of the wide one, in its units.
    """

    key: str
    title: str
    caption: str
    wide: str
    narrow: str
    height: float


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under one heading."""

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()  # how to read what comes above and below them
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Cells],
    *,
    is_folded: bool = False,
) -> Table:
    """A table of texts and marked cells.

    Raises:
        ValueError: a row has more or fewer cells than there are columns.
    """
    made = tuple(
        tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows
    )
    if any(len(row) != len(columns) for row in made):
        raise ValueError(f"a row of {caption!r} does not have {len(columns)} cells")
    return Table(caption, tuple(columns), made, is_folded)
