"""Verdicts in plain words: a gain, a cost and "nobody knows yet" are said equally plainly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvrelay.bench.audit.report.names import (
    arm_words,
    clean,
    link_words,
    outcome_words,
    sentence,
    stratum_words,
)
from kvrelay.bench.audit.report.numbers import NOT_MEASURED, measured, percent, tokens
from kvrelay.bench.audit.report.reading import (
    Analysis,
    Estimate,
    Row,
    Stratum,
    Verdict,
    estimate,
    link_order,
    number,
    part,
    primary_outcome,
    relative,
    rows,
    verdict_of,
    verdict_rows,
    words,
)

VERDICTS: dict[Verdict | None, str] = {
    "pays": "pays",
    "costs": "costs",
    "no_difference": "no difference",
    "undecided": "undecided",
    None: NOT_MEASURED,
}
# What decides which colour and which mark a verdict has.
TONES: dict[Verdict | None, str] = {
    "pays": "pays",
    "costs": "costs",
    "no_difference": "same",
    "undecided": "open",
    None: "none",
}
_FORMS: dict[Verdict | None, str] = {
    "pays": "pays",
    "costs": "costs",
    "no_difference": "makes no difference",
    "undecided": "is undecided",
    None: f"was {NOT_MEASURED}",
}
MEANINGS = {
    "pays": "faster, and throughput is not worse at equal memory",
    "costs": "slower, or throughput is worse",
    "no difference": "whatever difference there is lies within the margin",
    "undecided": "these data do not tell; often it is throughput that is not known well enough",
    NOT_MEASURED: "no figure with an interval",
}
_CHECKS = {
    "srm": "arms have the shares that they were assigned",
    "aa": "the control does not differ from itself",
    "carry_over": "nothing is carried over from what came before",
    "manipulation": "bytes really moved, and for relay only",
    "negative_control": "cosine has no effect given the shared prefix",
    "placebo": "a placebo has no effect",
    "random_common_cause": "a random covariate changes nothing",
    "conservation": "the parts of a request fit into the whole",
}


def effect_words(row: Row) -> str:
    """An effect with its interval: relative where it is known, else in its unit."""
    fraction, absolute = relative(row), estimate(row)
    if fraction is not None:
        return percent(fraction)
    if absolute is not None:
        return measured(absolute, words(row, "outcome"))
    return NOT_MEASURED


def verdict_words(row: Row) -> str:
    """The verdict of a row of `verdicts`."""
    return VERDICTS[verdict_of(row)]


def verdict_line(stratum: Stratum, row: Row, outcome: str) -> str:
    """ "same node, high similarity, English, idle, 2,048 tokens: TTFT −83 % [−85, −81]: pays"."""
    if verdict_of(row) is None:
        return f"{stratum_words(stratum)}: {NOT_MEASURED}"
    effect = f"{outcome_words(outcome)} {_latency_words(row, outcome)}"
    return f"{stratum_words(stratum)}: {effect}: {verdict_words(row)}{_although(row)}"


@dataclass(frozen=True, slots=True)
class Condition:
    """Strata that differ in length only, follow each other, and have one verdict."""

    strata: tuple[Stratum, ...]
    rows: tuple[Row, ...]
    verdict: Verdict | None


def conditions(analysis: Analysis, arm: str) -> list[Condition]:
    """An arm's verdicts, neighbours of one verdict together; nothing is pooled.

    A run of lengths is broken by every stratum that has another verdict, so "from 512 to 4,096
    tokens" never hides one in between.
    """
    found = []
    pairs = verdict_rows(analysis, arm)
    for _, same in groupby(pairs, key=lambda pair: (pair[0].but_tokens, pair[0].tokens is None)):
        for verdict, run in groupby(same, key=lambda pair: verdict_of(pair[1])):
            strata, taken = zip(*run, strict=True)
            found.append(Condition(strata, taken, verdict))
    return found


def condition_line(condition: Condition, outcome: str) -> str:
    """A condition in a sentence: the effects at both ends of its lengths, and the verdict."""
    first, last = condition.strata[0], condition.strata[-1]
    if len(condition.strata) == 1:
        return verdict_line(first, condition.rows[0], outcome)
    where = f"{stratum_words(first, length=False)}, {_lengths(first, last)}"
    if condition.verdict is None:
        return f"{where}: {NOT_MEASURED}"
    short, long = (_latency_words(condition.rows[place], outcome) for place in (0, -1))
    ends = f" at the shortest, {long} at the longest" if short != long else " at both ends"
    effect = f"{outcome_words(outcome)} {short}{ends}"
    although = next(filter(None, map(_although, condition.rows)), "")
    return f"{where}: {effect}: {VERDICTS[condition.verdict]}{although}"


def headline(analysis: Analysis, arm: str = "relay") -> str:
    """How many of the strata have which verdict, in one sentence."""
    found = [row for _, row in verdict_rows(analysis, arm)]
    if not found:
        return f"{sentence(arm_words(arm))} against recompute: {NOT_MEASURED}."
    unit = "condition" if len(found) == 1 else "conditions"
    return f"Of {len(found)} {unit}, {arm_words(arm)} {_counted(found)}."


def link_lines(analysis: Analysis, arm: str = "relay") -> list[str]:
    """For each link how often the arm pays, and from which effect to which, with intervals."""
    outcome = primary_outcome(analysis)
    lines = []
    pairs = verdict_rows(analysis, arm)
    for link in sorted({stratum.link for stratum, _ in pairs}, key=link_order):
        here = [row for stratum, row in pairs if stratum.link == link]
        unit = "condition" if len(here) == 1 else "conditions"
        text = f"{link_words(link)}: {_counted(here)} of {len(here)} {unit}"
        known = [value for row in here if (value := relative(part(row, "latency"))) is not None]
        if known:
            known.sort(key=_middle)
            low, high = percent(known[0]), percent(known[-1])
            said = low if low == high else f"from {low} to {high}"
            text += f"; {outcome_words(outcome)} {said}"
        lines.append(text)
    return lines


def all_checks(analysis: Analysis) -> list[Row]:
    """The checks of an analysis, and of those that every audit should have the missing ones."""
    found = rows(analysis, "checks")
    names = {words(row, "name") for row in found}
    return [*found, *({"name": name} for name in _CHECKS if name not in names)]


def check_words(row: Row) -> str:
    """What a check is called."""
    name = words(row, "name")
    return _CHECKS.get(name, clean(name)) or NOT_MEASURED


def checks_line(analysis: Analysis) -> str:
    """How many checks passed, and which did not."""
    found = all_checks(analysis)
    if not rows(analysis, "checks"):
        return f"Checks: {NOT_MEASURED}."
    failed = [check_words(row) for row in found if row.get("passed") is False]
    passed = sum(row.get("passed") is True for row in found)
    open_ones = len(found) - passed - len(failed)
    text = f"{passed} of {len(found)} checks passed"
    text += f"; {open_ones} {NOT_MEASURED}" if open_ones else ""
    return f"{text}; failed: {', '.join(failed)}." if failed else f"{text}."


def plan_line(analysis: Analysis) -> str:
    """The plan's hash, and whether the plan was changed after data were taken."""
    meta = part(analysis, "meta")
    digest = clean(words(meta, "plan_sha256"))
    if not digest:
        return f"Plan: {NOT_MEASURED}; these data have no pre-registered plan."
    changed = meta.get("plan_changed")
    if changed is True:
        state = "CHANGED after the first data were taken: read these results as exploratory"
    elif changed is False:
        state = "unchanged since before the first data"
    else:
        state = "whether it was changed is not known"
    return f"Plan {digest}: {state}."


def comparison_words(row: Row) -> str:
    """Where a direct and a global effect were compared: conditions if known, else the link."""
    label, arm = words(row, "stratum"), words(row, "arm")
    where = stratum_words(Stratum.parse(label)) if label else link_words(words(row, "link"))
    return f"{where}, {arm_words(arm)}" if arm else where


def numbered(counts: Iterable[tuple[str, float | None]]) -> str:
    """ "recompute 800, relay 790"; counts of whatever was counted."""
    return ", ".join(
        f"{clean(name)} {NOT_MEASURED if count is None else f'{count:,.0f}'}"
        for name, count in counts
    )


def counts_of(row: Row, name: str) -> list[tuple[str, float | None]]:
    """The counts in a mapping within a row, by name."""
    found = part(row, name)
    return [(str(each), number(found, each)) for each in sorted(found)]


def _lengths(first: Stratum, last: Stratum) -> str:
    return f"{tokens(first.tokens or 0).partition(chr(0xA0))[0]} to {tokens(last.tokens or 0)}"


def _counted(found: Sequence[Row]) -> str:
    """ "pays in 3, costs in 1 and is undecided in 2"."""
    seen = [verdict_of(row) for row in found]
    return _listed([f"{_FORMS[each]} in {seen.count(each)}" for each in VERDICTS if each in seen])


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _middle(value: Estimate) -> float:
    return value.estimate


def _latency_words(row: Row, outcome: str) -> str:
    return effect_words({"outcome": outcome, **part(row, "latency")})


def _although(row: Row) -> str:
    """Why a stratum in which the arm is faster does not pay: what else was looked at."""
    value = relative(part(row, "latency")) or estimate(part(row, "latency"))
    if value is None or value.sign >= 0 or verdict_of(row) in ("pays", "no_difference", None):
        return ""
    return f" (although faster: throughput {effect_words(part(row, 'throughput'))})"
