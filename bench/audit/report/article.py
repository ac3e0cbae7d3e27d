"""The article's claims beside ours: each confirmed, refuted or not testable here, and why.

The article is "A causal audit of KV-cache sharing between agents: when does reusing computation
really pay?"; its numbers come without data. What it claims is written down here; what we found is
taken from the effects, and the verdict follows by `article_rules`. No outcome is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.audit.report.article_claims import OTHERS
from kvrelay.bench.audit.report.article_rules import (
    Form,
    Found,
    Judgement,
    Range,
    at_level,
    by_range,
    changes,
    cosines,
    latency_outcome,
    on_node,
    saved,
    spread,
    transfers,
)
from kvrelay.bench.audit.report.blocks import Cell, Cells, Table, table
from kvrelay.bench.audit.report.names import clean, outcome_words
from kvrelay.bench.audit.report.numbers import percent, seconds
from kvrelay.bench.audit.report.reading import Analysis, Estimate, part, words

VERDICTS = {"confirmed": "confirmed", "refuted": "refuted", "not_testable": "not testable here"}
_TONES = {"confirmed": "pays", "refuted": "costs", "not_testable": "none"}


@dataclass(frozen=True, slots=True)
class Band:
    """A line of the article's table 5.1.

    Attributes:
        low: of the cosine.
        high: of the cosine.
        latency: change, as a fraction.
        saved: share of the computation.
        transfer: seconds.
        level: where this band lies among the article's three levels of its data set.
    """

    label: str
    low: float
    high: float
    latency: Range
    saved: Range
    transfer: Range
    level: str


BANDS = (
    Band("0.95 to 1.0", 0.95, 1.0, Range(-0.50, -0.35), Range(0.60, 0.80),
         Range(0.005, 0.015), "high"),
    Band("0.85 to 0.95", 0.85, 0.95, Range(-0.30, -0.15), Range(0.30, 0.50),
         Range(0.010, 0.025), "medium"),
    Band("0.70 to 0.85", 0.70, 0.85, Range(-0.05, 0.10), Range(0.10, 0.25),
         Range(0.020, 0.040), "medium"),
    Band("below 0.70", -1.0, 0.70, Range(0.05, 0.20), Range(-math.inf, 0.05),
         Range(0.030, 0.060), "low"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Measure:
    """A column of table 5.1: what is claimed, and what was found of it."""

    name: str
    claimed: Callable[[Band], Range]
    found: Callable[[Analysis], Found]
    form: Form


@dataclass(frozen=True, slots=True)
class _Line:
    """A cell of table 5.1, judged."""

    claim: str
    article: str
    near: str
    far: str
    judgement: Judgement


def judge(analysis: Analysis) -> list[dict[str, Any]]:
    """Every claim as a row of the section `article`: claim, article, ours, verdict, why."""
    lines = [(line.claim, line.article, line.judgement) for line in _lines(analysis)]
    lines += [(each.claim, each.article, each.judge(analysis)) for each in OTHERS]
    return [
        {"claim": claim, "article": article, "ours": found.ours, "verdict": found.verdict,
         "why": found.why}
        for claim, article, found in lines
    ]  # fmt: skip


def levels_of(band: Band, analysis: Analysis) -> list[str]:
    """Our similarity levels that a band speaks of.

    By their measured cosine where the analysis has it, else by the article's own definition of
    its three levels (a strict extension, the same topic in other words, unrelated).
    """
    known = cosines(analysis)
    if not known:
        return [band.level]
    return [
        level
        for level, value in sorted(known.items())
        if band.low <= value.estimate < band.high or value.estimate == band.high == 1.0
    ]


def table_5_1(analysis: Analysis) -> Table:
    """The article's table beside ours, within a node and between nodes."""
    columns = ["Cosine, measure", "Article", "Ours, same node", "Ours, between nodes", "Verdict"]
    lines: list[Cells] = [
        [line.claim, line.article, line.near, line.far, _verdict(line.judgement)]
        for line in _lines(analysis)
    ]
    return table("The article's table 5.1 beside ours", columns, lines)


def claims_table(analysis: Analysis) -> Table:
    """Every claim with its verdict and the reason."""
    lines: list[Cells] = [
        [row["claim"], row["article"], row["ours"],
         Cell(VERDICTS[row["verdict"]], _TONES[row["verdict"]]), row["why"]]
        for row in judge(analysis)
    ]  # fmt: skip
    columns = ["Claim", "Article", "Ours", "Verdict", "Why"]
    return table("Line by line", columns, lines)


def basis(analysis: Analysis) -> str:
    """By what our strata were put beside the article's bands, in a sentence."""
    known = cosines(analysis)
    latency = outcome_words(latency_outcome(analysis))
    if not known:
        reason = clean(words(part(analysis, "not_measured"), "cosine"))
        because = f" ({reason})" if reason else ""
        return (
            f"The article's latency is held against our {latency}. Its bands of cosine are put "
            "beside our levels by its own definition of them (high: a strict extension, medium: "
            "the same topic in other words, low: unrelated): the cosine itself is not "
            f"measured{because}."
        )
    listed = ", ".join(
        f"{clean(level)} {value.estimate:.2f} [{value.low:.2f}, {value.high:.2f}]"
        for level, value in sorted(known.items())
    )
    return (
        f"The article's latency is held against our {latency}. Its bands are put beside our "
        f"levels by their measured cosine: {listed}."
    )


def _lines(analysis: Analysis) -> list[_Line]:
    latency = latency_outcome(analysis)
    measures = (
        _Measure("latency", lambda band: band.latency,
                 lambda of: changes(of, latency), percent),
        _Measure("computation saved", lambda band: band.saved, saved, _share),
        _Measure("transfer", lambda band: band.transfer, transfers,
                 lambda value: seconds(value, sign=False)),
    )  # fmt: skip
    return [_line(band, measure, analysis) for band in BANDS for measure in measures]


def _line(band: Band, measure: _Measure, analysis: Analysis) -> _Line:
    claimed = measure.claimed(band)
    levels = levels_of(band, analysis)
    found = at_level(measure.found(analysis), levels)
    if levels:
        judgement = by_range(claimed, found, measure.form)
    else:
        why = "none of our levels has a cosine in this band"
        judgement = Judgement("not measured", "not_testable", why)
    return _Line(
        f"{band.label}: {measure.name}",
        _range_words(claimed, measure.name),
        spread(on_node(found, True), measure.form),
        spread(on_node(found, False), measure.form),
        judgement,
    )


def _range_words(claimed: Range, name: str) -> str:
    if name == "transfer":
        return f"{1000 * claimed.low:.0f} to {1000 * claimed.high:.0f}\u00a0ms"
    if math.isinf(claimed.low):
        return f"under {100 * claimed.high:.0f}\u00a0%"
    form = "{:+.0f}" if name == "latency" else "{:.0f}"
    low, high = (form.format(100 * each).replace("-", "−") for each in (claimed.low, claimed.high))
    return f"{low} to {high}\u00a0%"


def _share(value: Estimate) -> str:
    return percent(value, sign=False)


def _verdict(judgement: Judgement) -> Cell:
    return Cell(VERDICTS[judgement.verdict], _TONES[judgement.verdict])
