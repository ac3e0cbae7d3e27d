"""The report as Markdown: a summary of one screen, then the tables. Pictures are in the HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvrelay.bench.audit.report.blocks import Section, Table
from kvrelay.bench.audit.report.contents import CAUTION, sections
from kvrelay.bench.audit.report.names import clean
from kvrelay.bench.audit.report.numbers import NOT_MEASURED
from kvrelay.bench.audit.report.page import TITLE
from kvrelay.bench.audit.report.reading import Analysis, part, primary_outcome, words
from kvrelay.bench.audit.report.words import (
    checks_line,
    condition_line,
    conditions,
    headline,
    link_lines,
    plan_line,
)

# Brackets of intervals stay as they are; those that could make a link do not.
_SPECIAL = re.compile(r"([\\`*_{}<>|~$]|\[(?![−+0-9])|\](?=[(\[:]))")
_MOST_LINES = 14


def render(analysis: Analysis) -> str:
    """The Markdown of an analysis, whatever it lacks.

    Args:
        analysis: analysis.json as it was read.
    """
    lines = [*_summary(analysis)]
    for section in sections(analysis):
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def _summary(analysis: Analysis) -> Iterator[str]:
    question = clean(words(part(analysis, "meta"), "question"))
    yield f"# {TITLE}"
    yield ""
    if question:
        yield f"> {escape(question)}"
        yield ""
    yield f"**{escape(headline(analysis))}**"
    yield ""
    outcome = primary_outcome(analysis)
    found = [condition_line(each, outcome) for each in conditions(analysis, "relay")]
    # Where there is a line for each of many conditions, links are what fits on a screen.
    shown = found if len(found) <= _MOST_LINES else link_lines(analysis)
    yield from (f"- {escape(line)}" for line in shown or [f"relay: {NOT_MEASURED}"])
    yield ""
    yield f"{escape(checks_line(analysis))} {escape(plan_line(analysis))}"
    yield ""
    yield CAUTION


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"## {escape(section.title)}"
    for paragraph in section.paragraphs:
        if paragraph != CAUTION:  # the summary has it
            yield ""
            yield escape(paragraph)
    if section.points:
        yield ""
        yield from (f"- {escape(point.text)}" for point in section.points)
    for note in section.notes:
        yield ""
        yield escape(note)
    for table in section.tables:
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield ""
    yield f"### {escape(table.caption)}"
    yield ""
    if not table.rows:
        yield NOT_MEASURED
        return
    yield _line([escape(column) for column in table.columns])
    yield _line(["---"] * len(table.columns))
    for row in table.rows:
        yield _line([escape(cell.text) for cell in row])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line; `&` too, since entities are read."""
    plain = _SPECIAL.sub(r"\\\1", clean(text)).replace("&", "&amp;")
    return re.sub(r"^(\s*)([#+\-]|\d+[.)])(?=\s)", r"\1\\\2", plain)
