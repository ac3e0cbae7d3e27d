"""The report, part by part: what is said, shown and tabled, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvrelay.bench.audit.report import (
    article,
    charts,
    charts_length,
    charts_map,
    other_engines,
    tables,
)
from kvrelay.bench.audit.report.blocks import Cell, Figure, Section
from kvrelay.bench.audit.report.names import clean, sentence
from kvrelay.bench.audit.report.numbers import NOT_MEASURED
from kvrelay.bench.audit.report.reading import Analysis, arms, part, primary_outcome, words
from kvrelay.bench.audit.report.words import MEANINGS, TONES, condition_line, conditions

CAUTION = (
    "These figures are this machine's. Prefill on a CPU is slow, so a transfer has much to save: "
    "that makes relay look better than it is on a GPU. What carries over is the map: wire seconds "
    "per token over prefill seconds per token, and the fixed cost in tokens of prefill. Find your "
    "own engine, model and link on it with `kvrelay predict`."
)
_NOTHING = (Cell(NOT_MEASURED, "none"),)
_READING = (
    "Every effect is relay minus recompute: negative seconds are faster. Brackets are 95 % "
    "intervals (90 % where equivalence is tested). Whatever has no interval counts as not measured."
)


def sections(analysis: Analysis) -> list[Section]:
    """All sections; one of which nothing is known stays, and says so."""
    found = [
        _verdicts(analysis),
        _length(analysis),
        _break_even(analysis),
        _others(analysis),
        _quality(analysis),
        _other_engines(analysis),
        _article(analysis),
        _checks(analysis),
        _estimates(analysis),
        _record(analysis),
    ]
    return [each if _says_something(each) else replace(each, points=_NOTHING) for each in found]


def _verdicts(analysis: Analysis) -> Section:
    outcome = primary_outcome(analysis)
    meanings = ". ".join(f"{sentence(word)}: {said}" for word, said in MEANINGS.items())
    lines = [
        Cell(condition_line(each, outcome), TONES[each.verdict])
        for each in conditions(analysis, "relay")
    ]
    return Section(
        "verdicts",
        "The verdict, condition by condition",
        points=tuple(lines) or (Cell(f"Relay against recompute: {NOT_MEASURED}.", "none"),),
        notes=(f"{meanings}.", _READING),
        figures=_known([charts.forest(analysis), charts.every_arm(analysis)]),
        tables=tuple(tables.verdict_table(analysis, arm) for arm in arms(analysis)),
    )


def _length(analysis: Analysis) -> Section:
    return Section(
        "length",
        "By length and link",
        figures=_known([charts_length.by_length(analysis)]),
        tables=tuple(tables.outcome_tables(analysis)),
    )


def _break_even(analysis: Analysis) -> Section:
    band = clean(words(part(analysis, "break_even"), "band")) or NOT_MEASURED
    return Section(
        "break-even",
        "On other hardware: the break-even map",
        (CAUTION, f"Intervals of the map: {band}."),
        figures=_known([charts_map.break_even_map(analysis)]),
        tables=(
            tables.fixed_cost_table(analysis),
            tables.curve_table(analysis),
            tables.law_table(analysis),
            tables.points_table(analysis),
        ),
    )


def _others(analysis: Analysis) -> Section:
    said = (
        "A request may gain by relay while all lose, since they share the link: the direct effect "
        "compares requests side by side, the global one a system that relays and one that does not."
    )
    drawn = [charts.direct_against_global(analysis), charts_length.saturation(analysis)]
    return Section(
        "global",
        "Direct against global effect",
        (said,),
        figures=_known(drawn),
        tables=(tables.global_table(analysis), tables.saturation_table(analysis)),
    )


def _quality(analysis: Analysis) -> Section:
    said = (
        "Relayed KV must answer as recomputed KV does. That no difference was found would prove "
        "nothing; that any difference is smaller than the margin does."
    )
    drift = (
        "Logprob drift is a lower bound. An answer comes with the likeliest tokens of each place; "
        "one that only the other answer lists is at most as likely as the last of them, and counts "
        "with the least difference which that leaves. Equivalence in it is that of the bound."
    )
    return Section(
        "quality",
        "Quality",
        (said, drift),
        figures=_known([charts.quality(analysis)]),
        tables=(
            tables.quality_table(analysis),
            tables.controls_table(analysis),
            tables.keys_table(analysis),
        ),
    )


def _other_engines(analysis: Analysis) -> Section:
    return Section(
        "other-engines",
        "Engines that differ",
        (other_engines.SAID,),
        notes=other_engines.notes(analysis),
        tables=(other_engines.other_engines_table(analysis),),
    )


def _article(analysis: Analysis) -> Section:
    said = (
        "A claim is confirmed if every interval that it speaks of lies within the claimed range, "
        "refuted if at least one, widened for how many were looked at, lies outside, and not "
        "testable here otherwise."
    )
    return Section(
        "article",
        "The article's claims",
        (article.basis(analysis), said),
        tables=(
            article.table_5_1(analysis),
            article.claims_table(analysis),
            tables.similarity_table(analysis),
        ),
    )


def _checks(analysis: Analysis) -> Section:
    said = "If one of these fails, the effects above are not to be believed without a reason why."
    found = (tables.checks_table(analysis), tables.graph_table(analysis))
    return Section("checks", "Checks", (said,), tables=found)


def _estimates(analysis: Analysis) -> Section:
    found = part(analysis, "observational")
    said = clean(words(found, "words"))
    return Section(
        "estimates",
        "Every estimator, and what observation alone would have said",
        (said,) if said else (),
        figures=_known([charts.estimators(analysis), charts.observational(analysis)]),
        tables=(tables.observational_table(analysis), tables.pooled_table(analysis)),
    )


def _record(analysis: Analysis) -> Section:
    return Section("record", "Plan and data", tables=(tables.record_table(analysis),))


def _says_something(section: Section) -> bool:
    return bool(section.points or section.figures or section.tables)


def _known(found: Sequence[Figure | None]) -> tuple[Figure, ...]:
    return tuple(each for each in found if each is not None)
