"""Verdicts in words: each with its interval, and none that hides another."""

from __future__ import annotations

from typing import Any

import pytest

from kvrelay.bench.audit.report.names import clean, link_words, stratum_words
from kvrelay.bench.audit.report.reading import Stratum, estimate, number, verdict_rows
from kvrelay.bench.audit.report.words import (
    checks_line,
    condition_line,
    conditions,
    headline,
    link_lines,
    plan_line,
    verdict_line,
)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def row(stratum: str, verdict: str, low: float, high: float, **more: Any) -> dict[str, Any]:
    """A verdict on an effect in the middle of these fractions."""
    latency = {"relative": (low + high) / 2, "relative_low": low, "relative_high": high}
    return {"stratum": stratum, "arm": "relay", "verdict": verdict, "latency": latency} | more


def lines(*found: dict[str, Any]) -> list[str]:
    made = conditions({"verdicts": [*found]}, "relay")
    return [plain(condition_line(each, "ttft_s")) for each in made]


def test_a_verdict_reads_as_a_sentence() -> None:
    found = row("same-node/2048/idle/high/en", "pays", -0.85, -0.81)
    [(stratum, only)] = verdict_rows({"verdicts": [found]}, "relay")
    said = plain(verdict_line(stratum, only, "ttft_s"))
    assert said == (
        "same node, high similarity, English, idle, 2,048 tokens: TTFT −83 % [−85, −81]: pays"
    )


def test_costs_and_undecided_are_said_as_plainly() -> None:
    assert lines(row("1gbit/512/busy/low/zh", "costs", 0.03, 0.09)) == [
        "1 Gbit/s, low similarity, Chinese, busy, 512 tokens: TTFT +6 % [+3, +9]: costs"
    ]
    assert lines(row("1gbit/512/busy/low/zh", "undecided", -0.03, 0.05)) == [
        "1 Gbit/s, low similarity, Chinese, busy, 512 tokens: TTFT +1 % [−3, +5]: undecided"
    ]
    assert lines(row("1gbit/512/busy/low/zh", "no_difference", -0.01, 0.02))[0].endswith(
        "no difference"
    )


def test_faster_but_undecided_says_what_else_was_looked_at() -> None:
    throughput = {"relative": 0.01, "relative_low": -0.05, "relative_high": 0.07}
    found = row("1gbit/512/idle/high/en", "undecided", -0.4, -0.2, throughput=throughput)
    assert lines(found)[0].endswith("undecided (although faster: throughput +1 % [−5, +7])")
    bare = row("1gbit/512/idle/high/en", "undecided", -0.4, -0.2)
    assert lines(bare)[0].endswith("(although faster: throughput not measured)")


@pytest.mark.parametrize(
    "broken", [{"relative_low": None}, {"relative_high": "?"}, {"relative": float("nan")}]
)
def test_without_an_interval_nothing_is_claimed(broken: dict[str, Any]) -> None:
    found = row("same-node/2048/idle/high/en", "pays", -0.85, -0.81)
    found["latency"] |= broken
    assert lines(found) == ["same node, high similarity, English, idle, 2,048 tokens: not measured"]
    assert headline({"verdicts": [found]}) == "Of 1 condition, relay was not measured in 1."


def test_lengths_with_one_verdict_are_joined_and_both_ends_shown() -> None:
    said = lines(
        row("same-node/4096/idle/high/en", "pays", -0.9, -0.86),
        row("same-node/1024/idle/high/en", "pays", -0.65, -0.59),
        row("same-node/2048/idle/high/en", "pays", -0.8, -0.74),
    )
    assert said == [
        "same node, high similarity, English, idle, 1,024 to 4,096 tokens: TTFT −62 % [−65, −59] "
        "at the shortest, −88 % [−90, −86] at the longest: pays"
    ]


def test_a_length_in_between_with_another_verdict_is_not_hidden() -> None:
    said = lines(
        row("same-node/1024/idle/high/en", "pays", -0.65, -0.59),
        row("same-node/2048/idle/high/en", "costs", 0.1, 0.2),
        row("same-node/4096/idle/high/en", "pays", -0.9, -0.86),
        row("same-node/4096/busy/high/en", "pays", -0.9, -0.86),
    )
    assert [line.rsplit(": ", 1)[1] for line in said] == ["pays", "costs", "pays", "pays"]


def test_strata_are_shown_near_links_first_and_short_before_long() -> None:
    labels = [
        "100mbit/512/idle/high/en",
        "1gbit/4096/idle/high/en",
        "1gbit/512/idle/low/en",
        "same-node/512/idle/high/en",
        "carrier pigeon/512/idle/high/en",
        "1gbit/512/idle/high/en",
    ]
    found = verdict_rows({"verdicts": [row(label, "pays", -1, -0.5) for label in labels]}, "relay")
    assert [stratum.label for stratum, _ in found] == [
        "same-node/512/idle/high/en",
        "1gbit/512/idle/high/en",
        "1gbit/4096/idle/high/en",
        "1gbit/512/idle/low/en",
        "100mbit/512/idle/high/en",
        "carrier pigeon/512/idle/high/en",
    ]


def test_headline_counts_every_verdict() -> None:
    found = [
        row("1gbit/1/idle/high/en", "pays", -1, -0.5),
        row("1gbit/2/idle/high/en", "pays", -1, -0.5),
        row("1gbit/3/idle/high/en", "costs", 0.5, 1),
        row("1gbit/4/idle/high/en", "undecided", -1, 1),
    ]
    assert headline({"verdicts": found}) == (
        "Of 4 conditions, relay pays in 2, costs in 1 and is undecided in 1."
    )
    assert headline({}) == "Relay against recompute: not measured."


def test_a_link_has_the_range_of_its_effects_with_intervals() -> None:
    found = [
        row("1gbit/512/idle/high/en", "pays", -0.4, -0.3),
        row("1gbit/512/idle/low/en", "costs", 0.02, 0.08),
    ]
    assert [plain(line) for line in link_lines({"verdicts": found})] == [
        "1 Gbit/s: pays in 1 and costs in 1 of 2 conditions; TTFT from −35 % [−40, −30] "
        "to +5 % [+2, +8]"
    ]


def test_ends_that_read_the_same_are_said_once() -> None:
    one = [row("same-node/512/idle/high/en", "pays", -0.58, -0.50)]
    alone = ["same node: pays in 1 of 1 condition; TTFT −54 % [−58, −50]"]
    assert [plain(line) for line in link_lines({"verdicts": one})] == alone
    # So do two whose difference no digit shows.
    two = [*one, row("same-node/1024/idle/high/en", "pays", -0.5801, -0.5001)]
    both = ["same node: pays in 2 of 2 conditions; TTFT −54 % [−58, −50]"]
    assert [plain(line) for line in link_lines({"verdicts": two})] == both
    assert lines(*two) == [
        "same node, high similarity, English, idle, 512 to 1,024 tokens: TTFT −54 % [−58, −50] "
        "at both ends: pays"
    ]


@pytest.mark.parametrize(
    ("link", "said"),
    [("same-node", "same node"), ("100mbit", "100 Mbit/s"), ("2.5gbit", "2.5 Gbit/s"),
     ("64kbit", "64 kbit/s"), ("xgbit", "xgbit"), ("", "")],
)  # fmt: skip
def test_links_are_named(link: str, said: str) -> None:
    assert plain(link_words(link)) == said


def test_any_label_is_a_stratum() -> None:
    assert stratum_words(Stratum.parse("only one word")) == "only one word"
    assert Stratum.parse("a/b/512/idle/high/en").link == "a/b"
    assert Stratum.parse("a/many/idle/high/en").tokens is None


def test_characters_that_break_files_or_turn_lines_round_are_replaced() -> None:
    assert clean("a\x00b\ud800c\u202ed\ne") == "a\ufffdb\ufffdc\ufffdd e"
    assert clean("混合 é −") == "混合 é −"


def test_plan_and_checks_say_what_is_wrong() -> None:
    assert "unchanged" in plan_line({"meta": {"plan_sha256": "ab", "plan_changed": False}})
    assert "CHANGED" in plan_line({"meta": {"plan_sha256": "ab", "plan_changed": True}})
    assert "not known" in plan_line({"meta": {"plan_sha256": "ab"}})
    assert "not measured" in plan_line({})
    found = [{"name": "srm", "passed": True}, {"name": "aa", "passed": False}]
    assert checks_line({"checks": found}) == (
        "1 of 8 checks passed; 6 not measured; failed: the control does not differ from itself."
    )
    assert checks_line({}) == "Checks: not measured."


def test_only_finite_numbers_in_order_are_estimates() -> None:
    assert estimate({"estimate": 1, "low": 0, "high": 2}) is not None
    assert estimate({"estimate": 1, "low": 2, "high": 0}) is None
    assert estimate({"estimate": 1, "low": 0, "high": float("inf")}) is None
    assert number({"n": True}, "n") is None
    assert number({"n": 10**400}, "n") is None
    assert number({"n": "12"}, "n") is None
    assert number({"n": 5e-324}, "n") == 0
