"""What the report says of engines that differ from the one whose KV is there."""

from __future__ import annotations

from collections.abc import Callable

from kvrelay.bench.audit.report.blocks import Cell, Cells, Table, table
from kvrelay.bench.audit.report.names import clean
from kvrelay.bench.audit.report.numbers import NOT_MEASURED, interval, percent, unsigned
from kvrelay.bench.audit.report.reading import (
    Analysis,
    Estimate,
    Row,
    estimate,
    number,
    part,
    rows,
    words,
)
from kvrelay.bench.audit.report.tables import count
from kvrelay.bench.audit.report.words import counts_of, numbered

_KINDS = {
    "same": "the same model",
    "weights": "other weights, same architecture",
    "dtype": "another dtype",
    "block_size": "another block size",
    "architecture": "another architecture",
}
SAID = (
    "Engine A leaves the KV of a prompt; engine B, which differs from A in one respect or none, "
    "is asked for that prompt with relay offered and with relay off. All its tokens match each "
    "time, but KV is a function of more than tokens: whatever else it depends on is part of every "
    "block's key."
)
_READING = (
    "Shares are of prompts, with exact 95 % intervals. A ratio of TTFT above 1 is what a look-up "
    "that finds nothing costs; the upper end of its interval is the most that it may be."
)


def notes(analysis: Analysis) -> tuple[str, ...]:
    """What the table shows, in a sentence, and how to read it; nothing where there is none."""
    found = [row for row in rows(analysis, "heterogeneity") if isinstance(row.get("passed"), bool)]
    if not found:
        return ()
    wrong = [_kind(row) for row in found if not row["passed"]]
    if wrong:
        return (f"NOT as it must be with: {', '.join(wrong)}.", _READING)
    others = [row for row in found if row.get("kind") != "same"]
    shown = []
    if len(others) < len(found):
        shown.append("An engine of the same model took over all KV that matches.")
    if others:
        highs = [each.high for row in others if (each := estimate(part(row, "ttft_ratio")))]
        most = f" (TTFT at most {unsigned(max(highs), 2)} times as long)" if highs else ""
        shown.append(
            f"Engines that differ ({len(others)}) took over nothing, answered as they do by "
            f"themselves to the last bit, and were not shown to be slower for having looked{most}."
        )
    return (" ".join(shown), _READING)


def other_engines_table(analysis: Analysis) -> Table:
    """What each engine B took over, whether it answered as by itself, and what looking cost."""
    found: list[Cells] = [
        [
            _kind(row),
            relayed_words(row),
            _maybe(_share, estimate(part(row, "lawful"))),
            _maybe(_share, estimate(part(row, "exact"))),
            _maybe(_ratio, estimate(part(row, "ttft_ratio"))),
            numbered(counts_of(row, "reasons")) or NOT_MEASURED,
            count(row, "n"),
            _result(row),
        ]
        for row in rows(analysis, "heterogeneity")
    ]
    columns = ["Engine B has", "Tokens relayed", "Prompts as expected [95 %]"]
    columns += ["Answers recompute's to the last bit [95 %]", "TTFT, offered over off [95 %]"]
    columns += ["Reason", "Prompts", "Result"]
    return table("KV of engine A, offered to an engine B", columns, found)


def relayed_words(row: Row) -> str:
    """ "0 of 6,144 that match"; of a row of `heterogeneity`."""
    relayed, matching = number(row, "relayed_tokens"), number(row, "matching_tokens")
    if relayed is None or matching is None:
        return NOT_MEASURED
    return f"{unsigned(relayed, 0)} of {unsigned(matching, 0)} that match"


def _kind(row: Row) -> str:
    kind = words(row, "kind")
    return _KINDS.get(kind, clean(kind)) or NOT_MEASURED


def _result(row: Row) -> Cell:
    passed = row.get("passed")
    if not isinstance(passed, bool):
        return Cell(NOT_MEASURED, "none")
    return Cell("as expected", "pays") if passed else Cell("NOT as expected", "costs")


def _share(value: Estimate) -> str:
    return percent(value, sign=False)


def _ratio(value: Estimate) -> str:
    return interval(value, "", sign=False)


def _maybe(form: Callable[[Estimate], str], value: Estimate | None) -> str:
    return NOT_MEASURED if value is None else form(value)
