"""The tables of the report, each from one section of an analysis."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from kvrelay.bench.audit.report.blocks import Cell, Cells, Table, table
from kvrelay.bench.audit.report.map_reading import crossing_words
from kvrelay.bench.audit.report.names import (
    arm_words,
    clean,
    link_words,
    outcome_words,
    sentence,
    stratum_words,
)
from kvrelay.bench.audit.report.numbers import (
    NOT_MEASURED,
    interval,
    measured,
    p_value,
    percent,
    share,
    unsigned,
)
from kvrelay.bench.audit.report.reading import (
    Analysis,
    Estimate,
    Order,
    Row,
    Stratum,
    effects,
    estimate,
    number,
    part,
    primary_outcome,
    relative,
    rows,
    verdict_of,
    verdict_rows,
    words,
)
from kvrelay.bench.audit.report.words import (
    TONES,
    all_checks,
    check_words,
    comparison_words,
    counts_of,
    effect_words,
    numbered,
    verdict_words,
)

_ALL_STRATA = "all conditions"
_MANY = 16  # rows that a table may have unfolded


def verdict_table(analysis: Analysis, arm: str) -> Table:
    """An arm's verdict in every stratum, with what it rests on."""
    outcome = outcome_words(primary_outcome(analysis))
    columns = ["Conditions", "Verdict", f"{outcome}, change", f"{outcome}, difference"]
    columns += ["Throughput, change", "Memory ratio (no interval)", "Requests"]
    found: list[Cells] = []
    for stratum, row in verdict_rows(analysis, arm):
        latency, throughput = part(row, "latency"), part(row, "throughput")
        found.append(
            [
                stratum_words(stratum),
                Cell(verdict_words(row), TONES[verdict_of(row)]),
                _maybe(percent, relative(latency)),
                _absolute(latency, primary_outcome(analysis)),
                effect_words({"outcome": "tokens_per_s", **throughput}),
                _or_not(number(row, "memory_ratio"), 2),
                count(latency, "n"),
            ]
        )
    return table(
        f"{sentence(arm_words(arm))} against recompute, in each condition",
        columns,
        found,
        is_folded=arm != "relay" or len(found) > _MANY,
    )


def pooled_table(analysis: Analysis) -> Table:
    """Effects over all strata together, by estimand, estimator, arm and outcome."""
    columns = ["Arm", "Outcome", "Estimand", "Estimator", "Design", "Change", "Difference"]
    columns += ["p", "p (Holm)", "Requests", "Sessions", "Note"]
    found: list[Cells] = [
        [
            arm_words(words(row, "arm")),
            _outcome(row),
            _plain(row, "estimand"),
            _plain(row, "estimator"),
            _plain(row, "design"),
            _maybe(percent, relative(row)),
            _absolute(row, words(row, "outcome")),
            p_value(number(row, "p")),
            p_value(number(row, "p_holm")),
            count(row, "n"),
            count(row, "sessions"),
            clean(words(row, "note")),
        ]
        for row in effects(analysis, stratum=None)
    ]
    return table("Effects over all conditions", columns, found, is_folded=True)


def curve_table(analysis: Analysis) -> Table:
    """From which length on relay pays, by link and load."""
    section = part(analysis, "break_even")
    found: list[Cells] = [
        [
            link_words(words(row, "link")),
            _plain(row, "load"),
            _or_not(number(row, "wire_over_prefill"), 3),
            crossing_words(section, row),
        ]
        for row in rows(section, "curve")
        if row.get("link") is not None
    ]
    columns = ["Link", "Load", "Wire over prefill, per token", "Break-even"]
    return table("Where relay breaks even, by link", columns, found)


def law_table(analysis: Analysis) -> Table:
    """From which length on relay pays by the fitted law, whatever makes the ratio."""
    section = part(analysis, "break_even")
    found: list[Cells] = [
        [
            unsigned(ratio, 3),
            _plain(row, "load"),
            crossing_words(section, row),
            _yes(row, "extrapolated"),
        ]
        for row in rows(section, "curve")
        if (ratio := number(row, "ratio")) is not None
    ]
    columns = ["Wire over prefill, per token", "Load", "Break-even", "Extrapolated"]
    return table("Where relay breaks even, by ratio", columns, found, is_folded=True)


def fixed_cost_table(analysis: Analysis) -> Table:
    """What a relay costs whatever its length, in tokens of prefill."""
    section = part(analysis, "break_even")
    names = ("fixed_cost_tokens", "fixed_cost_tokens_low", "fixed_cost_tokens_high")
    found: list[Cells] = [
        [
            _plain(row, "load"),
            _maybe(lambda value: interval(value, "tokens", sign=False), estimate(row, *names)),
            clean(words(row, "words")),
        ]
        for row in rows(section, "laws")
    ]
    return table("Fixed cost", ["Load", "Tokens of prefill", "Law"], found)


def points_table(analysis: Analysis) -> Table:
    """The points of the break-even map."""
    found: list[Cells] = [
        [
            link_words(words(row, "link")),
            count(row, "tokens"),
            _plain(row, "load"),
            _or_not(number(row, "wire_over_prefill"), 3),
            _absolute(row, primary_outcome(analysis)),
        ]
        for row in rows(part(analysis, "break_even"), "points")
    ]
    columns = ["Link", "Tokens", "Load", "Wire over prefill, per token", "Difference"]
    return table("The points of the map", columns, found, is_folded=True)


def global_table(analysis: Analysis) -> Table:
    """What a request gains by relay beside what all gain if all relay."""
    found: list[Cells] = []
    for row in rows(analysis, "direct_against_global"):
        outcome = {"outcome": words(row, "outcome") or primary_outcome(analysis)}
        found.append(
            [
                comparison_words(row),
                effect_words(outcome | dict(part(row, "direct"))),
                effect_words(outcome | dict(part(row, "global"))),
                _differ(row),
            ]
        )
    columns = ["Conditions", "Direct effect", "Global effect", "Compared"]
    return table("Direct against global effect", columns, found)


def saturation_table(analysis: Analysis) -> Table:
    """Both arms' means by the share of requests that may relay."""
    found: list[Cells] = []
    for row in rows(analysis, "saturation"):
        outcome = words(row, "outcome")
        found.append(
            [
                _share_of_requests(row),
                _stratum(row),
                outcome_words(outcome),
                _mean(row, "control"),
                _mean(row, "treated"),
            ]
        )
    columns = ["May relay", "Conditions", "Outcome", "Those that recompute", "Those that relay"]
    return table("Effect on others, by how many relay", columns, found)


def mean_of(row: Row, side: str) -> Estimate | None:
    """The mean of one side, `control` or `treated`, of a row of `saturation`."""
    return estimate(row, f"mean_{side}", f"low_{side}", f"high_{side}")


def quality_table(analysis: Analysis) -> Table:
    """Differences of quality with 90 % intervals, as equivalence tests have them."""
    found: list[Cells] = []
    for row in rows(analysis, "quality"):
        value = estimate(row, "difference", "low90", "high90")
        margin = number(row, "margin")
        equivalent = row.get("equivalent")
        if value is None or margin is None or not isinstance(equivalent, bool):
            verdict = Cell(NOT_MEASURED, "none")
        elif equivalent:
            verdict = Cell("equivalent", "pays")
        else:
            verdict = Cell("not shown to be equivalent", "open")
        found.append(
            [
                outcome_words(words(row, "measure")),
                arm_words(words(row, "arm")),
                _stratum(row),
                NOT_MEASURED if value is None else interval(value, ""),
                _or_not(margin, 4),
                verdict,
                count(row, "n"),
            ]
        )
    columns = ["Measure", "Arm", "Conditions", "Difference [90 %]", "Margin", "Verdict", "n"]
    is_long = len(found) > _MANY
    return table("Quality against recompute", columns, found, is_folded=is_long)


def similarity_table(analysis: Analysis) -> Table:
    """How alike the prompts of each level are, by every measure that was taken.

    A measure that was not taken has a line that says why.
    """
    found: list[Cells] = [
        [
            _plain(row, "level"),
            _plain(row, "measure").replace("_", " "),
            _maybe(lambda value: interval(value, "", sign=False), estimate(row, "mean")),
            count(row, "n"),
        ]
        for row in rows(analysis, "similarity")
    ]
    reasons = part(analysis, "not_measured")
    found += [
        ["all", clean(name).replace("_", " "), f"{NOT_MEASURED}: {_plain(reasons, name)}", "0"]
        for name in sorted(map(str, reasons))
    ]
    return table("How alike prompts are", ["Level", "Measure", "Mean", "Requests"], found)


def controls_table(analysis: Analysis) -> Table:
    """Controls whose outcome is known beforehand."""
    found: list[Cells] = [
        [_plain(row, "name"), _plain(row, "expected"), _plain(row, "seen"), _passed(row)]
        for row in rows(analysis, "controls")
    ]
    columns = ["Control", "Expected", "Seen", "Result"]
    return table("Controls: foreign KV must ruin answers, and be refused", columns, found)


def keys_table(analysis: Analysis) -> Table:
    """How often keys hit, and how often what they hit must not be reused."""
    found: list[Cells] = []
    for row in rows(analysis, "keys"):
        hits, wrong = key_rates(row)
        cells = [_maybe(lambda each: percent(each, sign=False), each) for each in (hits, wrong)]
        found.append([_plain(row, "key"), *cells, count(row, "n")])
    columns = ["Key", "Prompts that hit", "Hits that must not be reused", "Prompts"]
    return table("Keys, replayed", columns, found)


def key_rates(row: Row) -> tuple[Estimate | None, Estimate | None]:
    """Of a row of `keys`: the share of prompts that hit, and the share of hits that are wrong."""
    n, hit_rate, wrong_rate = (number(row, name) for name in ("n", "hit_rate", "wrong_reuse_rate"))
    if n is None or hit_rate is None:
        return None, None
    wrong = None if wrong_rate is None else share(wrong_rate, round(n * hit_rate))
    return share(hit_rate, n), wrong


def checks_table(analysis: Analysis) -> Table:
    """What must hold for the effects to be believed."""
    found: list[Cells] = [
        [
            check_words(row),
            _passed(row),
            _or_not(number(row, "statistic"), 3),
            "none" if row.get("p", 0) is None else p_value(number(row, "p")),  # exact, no test
            clean(words(row, "words")),
        ]
        for row in all_checks(analysis)
    ]
    return table("Checks", ["Check", "Result", "Statistic", "p", "In words"], found)


def graph_table(analysis: Analysis) -> Table:
    """What the causal graph says about the designs, and whether it does."""
    found: list[Cells] = [
        [_plain(row, "words"), _passed({"passed": row.get("holds")})]
        for row in rows(analysis, "identification")
    ]
    return table("What the causal graph says", ["Statement", "Result"], found)


def observational_table(analysis: Analysis) -> Table:
    """What the policy's own log would have made one believe, beside the randomised effect."""
    found = part(analysis, "observational")
    names = {
        "naive": "the policy's log, as it is",
        "adjusted": "the policy's log, adjusted for what it knew",
        "randomised": "randomised",
    }
    outcome = {"outcome": words(found, "outcome") or primary_outcome(analysis)}
    lines: list[Cells] = [
        [label, effect_words(outcome | dict(part(found, name))), count(part(found, name), "n")]
        for name, label in names.items()
        if part(found, name)
    ]
    return table("Observed against randomised", ["Source", "Effect", "Requests"], lines)


def record_table(analysis: Analysis) -> Table:
    """What the figures have to carry with them."""
    meta = part(analysis, "meta")
    if not meta:
        return table("The record", ["What", "Value"], [])
    found: list[Cells] = [
        ["Plan, SHA-256", _plain(meta, "plan_sha256")],
        ["Plan changed", _yes(meta, "plan_changed")],
        ["Data, SHA-256", _plain(meta, "data_sha256")],
        ["Seed", _plain(meta, "seed")],
        ["Requests", count(meta, "rows")],
        ["Sessions", count(meta, "sessions")],
        ["Requests by arm", numbered(counts_of(meta, "arms")) or NOT_MEASURED],
        ["Assumed for columns that the data lack", _assumed(meta)],
        ["Excluded", _excluded(meta)],
    ]
    return table("The record", ["What", "Value"], found)


def outcome_tables(analysis: Analysis, arm: str = "relay") -> list[Table]:
    """An arm's effect on each outcome but the primary one, by stratum."""
    chosen = [
        row
        for row in effects(analysis, arm=arm, estimand="direct")
        if row.get("stratum") is not None and row.get("outcome") != primary_outcome(analysis)
    ]
    chosen.sort(key=_outcome_order)
    made = []
    for outcome, same in groupby(chosen, key=lambda row: words(row, "outcome")):
        columns = ["Conditions", "Estimator", "Change", "Difference", "Requests"]
        lines: list[Cells] = [
            [
                _stratum(row),
                _plain(row, "estimator"),
                _maybe(percent, relative(row)),
                _absolute(row, outcome),
                count(row, "n"),
            ]
            for row in same
        ]
        caption = f"{sentence(outcome_words(outcome))}: {arm_words(arm)} against recompute"
        made.append(table(caption, columns, lines, is_folded=True))
    return made


def count(row: Row, name: str) -> str:
    """A whole number, with thousands marked."""
    value = number(row, name)
    return NOT_MEASURED if value is None else unsigned(value, 0)


def _outcome_order(row: Row) -> tuple[str, Order, str]:
    stratum = Stratum.parse(words(row, "stratum"))
    return words(row, "outcome"), stratum.order, words(row, "estimator")


def _maybe(form: Callable[[Estimate], str], value: Estimate | None) -> str:
    return NOT_MEASURED if value is None else form(value)


def _or_not(value: float | None, digits: int) -> str:
    return NOT_MEASURED if value is None else unsigned(value, digits)


def _plain(row: Row, name: str) -> str:
    return clean(words(row, name)) or NOT_MEASURED


def _absolute(row: Row, outcome: str) -> str:
    return _maybe(lambda value: measured(value, words(row, "outcome") or outcome), estimate(row))


def _mean(row: Row, side: str) -> str:
    outcome = words(row, "outcome")
    return _maybe(lambda value: measured(value, outcome, sign=False), mean_of(row, side))


def _outcome(row: Row) -> str:
    """The outcome, and the quantile if the effect is one on a quantile."""
    name = outcome_words(words(row, "outcome")) or NOT_MEASURED
    estimator = words(row, "estimator")
    is_quantile = estimator.startswith("quantile_p")
    return f"{name}, P{clean(estimator.removeprefix('quantile_p'))}" if is_quantile else name


def _stratum(row: Row) -> str:
    if row.get("stratum") is None:
        return _ALL_STRATA
    return stratum_words(Stratum.parse(words(row, "stratum")))


def _share_of_requests(row: Row) -> str:
    value = number(row, "share")
    return NOT_MEASURED if value is None else f"{unsigned(100 * value, 0)}\u00a0%"


def _yes(row: Row, name: str) -> str:
    value = row.get(name)
    return ("yes" if value else "no") if isinstance(value, bool) else NOT_MEASURED


def _differ(row: Row) -> str:
    value = row.get("differ")
    if not isinstance(value, bool):
        return NOT_MEASURED
    return "they differ" if value else "no difference shown"


def _passed(row: Row) -> Cell:
    passed = row.get("passed")
    if not isinstance(passed, bool):
        return Cell(NOT_MEASURED, "none")
    return Cell("pass", "pays") if passed else Cell("FAIL", "costs")


def _assumed(meta: Row) -> str:
    found = meta.get("assumed")
    if not isinstance(found, list):
        return NOT_MEASURED
    return ", ".join(clean(str(each)) for each in found) or "nothing"


def _excluded(meta: Row) -> str:
    if "excluded" not in meta:
        return NOT_MEASURED
    return numbered(counts_of(meta, "excluded")) or "none"
