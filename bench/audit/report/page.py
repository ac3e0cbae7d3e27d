"""The report as one HTML file that asks nobody for anything: no script, no font, no request.

Its content security policy forbids all of these, so that a name out of somebody's data can neither
run nor fetch anything even where escaping were wrong. No clock: the same analysis, the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kvrelay.bench.audit.report.blocks import Cell, Figure, Section, Table
from kvrelay.bench.audit.report.contents import sections
from kvrelay.bench.audit.report.names import clean
from kvrelay.bench.audit.report.numbers import NOT_MEASURED
from kvrelay.bench.audit.report.reading import Analysis, part, rows, words
from kvrelay.bench.audit.report.style import SHEET
from kvrelay.bench.audit.report.words import checks_line, headline, link_lines, plan_line

TITLE = "Where relaying KV caches pays: a causal audit"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(analysis: Analysis) -> str:
    """The page of an analysis, whatever it lacks.

    Args:
        analysis: analysis.json as it was read.

    Returns:
        A whole HTML document, in characters that UTF-8 can hold.
    """
    found = sections(analysis)
    return "\n".join([*_head(analysis, found), *map(_section, found), *_foot(analysis)]) + "\n"


def _head(analysis: Analysis, found: list[Section]) -> Iterator[str]:
    question = clean(words(part(analysis, "meta"), "question"))
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{escape(TITLE)}</title>"
    yield f"<style>{SHEET}</style>"
    yield "</head>"
    yield "<body>"
    yield "<header>"
    yield f"<h1>{escape(TITLE)}</h1>"
    if question:
        yield f'<p class="question">{escape(question)}</p>'
    yield f'<p class="verdict">{escape(headline(analysis))}</p>'
    yield from _points([Cell(line) for line in link_lines(analysis)])
    yield '<ul class="facts">'
    is_bad = any(row.get("passed") is False for row in rows(analysis, "checks"))
    yield _fact(checks_line(analysis), is_bad)
    yield _fact(plan_line(analysis), part(analysis, "meta").get("plan_changed") is True)
    yield "</ul>"
    yield '<nav aria-label="Parts of this report"><ul>'
    yield from (f'<li><a href="#{each.key}">{escape(each.title)}</a></li>' for each in found)
    yield "</ul></nav>"
    yield "</header>"
    yield "<main>"


def _foot(analysis: Analysis) -> Iterator[str]:
    digest = clean(words(part(analysis, "meta"), "data_sha256")) or NOT_MEASURED
    yield "</main>"
    yield f"<footer><p>Made by kvrelay audit from data {escape(digest)}.</p></footer>"
    yield "</body>"
    yield "</html>"


def _fact(text: str, is_bad: bool) -> str:
    return f'<li class="{"costs" if is_bad else "fine"}">{escape(text)}</li>'


def _section(section: Section) -> str:
    key = section.key
    parts = [f'<section id="{key}" aria-labelledby="{key}-heading">']
    parts.append(f'<h2 id="{key}-heading">{escape(section.title)}</h2>')
    parts += [f"<p>{_code(each)}</p>" for each in section.paragraphs]
    parts += _points(section.points)
    parts += [f"<p>{_code(each)}</p>" for each in section.notes]
    parts += map(_figure, section.figures)
    parts += map(_table, section.tables)
    parts.append("</section>")
    return "\n".join(parts)


def _points(points: Sequence[Cell]) -> list[str]:
    items = "".join(
        f'<li class="{each.tone or "plain"}">{escape(each.text)}</li>' for each in points
    )
    return [f'<ul class="points">{items}</ul>'] if points else []


def _figure(figure: Figure) -> str:
    return "\n".join(
        [
            f'<figure id="figure-{figure.key}">',
            f"<h3>{escape(figure.title)}</h3>",
            f'<div class="wide">{figure.wide}</div>',
            f'<div class="narrow">{figure.narrow}</div>',
            f"<figcaption>{escape(figure.caption)}</figcaption>",
            "</figure>",
        ]
    )


def _table(table: Table) -> str:
    """A table; on a phone each row becomes a card, whose fields carry their column's name."""
    caption = escape(table.caption)
    if not table.rows:
        return f'<h3>{caption}</h3>\n<p class="missing">{NOT_MEASURED}</p>'
    heads = "".join(
        f'<th scope="col" role="columnheader">{escape(each)}</th>' for each in table.columns
    )
    body = "\n".join(_row(table, row) for row in table.rows)
    name = "" if table.is_folded else f"<caption>{caption}</caption>"
    whole = (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}">'
        f'<table role="table">{name}\n<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table></div>'
    )
    if table.is_folded:
        count = f"{len(table.rows)} {'row' if len(table.rows) == 1 else 'rows'}"
        return f"<details><summary>{caption}, {count}</summary>\n{whole}\n</details>"
    return whole


def _row(table: Table, row: tuple[Cell, ...]) -> str:
    cells = [f'<th scope="row" role="rowheader">{_cell(row[0])}</th>']
    cells += [
        f'<td role="cell" data-label="{escape(column)}">{_cell(cell)}</td>'
        for column, cell in zip(table.columns[1:], row[1:], strict=True)
    ]
    return f'<tr role="row">{"".join(cells)}</tr>'


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.tone:
        return f'<span class="tag {cell.tone}">{text}</span>'
    kind = ' class="missing"' if cell.text == NOT_MEASURED else ""
    return f"<span{kind}>{text}</span>"


def _code(text: str) -> str:
    """Escaped words in which `this` is code."""
    parts = escape(text).split("`")
    is_paired = len(parts) % 2 == 1
    if not is_paired:
        return escape(text)
    return "".join(
        f"<code>{each}</code>" if place % 2 else each for place, each in enumerate(parts)
    )
