"""Rules that judge a claim of the article by the effects of an analysis.

A claim about a range is *confirmed* if every interval that it speaks of lies within the range,
*refuted* if at least one lies wholly outside after it has been widened for the number of intervals
looked at (so that among many one does not refute by chance), and *not testable* by these data
otherwise: nothing was measured, or the intervals reach over the edge. The asymmetry is that of
intersection-union tests: all must hold to confirm, one suffices to refute.

Source: Berger, Multiparameter hypothesis testing and acceptance sampling, 1982.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvrelay.bench.audit.report.names import stratum_words
from kvrelay.bench.audit.report.numbers import NOT_MEASURED, between, widened
from kvrelay.bench.audit.report.reading import (
    SAME_NODE,
    Analysis,
    Estimate,
    Stratum,
    best_by_stratum,
    effects,
    estimate,
    primary_outcome,
    relative,
    rows,
    words,
)

Outcome = Literal["confirmed", "refuted", "not_testable"]
Found = Sequence[tuple[Stratum, Estimate]]
Form = Callable[[Estimate], str]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the data say about a claim: our numbers, the verdict, and why."""

    ours: str
    verdict: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class Range:
    """A range of fractions or seconds that is claimed; infinite where it has no end."""

    low: float
    high: float

    def holds(self, value: Estimate) -> bool:
        """The whole interval lies within."""
        return self.low <= value.low and value.high <= self.high

    def excludes(self, value: Estimate) -> bool:
        """The whole interval lies outside."""
        return value.high < self.low or value.low > self.high


def by_range(claimed: Range, found: Found, form: Form) -> Judgement:
    """Judge a claim that a number lies in a range, whatever the other conditions are."""
    if not found:
        return Judgement(NOT_MEASURED, "not_testable", "nothing was measured that it speaks of")
    ours = spread(found, form)
    outside = [pair for pair in found if claimed.excludes(widened(pair[1], len(found)))]
    inside = sum(claimed.holds(value) for _, value in found)
    if outside:
        stratum, value = max(outside, key=lambda pair: _distance(claimed, pair[1]))
        why = (
            f"outside the range in {len(outside)} of {len(found)} conditions, within it in "
            f"{inside}; furthest: {stratum_words(stratum)}, {form(value)}"
        )
        return Judgement(ours, "refuted", why)
    if inside == len(found):
        return Judgement(ours, "confirmed", f"within the range in all {inside} conditions")
    why = f"undecided: {len(found) - inside} of {len(found)} intervals reach over the edge"
    return Judgement(ours, "not_testable", why)


def by_order(less: Found, more: Found, form: Form, names: tuple[str, str]) -> Judgement:
    """Judge a claim that one number is smaller than another in the same other conditions.

    Args:
        less: what is claimed to be smaller, by stratum.
        more: what is claimed to be larger; strata match that differ in similarity only.
        names: of both, for the words.
    """
    others = {_but_similarity(stratum): value for stratum, value in more}
    pairs = [
        (stratum, value, others[_but_similarity(stratum)])
        for stratum, value in less
        if _but_similarity(stratum) in others
    ]
    if not pairs:
        why = f"{names[0]} and {names[1]} were not both measured under the same conditions"
        return Judgement(NOT_MEASURED, "not_testable", why)
    ours = f"{names[0]}: {spread([pair[:2] for pair in pairs], form)}; "
    ours += f"{names[1]}: {spread([(pair[0], pair[2]) for pair in pairs], form)}"
    comparisons = 2 * len(pairs)
    against = sum(
        widened(first, comparisons).low > widened(second, comparisons).high
        for _, first, second in pairs
    )
    holds = sum(first.high < second.low for _, first, second in pairs)
    if against:
        why = f"the other way round in {against} of {len(pairs)} pairs of conditions"
        return Judgement(ours, "refuted", why)
    if holds == len(pairs):
        return Judgement(ours, "confirmed", f"so in all {holds} pairs of conditions")
    why = f"undecided: intervals overlap in {len(pairs) - holds} of {len(pairs)} pairs"
    return Judgement(ours, "not_testable", why)


def latency_outcome(analysis: Analysis) -> str:
    """What the article's latency is held against: whole answers if measured, else the first."""
    whole = effects(analysis, arm="relay", estimand="direct", outcome="e2e_s")
    return "e2e_s" if best_by_stratum(whole) else primary_outcome(analysis)


def changes(analysis: Analysis, outcome: str, arm: str = "relay") -> Found:
    """An arm's relative effects on an outcome, one for each stratum."""
    pairs = best_by_stratum(effects(analysis, arm=arm, estimand="direct", outcome=outcome))
    return [(stratum, value) for stratum, row in pairs if (value := relative(row)) is not None]


def saved(analysis: Analysis) -> Found:
    """The computation that relay saves as a share of recompute's, without I/O."""
    return [(stratum, value.scaled(-1.0)) for stratum, value in changes(analysis, "prefill_s")]


def transfers(analysis: Analysis) -> Found:
    """Seconds on the wire of a request that relays, by stratum (section `transfers`)."""
    found = [
        (Stratum.parse(words(row, "stratum")), value)
        for row in rows(analysis, "transfers")
        if row.get("arm") == "relay" and (value := estimate(row)) is not None
    ]
    return sorted(found, key=lambda pair: pair[0].order)


def at_level(found: Found, levels: Sequence[str]) -> Found:
    """Those of some similarity levels."""
    return [pair for pair in found if pair[0].similarity in levels]


def on_node(found: Found, is_same: bool) -> Found:
    """Those within a node, or those between nodes."""
    return [pair for pair in found if (pair[0].link == SAME_NODE) == is_same]


def cosines(analysis: Analysis) -> dict[str, Estimate]:
    """The cosine of each similarity level, where the analysis says it (section `similarity`)."""
    return {
        words(row, "level"): value
        for row in rows(analysis, "similarity")
        if row.get("measure") == "cosine" and (value := estimate(row, "mean")) is not None
    }


def spread(found: Found, form: Form) -> str:
    """The lowest and the highest estimate, each with its interval."""
    if not found:
        return NOT_MEASURED
    values = sorted((value for _, value in found), key=lambda value: value.estimate)
    if len(values) == 1:
        return form(values[0])
    return f"{between(form(values[0]), form(values[-1]))}, {len(values)} conditions"


def _but_similarity(stratum: Stratum) -> tuple[str, int | None, str, str]:
    return stratum.link, stratum.tokens, stratum.load, stratum.language


def _distance(claimed: Range, value: Estimate) -> float:
    below, above = claimed.low - value.high, value.low - claimed.high
    return max(each for each in (below, above) if not math.isnan(each))
