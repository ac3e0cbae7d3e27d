"""The article judged: the verdict follows the effects, whichever way they point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.audit.report.article import BANDS, claims_table, judge, table_5_1
from kvrelay.bench.audit.report.article_rules import Range, by_order, by_range, spread
from kvrelay.bench.audit.report.numbers import percent
from kvrelay.bench.audit.report.reading import Estimate, Stratum

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "analysis.json").read_text())
KINDS = {"confirmed", "refuted", "not_testable"}


def effect(
    middle: float, similarity: str = "high", outcome: str = "e2e_s", half: float = 0.01,
    link: str = "same-node", tokens: int = 512, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    bounds = {"estimate": middle, "low": middle - half, "high": middle + half}
    shares = {f"relative{end}": bounds[name] for end, name in
              (("", "estimate"), ("_low", "low"), ("_high", "high"))}  # fmt: skip
    return {
        "estimand": "direct", "estimator": "neyman", "design": "paired", "outcome": outcome,
        "arm": "relay", "control": "recompute",
        "stratum": f"{link}/{tokens}/idle/{similarity}/en", **bounds, **shares, **more,
    }  # fmt: skip


def verdict(analysis: dict[str, Any], start: str) -> str:
    [row] = [row for row in judge(analysis) if row["claim"].startswith(start)]
    assert row["why"] and row["article"]
    return str(row["verdict"])


def found(*middles: float, half: float = 0.01) -> list[tuple[Stratum, Estimate]]:
    return [
        (Stratum.parse(f"1gbit/{number}/idle/high/en"), Estimate(each, each - half, each + half))
        for number, each in enumerate(middles, 1)
    ]


def test_every_claim_is_judged_and_nothing_measured_means_not_testable() -> None:
    rows = judge({})
    assert len(rows) == 3 * len(BANDS) + 13
    assert {row["verdict"] for row in rows} == {"not_testable"}
    assert {row["ours"] for row in rows} == {"not measured"}
    assert all(set(row) == {"claim", "article", "ours", "verdict", "why"} for row in judge(WHOLE))


@pytest.mark.parametrize(
    ("middle", "half", "expected"),
    [(-0.42, 0.02, "confirmed"), (-0.83, 0.02, "refuted"), (-0.05, 0.02, "refuted"),
     (-0.36, 0.03, "not_testable"), (-0.42, 0.30, "not_testable")],
)  # fmt: skip
def test_the_verdict_follows_the_effect(middle: float, half: float, expected: str) -> None:
    analysis = {"effects": [effect(middle, half=half)]}
    assert verdict(analysis, "0.95 to 1.0: latency") == expected


def test_one_stratum_outside_refutes_and_all_inside_confirm() -> None:
    claimed = Range(-0.5, -0.35)
    assert by_range(claimed, found(-0.4, -0.45), percent).verdict == "confirmed"
    judged = by_range(claimed, found(-0.4, -0.45, -0.9), percent)
    assert judged.verdict == "refuted"
    assert "1 of 3" in judged.why and "−90" in judged.why


def test_ours_that_read_the_same_are_said_once() -> None:
    def said(*middles: float) -> str:
        return spread(found(*middles, half=0.04), percent).replace("\u00a0", " ")

    assert said(-0.54) == "−54 % [−58, −50]"
    assert said(-0.54, -0.54001) == "−54 % [−58, −50], 2 conditions"
    assert said(-0.54, -0.44) == "−54 % [−58, −50] to −44 % [−48, −40], 2 conditions"


def test_one_of_many_does_not_refute_by_chance() -> None:
    # 0.02 beyond the edge with a half width of 0.015: outside alone, not among 48.
    claimed = Range(-0.5, -0.35)
    alone = by_range(claimed, found(-0.33, half=0.015), percent)
    among = by_range(claimed, found(*[-0.4] * 47, -0.33, half=0.015), percent)
    assert (alone.verdict, among.verdict) == ("refuted", "not_testable")


def test_order_is_judged_under_the_same_other_conditions() -> None:
    less = [(Stratum.parse("1gbit/512/idle/high/en"), Estimate(-0.4, -0.5, -0.3))]
    more = [(Stratum.parse("1gbit/512/idle/low/en"), Estimate(0.1, 0.05, 0.15))]
    far = [(Stratum.parse("1gbit/1024/idle/low/en"), Estimate(0.1, 0.05, 0.15))]
    names = ("high", "low")
    assert by_order(less, more, percent, names).verdict == "confirmed"
    assert by_order(more, less, percent, names).verdict == "refuted"
    assert by_order(less, far, percent, names).verdict == "not_testable"
    wide = [(more[0][0], Estimate(-0.1, -0.35, 0.2))]
    assert by_order(less, wide, percent, names).verdict == "not_testable"


def test_computation_and_transfer_have_their_own_rules() -> None:
    def computation(change: float) -> str:
        return verdict({"effects": [effect(change, outcome="prefill_s")]}, "0.95 to 1.0: comp")

    assert (computation(-0.7), computation(-0.9)) == ("confirmed", "refuted")

    def transfer(middle: float) -> str:
        row = {"stratum": "1gbit/512/idle/high/en", "arm": "relay", "estimate": middle,
               "low": middle - 0.002, "high": middle + 0.002}  # fmt: skip
        return verdict({"transfers": [row]}, "0.95 to 1.0: transfer")

    assert (transfer(0.010), transfer(0.500)) == ("confirmed", "refuted")


def test_levels_are_put_beside_bands_by_their_measured_cosine() -> None:
    effects = [effect(0.0, "medium"), effect(-0.2, "medium", tokens=1024)]
    high = {"level": "medium", "measure": "cosine", "mean": 0.90, "low": 0.89, "high": 0.91}
    analysis = {"effects": effects[1:], "similarity": [high]}
    assert verdict(analysis, "0.85 to 0.95: latency") == "confirmed"
    [row] = [row for row in judge(analysis) if row["claim"] == "0.70 to 0.85: latency"]
    assert "none of our levels" in row["why"]
    assert verdict({"effects": effects[:1]}, "0.70 to 0.85: latency") == "confirmed"


def cosine(level: str, mean: float) -> dict[str, Any]:
    bounds = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}
    return {"level": level, "measure": "cosine", **bounds}


def decided(similarity: str, kind: str, link: str = "same-node") -> dict[str, Any]:
    return {
        "stratum": f"{link}/512/idle/{similarity}/en",
        "arm": "relay",
        "verdict": kind,
        "latency": {"relative": 0.1, "relative_low": 0.0, "relative_high": 0.2},
    }


def test_a_threshold_is_confirmed_refuted_or_open() -> None:
    levels = [cosine("high", 0.97), cosine("medium", 0.88), cosine("low", 0.3)]
    start = "Relay pays from a cosine of about 0.80"

    def judged(high: str, medium: str, low: str) -> str:
        rows = [decided("high", high), decided("medium", medium), decided("low", low)]
        return verdict({"similarity": levels, "verdicts": rows}, start)

    assert judged("pays", "pays", "costs") == "confirmed"
    assert judged("pays", "costs", "costs") == "refuted"  # above it, and does not pay
    assert judged("pays", "pays", "pays") == "refuted"  # below it, and pays
    assert judged("pays", "pays", "undecided") == "not_testable"


def test_between_nodes_another_threshold_is_judged_on_other_links() -> None:
    levels = [cosine("high", 0.97), cosine("low", 0.3)]
    rows = [decided("high", "pays", "1gbit"), decided("low", "costs", "1gbit")]
    analysis = {"similarity": levels, "verdicts": rows}
    assert verdict(analysis, "Relay pays from a cosine of about 0.9") == "confirmed"
    assert verdict(analysis, "Relay pays from a cosine of about 0.80") == "not_testable"


@pytest.mark.parametrize(("passed", "expected"), [(True, "refuted"), (False, "not_testable")])
def test_without_cosines_the_negative_control_speaks(passed: bool, expected: str) -> None:
    check = {"name": "negative_control", "passed": passed, "words": "slope on cosine"}
    assert verdict({"checks": [check]}, "Relay pays from a cosine of about 0.80") == expected


def test_keys_are_judged_by_the_interval_of_their_rate() -> None:
    def keys(hit: float, wrong: float | None, n: int = 1000) -> dict[str, Any]:
        names = ["hash of the whole prompt", "first 50 tokens", "semantic hash and 8 tokens"]
        rates = {"hit_rate": hit, "wrong_reuse_rate": wrong, "n": n}
        return {"keys": [{"key": name, **rates} for name in names]}

    starts = ("A hash of the whole", "The first 50", "A semantic hash")
    assert [verdict(keys(0.0, None), start) for start in starts] == [
        "confirmed", "not_testable", "not_testable"]  # fmt: skip
    assert [verdict(keys(0.6, 0.9), start) for start in starts] == [
        "refuted", "confirmed", "refuted"]  # fmt: skip
    assert [verdict(keys(0.6, 0.0), start) for start in starts] == [
        "refuted", "refuted", "confirmed"]  # fmt: skip
    assert verdict(keys(0.0, None, n=5), starts[0]) == "not_testable"


def point(tokens: int, middle: float, ratio: float) -> dict[str, Any]:
    return {"link": "1gbit", "tokens": tokens, "load": "idle", "wire_over_prefill": ratio,
            "estimate": middle, "low": middle - 0.1, "high": middle + 0.1}  # fmt: skip


def test_128k_tokens_are_not_testable_by_shorter_prompts() -> None:
    def judged(tokens: int, middle: float) -> str:
        return verdict({"break_even": {"points": [point(tokens, middle, 0.5)]}}, "At 128K")

    assert judged(4096, 0.9) == "not_testable"
    assert judged(131072, 0.9) == "confirmed"
    assert judged(131072, -0.9) == "refuted"
    assert judged(131072, 0.0) == "not_testable"


def test_cheap_transfers_must_pay_and_dear_ones_must_not() -> None:
    def judged(*points: dict[str, Any]) -> str:
        return verdict({"break_even": {"points": list(points)}}, "Relay pays where the transfer")

    assert judged(point(512, -1, 0.5), point(512, 1, 2.0)) == "confirmed"
    assert judged(point(512, -1, 0.5), point(64, 1, 0.5)) == "refuted"
    assert judged(point(512, -1, 0.5)) == "not_testable"
    assert judged(point(512, 0, 0.5)) == "not_testable"


def test_another_architecture_is_judged_where_it_was_tried() -> None:
    start = "KV of another architecture (Llama-3-8B into Qwen-7B): latency"
    tried = effect(0.15, outcome="ttft_s", heterogeneity="architecture")
    assert verdict({"effects": [tried]}, start) == "confirmed"
    assert verdict({"effects": [effect(0.15, outcome="ttft_s")]}, start) == "not_testable"
    offered = {"kind": "architecture", "matching_tokens": 6144, "relayed_tokens": 0}
    [row] = [r for r in judge({"heterogeneity": [offered]}) if r["claim"].startswith(start)]
    assert (row["ours"], row["verdict"]) == (
        "tokens relayed: 0 of 6,144 that match", "not_testable"
    )  # fmt: skip


def test_lossy_codecs_are_not_testable_by_lossless_ones() -> None:
    lossless = [effect(-0.3, arm=arm, outcome="ttft_s") for arm in ("relay_raw", "relay_lz4")]
    rows = judge({"effects": lossless})
    [row] = [row for row in rows if row["claim"].startswith("Then compress")]
    assert row["verdict"] == "not_testable" and "lossless only" in row["ours"]
    lossy = [effect(-0.3, arm="relay_int8", outcome="ttft_s")]
    assert verdict({"effects": lossy}, "Then compress") == "confirmed"


def test_tables_show_every_claim_and_ours_by_place() -> None:
    near, far = effect(-0.42, half=0.02), effect(-0.2, link="1gbit", half=0.02)
    made = table_5_1({"effects": [near, far]})
    assert len(made.rows) == 3 * len(BANDS)
    cells = [cell.text.replace("\u00a0", " ") for cell in made.rows[0]]
    assert cells == ["0.95 to 1.0: latency", "−50 to −35 %", "−42 % [−44, −40]",
                     "−20 % [−22, −18]", "refuted"]  # fmt: skip
    assert len(claims_table({}).rows) == len(judge({}))
    assert {row["verdict"] for row in judge(WHOLE)} <= KINDS
