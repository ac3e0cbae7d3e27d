"""From rows to an analysis: what is in it, what is said of it, and that its bytes stay."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.analysis import simulate
from kvrelay.bench.audit.analysis.analyze import analyze, encode, exclude
from kvrelay.bench.audit.analysis.data import Data, codes
from kvrelay.bench.audit.analysis.data_errors import TooLittleData
from kvrelay.bench.audit.analysis.effects import Effect, arm_probability, covariates, effects
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.analysis.verdicts import judge
from kvrelay.bench.audit.estimate.base import Estimate
from kvrelay.cluster.errors import ConfigError

RNG = np.random.default_rng
SETTINGS = Settings(question="does it pay?", seed=3, margins={"agreement": 0.02})


def whole_run() -> Data:
    """Every design, with throughput, memory and quality."""
    rng = RNG(1)
    worlds = [
        simulate.paired(rng),
        simulate.randomised(rng),
        simulate.sessions(rng),
        simulate.switchback(rng),
        simulate.saturation(rng),
        simulate.staggered(rng),
        simulate.logged(rng),
        simulate.noncompliance(rng),
    ]
    data = simulate.together(worlds)
    measured = {
        "tokens_per_s": 100.0 / (1.0 + data.number("ttft_s")),
        "memory_bytes": np.full(len(data), 1e9),
        "agreement": np.ones(len(data)),
    }
    return Data({**data.columns, **measured})


@pytest.fixture(scope="module")
def run() -> Data:
    return whole_run()


@pytest.fixture(scope="module")
def analysis(run: Data) -> dict[str, Any]:
    return analyze(run, SETTINGS)


def found(analysis: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [row for row in analysis["effects"] if all(row[k] == v for k, v in fields.items())]


def test_the_same_rows_give_the_same_bytes(analysis: dict[str, Any]) -> None:
    assert encode(analyze(whole_run(), SETTINGS)) == encode(analysis)
    assert json.loads(encode(analysis)) == analysis


def test_numbers_are_plain_and_short(analysis: dict[str, Any]) -> None:
    text = encode(analysis).decode()
    assert "NaN" not in text and "Infinity" not in text
    for row in analysis["effects"]:
        estimate = row["estimate"]
        assert estimate == float(f"{estimate:.12g}")


@pytest.mark.parametrize(
    ("design", "estimand", "estimator"),
    [
        ("paired", "direct", "neyman"),
        ("paired", "direct", "stratified"),
        ("randomised", "direct", "neyman"),
        ("randomised", "direct", "stratified"),
        ("randomised", "direct", "lin_hc2"),
        ("randomised", "direct", "aipw"),
        ("randomised", "quantile", "quantile_p50"),
        ("randomised", "complier", "iv"),
        ("randomised", "itt", "lin_hc2"),
        ("sessions", "direct", "lin_hc2"),
        ("sessions", "direct", "aipw"),
        ("switchback", "global", "switchback"),
        ("saturation", "global", "neyman"),
        ("saturation", "spillover", "lin_hc2"),
        ("saturation", "direct", "neyman"),
        ("staggered", "direct", "did"),
    ],
)
def test_each_design_has_its_estimators(
    analysis: dict[str, Any], design: str, estimand: str, estimator: str
) -> None:
    rows = found(analysis, design=design, estimand=estimand, estimator=estimator)
    assert rows
    for row in rows:
        assert row["arm"] != row["control"] == "recompute"
        assert row["low"] is None or row["low"] <= row["estimate"] <= row["high"]
        assert row["p"] is None or row["p_holm"] >= row["p"]


def test_direct_and_global_effect_on_a_shared_link_differ_in_sign() -> None:
    rng = RNG(2)
    worlds = [simulate.mixed(rng), simulate.switchback(rng), simulate.saturation(rng)]
    rows = analyze(simulate.together(worlds), SETTINGS)["direct_against_global"]
    assert [row["global"]["design"] for row in rows] == ["switchback", "saturation"]
    for row in rows:
        assert row["link"] == "100mbit" and row["direct"]["design"] == "randomised"
        assert row["direct"]["high"] < 0.0 < row["global"]["low"] and row["differ"]


def test_verdicts_are_joint(analysis: dict[str, Any]) -> None:
    verdicts = {row["stratum"]: row for row in analysis["verdicts"] if row["arm"] == "relay"}
    near = verdicts["same-node/1024/idle/high/en"]
    assert near["verdict"] == "pays"
    assert near["memory_ratio"] == 1.0
    assert near["words"].startswith("ttft_s -8")
    # 0.5 s against 0.4 s: a relay of a short prompt over the slow link.
    far = verdicts["100mbit/256/idle/high/en"]
    assert far["verdict"] == "costs"


def effect(outcome: str, low: float, high: float, p_holm: float | None = 0.001) -> Effect:
    estimate = Estimate((low + high) / 2, low, high, p_holm, 16, 16, control_mean=1.0)
    return Effect(
        "direct", "neyman", "paired", outcome, "relay", "recompute", "s", estimate, p_holm
    )


FASTER, SAME = effect("ttft_s", -0.5, -0.3), effect("ttft_s", -0.02, 0.03, 0.9)
KEPT, LOWER = effect("tokens_per_s", -0.01, 0.2), effect("tokens_per_s", -0.3, -0.1)
OPEN = effect("tokens_per_s", -0.1, 0.2)


@pytest.mark.parametrize(
    ("latency", "throughput", "memory", "verdict"),
    [
        (FASTER, KEPT, 1.0, "pays"),
        (FASTER, KEPT, None, "pays"),
        (FASTER, OPEN, 1.0, "undecided"),
        (FASTER, None, 1.0, "undecided"),
        (FASTER, LOWER, 1.0, "costs"),
        (FASTER, KEPT, 1.2, "undecided"),
        (effect("ttft_s", -0.5, -0.1, 0.2), KEPT, 1.0, "undecided"),
        (effect("ttft_s", 0.1, 0.3), KEPT, 1.0, "costs"),
        (SAME, KEPT, 1.0, "no_difference"),
        (SAME, OPEN, 1.0, "undecided"),
        (effect("ttft_s", -0.2, 0.3, 0.9), KEPT, 1.0, "undecided"),
        (effect("ttft_s", -0.5, -0.1, None), KEPT, 1.0, "undecided"),
    ],
)
def test_the_joint_rule(
    latency: Effect, throughput: Effect | None, memory: float | None, verdict: str
) -> None:
    assert judge(latency, throughput, memory, SETTINGS)[0] == verdict


def test_quality_is_equivalent_over_all_and_not_shown_in_a_stratum(
    analysis: dict[str, Any],
) -> None:
    whole = [row for row in analysis["quality"] if row["stratum"] is None]
    assert [row["measure"] for row in whole] == ["agreement"]
    # Sixteen equal answers tell little about a margin of two in a hundred.
    assert not any(row["equivalent"] for row in analysis["quality"] if row["stratum"])
    assert all(row["difference"] == 0.0 for row in analysis["quality"])


def test_the_log_stands_beside_the_truth(analysis: dict[str, Any]) -> None:
    seen = analysis["observational"]
    assert seen["naive"]["estimate"] > 0.0 > seen["adjusted"]["estimate"]
    assert seen["randomised"]["design"] == "paired"
    assert "drawn by lot" in seen["words"]


def test_what_is_left_out_is_counted(run: Data) -> None:
    failed = codes(run.text("request")) % 50 == 0
    warm = np.arange(len(run)) < 10
    data = Data({**run.columns, "failed": failed, "warm_up": warm})
    left, counts = exclude(data, SETTINGS)
    assert counts["failed"] == failed.sum()
    assert counts["warm_up"] == (warm & ~failed).sum()
    assert len(left) == len(data) - (failed | warm).sum()
    assert counts["incomplete_pair"] > 0
    meta = analyze(data, SETTINGS)["meta"]
    assert meta["excluded"] == counts and meta["rows"] == len(left)
    assert meta["data_sha256"] == data.digest()


def test_nothing_to_compare_is_an_error(run: Data) -> None:
    only = run.where(run.text("arm") == "recompute")
    with pytest.raises(TooLittleData, match="only arm"):
        analyze(only, SETTINGS)


def test_somebody_elses_rows_are_enough() -> None:
    from kvrelay.bench.audit.analysis.files import from_rows

    rng = RNG(5)
    rows = [
        {"arm": arm, "session": f"s{i}", "time_s": i, "latency_s": float(rng.lognormal(m, 0.1))}
        for i in range(100)
        for arm, m in [("on", -0.5) if i % 2 else ("off", 0.0)]
    ]
    data = from_rows([{**row, "ttft_s": row.pop("latency_s")} for row in rows])
    analysis = analyze(data, Settings(control="off"))
    (row,) = found(analysis, design="randomised", estimator="neyman", stratum=None)
    assert row["high"] < 0.0
    (verdict,) = analysis["verdicts"]
    assert (verdict["stratum"], verdict["verdict"]) == ("all", "undecided")
    assert "throughput not measured" in verdict["words"]
    assert len(analysis["meta"]["assumed"]) == 2


def test_sections_made_elsewhere_are_taken_in() -> None:
    run = simulate.paired(RNG(8)).data
    keys = [{"key": "prefix", "hit_rate": 1.0}]
    assert analyze(run, SETTINGS, {"keys": keys})["keys"] == keys


def test_the_chance_of_an_arm_among_several_is_that_of_the_two() -> None:
    data = simulate.randomised(RNG(6), uneven=True).data
    # A third arm takes half of everything: given one of the two, chances are as before.
    third = Data({**data.columns, "propensity": data.number("propensity") / 2.0})
    treated = data.text("arm") == "relay"
    chance = arm_probability(third, treated)
    truth = np.where(treated, data.number("propensity"), 1.0 - data.number("propensity"))
    assert chance == pytest.approx(truth)


def test_settings_come_from_a_plan() -> None:
    plan = {
        "question": "q",
        "seed": 5,
        "control": "recompute",
        "outcomes": {"primary": ["e2e_s"], "secondary": ["ttft_s"]},
        "margins": {"tokens_per_s": 0.1},
        "exclusions": ["failed"],
        "switchback": [{"link": "100mbit", "burn_in": 0.4}],
    }
    settings = Settings.from_plan(plan, "abc", changed=True)
    assert settings.primary == ("e2e_s",) and settings.burn_in == {"100mbit": 0.4}
    assert settings.margin("tokens_per_s") == 0.1
    assert settings.margin("ttft_s") == 0.05
    assert settings.margin("perplexity") is None


def test_strata_with_too_few_pairs_have_no_estimate() -> None:
    data = simulate.paired(RNG(7), pairs=3).data
    rows = effects(data, SETTINGS)
    assert [row.stratum for row in rows if row.estimator == "neyman"] == []
    assert [row.found.n for row in rows if row.estimator == "stratified"] == [12]


def test_adjustment_is_by_strata_and_by_what_was_known_before() -> None:
    data = simulate.randomised(RNG(9), n=400, fixed=True).data
    x = covariates(data)
    assert x.shape == (400, 4)  # three of four strata, and the prediction
    assert x[:, 3] == pytest.approx(data.number("predicted_recompute_s"))
    after = Data({**data.columns, "wire_s": data.number("ttft_s")})
    assert covariates(after).shape == (400, 4), "what the relay caused is not adjusted for"
    labelled = Data({**data.columns, "cosine": RNG(1).uniform(size=400)})
    assert covariates(labelled) == pytest.approx(x), "a label is not adjusted for"
    few = covariates(data.where(np.arange(400) < 60))
    assert few.shape == (60, 1), "strata of fifteen rows are too small"


def test_a_missing_library_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kvrelay.bench.audit.analysis.analyze.find_spec",
        lambda name: None if name == "scipy" else name,
    )
    with pytest.raises(ConfigError, match=r"no scipy: pip install 'kvrelay\[audit\]'"):
        analyze(simulate.paired(RNG(10)).data, SETTINGS)


def test_a_log_with_few_decisions_of_a_kind_is_not_adjusted() -> None:
    rng = RNG(11)
    log = simulate.logged(rng, n=30)
    seen = analyze(simulate.together([simulate.paired(rng), log]), SETTINGS)["observational"]
    assert seen["adjusted"]["estimate"] is None
    assert "(fewer than 20 rows of a decision)" in seen["words"]
    assert seen["randomised"]["high"] < 0.0
    assert analyze(simulate.paired(rng).data, SETTINGS)["observational"] is None
