"""Plans: what is wrong with one is said with its path, and its hash is that of its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_audit import content

from kvrelay.bench.audit.arms import ARMS
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.plan import Power, load_plan
from kvrelay.bench.audit.power import pairs_needed, sessions_needed, sizes
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.units import planned
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape
from kvrelay.cluster.errors import ConfigError

PLANS = Path(__file__).parents[4] / "bench" / "plans"
RECOMPUTE, RELAY = content()["arms"]
SESSIONS = {"name": "recompute", "designs": ["sessions"], "sessions": 4}


def factors(**changes: Any) -> dict[str, Any]:
    return {**content()["strata"], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, "sed: unknown key; did you mean 'seed'?"),
        ({"outcomes": {}}, "outcomes.primary: missing, but required"),
        ({"outcomes": {"primary": ["ttft"]}}, "outcomes.primary[0]: unknown outcome 'ttft'; known"),
        ({"margins": {"agreement": 0}}, "margins.agreement: "),
        ({"seed": -1}, "seed: "),
        (
            {"strata": factors(link=["fast"])},
            "strata.link[0]: link 'fast': give unshaped or a rate",
        ),
        ({"strata": factors(tokens=[512, 512])}, "strata.tokens: an entry stands twice"),
        ({"strata": factors(tokens=[64])}, "strata.tokens[0]: a prompt can have 128 to"),
        ({"strata": factors(load=["full"])}, "strata.load[0]: "),
        ({"strata": factors(colour=["red"])}, "strata.colour: unknown key"),
        ({"exclude_strata": [{"tokens": [512]}]}, "exclude_strata: nothing is left"),
        ({"exclude_strata": [{"token": [512]}]}, "exclude_strata[0].token: unknown key; did you"),
        ({"arms": [RECOMPUTE, {**RELAY, "name": "rely"}]}, "arms[1].name: unknown arm 'rely'"),
        ({"arms": [RECOMPUTE, {**RELAY, "pairs": None}]}, "arms[1].pairs: missing, but design pai"),
        ({"arms": [RECOMPUTE, {**RELAY, "pairs": 3}]}, "arms[1].pairs: "),
        ({"arms": [RECOMPUTE, {**RELAY, "designs": ["sessions"]}]}, "arms[1].sessions: missing"),
        ({"arms": [RECOMPUTE, {**RELAY, "strata": ["x"]}]}, "arms[1].strata[0]: 'x' is none of"),
        ({"arms": [RELAY]}, "arms[0].strata: no paired recompute in same-node/512/idle/high/en"),
        ({"arms": [RECOMPUTE, RELAY, RELAY]}, "arms[2]: relay, paired, same-node/512/idle/high/en"),
        ({"arms": [RECOMPUTE, {**RELAY, "designs": ["aa"]}]}, "arms[1].designs: aa compares"),
        ({"arms": [{**SESSIONS, "turns": 1}]}, "arms[0].turns: "),
        ({"arms": [{**SESSIONS, "session_shape": "ring"}]}, "arms[0].session_shape: "),
        (
            {"arms": [SESSIONS, {**SESSIONS, "name": "relay", "turns": 4}]},
            "arms[1].session_shape: pipeline of 4 turns in same-node/512/idle/high/en, where "
            "arms[0] has pipeline of 3",
        ),
        (
            {"arms": [SESSIONS], "strata": factors(similarity=["low"])},
            "arms[0].session_shape: in a pipeline prompts go on from A's, which is similarity hi",
        ),
        (
            {"arms": [{**SESSIONS, "turns": 9}], "strata": factors(tokens=[4096])},
            "arms[0].turns: 9 turns of pipeline come to 11344 tokens in same-node/4096/idle/high/en"
            ", and an engine's context has 8192",
        ),
        (
            {"switchback": [{"link": "1gbit", "blocks_per_arm": 1}]},
            "switchback[0].blocks_per_arm: ",
        ),
        (
            {"randomised": [{"link": "1gbit", "blocks": 1}] * 2},
            "randomised[1]: the same stratum as randomised[0]",
        ),
        (
            {"saturation": [{"link": "1gbit", "blocks_per_share": 1, "treated": "shared_pool"}]},
            "saturation[0].treated: 'shared_pool' cannot treat a stream",
        ),
        (
            {"saturation": [{"link": "1gbit", "blocks_per_share": 1, "shares": [2]}]},
            "saturation[0]",
        ),
        ({"heterogeneity": {"kind": ["same"]}}, "heterogeneity.kind: unknown key; did you"),
        ({"heterogeneity": {"kinds": ["size"]}}, "heterogeneity.kinds[0]: input should be 'same"),
        ({"heterogeneity": {"kinds": []}}, "heterogeneity.kinds: "),
        ({"heterogeneity": {"kinds": ["same"] * 2}}, "heterogeneity.kinds: an entry stands twice"),
        ({"heterogeneity": {"examples": 3}}, "heterogeneity.examples: "),
        ({"heterogeneity": {"tokens": 500}}, "heterogeneity.tokens: input should be a multiple of"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan(content(**changes))
    assert message in str(caught.value)


def test_sessions_are_one_at_a_time() -> None:
    arms = [{**arm, "designs": ["sessions"], "sessions": 4} for arm in (RECOMPUTE, RELAY)]
    with pytest.raises(ConfigError, match=r"arms\[0\]\.strata: sessions are measured one"):
        load_plan(content(arms=arms, strata=factors(load=["busy"])))


def test_every_problem_at_once() -> None:
    with pytest.raises(ConfigError, match="2 problems") as caught:
        load_plan(content(sed=1, outcomes={}))
    assert "sed: " in str(caught.value) and "outcomes.primary: " in str(caught.value)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_plan(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_plan(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ConfigError, match="expected a mapping"):
        load_plan(tmp_path / "list.yaml")


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    plan = load_plan(content())
    text = "# a comment\n" + yaml.safe_dump(dict(reversed(content().items())), sort_keys=False)
    (tmp_path / "other.yaml").write_text(text)
    assert load_plan(tmp_path / "other.yaml").sha256 == plan.sha256
    assert load_plan(content(power={})).sha256 == plan.sha256  # a default that is spelt out
    assert load_plan(content(seed=4)).sha256 != plan.sha256
    (tmp_path / "canonical.yaml").write_text(plan.canonical())
    assert load_plan(tmp_path / "canonical.yaml").sha256 == plan.sha256


def test_engines_that_differ_are_in_the_hash_where_they_are_asked_for(tmp_path: Path) -> None:
    plan = load_plan(content())
    assert "heterogeneity" not in plan.canonical()
    more = load_plan(content(heterogeneity={}))
    assert more.heterogeneity is not None
    assert more.heterogeneity.kinds == tuple(Kind)
    assert more.sha256 != plan.sha256
    (tmp_path / "canonical.yaml").write_text(more.canonical())
    assert load_plan(tmp_path / "canonical.yaml").sha256 == more.sha256


def test_the_judged_plan() -> None:
    plan = load_plan(PLANS / "full.yaml")
    strata = plan.all_strata()
    assert len(strata) == 48
    assert {s.link for s in strata} == {"same-node", "1gbit", "200mbit", "100mbit"}
    assert len({s.tokens for s in strata}) == 4
    assert {(s.similarity, s.language) for s in strata} == {
        (similarity, language)
        for similarity in ("high", "medium", "low")
        for language in ("en", "zh")
    }
    by_arm = {arm.name: arm for arm in plan.arms if "paired" in arm.designs}
    assert {name: arm.pairs for name, arm in by_arm.items()} == {"recompute": 16, "relay": 16}
    assert all(plan.strata_of(arm) == strata for arm in by_arm.values())
    sessions = [arm for arm in plan.arms if "sessions" in arm.designs]
    assert {arm.name for arm in sessions} == set(ARMS)
    assert all(arm.sessions is not None and arm.sessions >= 30 for arm in sessions)
    for name in set(ARMS) - {"recompute"}:
        own = [arm for arm in sessions if arm.name == name]
        assert len({stratum for arm in own for stratum in plan.strata_of(arm)}) == 6
        assert {arm.session_shape for arm in own if arm.turns > HAND_OVER} == set(Shape)
    assert [(s.link, s.blocks_per_arm >= 12, s.drain_times) for s in plan.switchback] == [
        ("100mbit", True, 5),
        ("1gbit", True, 5),
    ]
    assert plan.saturation[0].shares == (0, 0.25, 0.5, 0.75, 1)
    assert plan.heterogeneity is not None
    assert set(plan.heterogeneity.kinds) == set(Kind)


def test_the_smoke_plan_is_small() -> None:
    plan = load_plan(PLANS / "smoke.yaml")
    assert set(plan.links()) == {"same-node", "100mbit"}
    units = planned(plan)
    assert len(units) <= 30 and {unit.turns for unit in units} == {HAND_OVER}


def test_names_of_strata() -> None:
    stratum = Stratum("100mbit", 512, "busy", "low", "zh")
    assert stratum.name == "100mbit/512/busy/low/zh"
    assert Stratum.parse(stratum.name) == stratum


# Exact sizes by the noncentral t distribution, as statistical packages give them (two-sided, alpha
# 0.05, power 0.8): J. Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, table
# 2.4.1, gives 64 in each group for d = 0.5 and 26 for 0.8.
def test_sizes_are_those_of_the_t_test() -> None:
    def of(d: float) -> Power:
        return Power(effect_relative=d, sd_relative=1.0, power=0.8)

    assert sessions_needed(of(0.5 / 2**0.5)) == 64
    assert sessions_needed(of(0.8 / 2**0.5)) == 26
    assert pairs_needed(of(0.5)) == 34
    assert pairs_needed(of(0.2)) == 199
    assert pairs_needed(of(0.5), tests=10) > pairs_needed(of(0.5))


def test_sizes_against_a_library() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    for d in (0.3, 0.7, 1.0):
        for level in (0.8, 0.95):
            exact = power.TTestPower().solve_power(d, alpha=0.05, power=level)
            ours = pairs_needed(Power(effect_relative=d, sd_relative=1.0, power=level))
            assert abs(ours - exact) <= 1.0


def test_what_is_asked_beside_what_is_needed() -> None:
    plan = load_plan(content(power={"effect_relative": 0.3, "sd_relative": 0.1}))
    (found,) = sizes(plan)
    assert (found.arm, found.design, found.strata, found.asked) == ("relay", "paired", 2, 6)
    assert found.needed <= found.needed_holm
    assert found.enough == (found.asked >= found.needed_holm)


def test_turns_of_a_session_count_for_what_they_tell_anew() -> None:
    def needed(turns: int, correlation: float) -> int:
        power = Power(effect_relative=0.1, sd_relative=0.3, turn_correlation=correlation)
        return sessions_needed(power, turns=turns)

    alone = needed(1, 0.5)
    assert needed(4, 1.0) == alone  # the same again
    assert needed(4, 0.0) == pytest.approx(alone / 4, abs=2)  # as good as other sessions
    assert needed(4, 0.0) < needed(4, 0.5) < alone


def test_strata_of_an_arm_in_several_entries_are_one_family() -> None:
    both = {"link": ["same-node", "100mbit"], "similarity": ["high"]}
    near, far = "same-node/512/idle/high/en", "100mbit/512/idle/high/en"
    one = [{**SESSIONS, "name": name} for name in ("recompute", "relay")]
    apart = [{**arm, "strata": [stratum]} for arm in one for stratum in (near, far)]
    (whole,) = sizes(load_plan(content(arms=one, strata=factors(**both))))
    parts = sizes(load_plan(content(arms=apart, strata=factors(**both))))
    assert {part.needed_holm for part in parts} == {whole.needed_holm}
    assert [(part.strata, part.turns) for part in parts] == [(1, 2)] * 2


@pytest.mark.parametrize(
    ("shape", "turns", "back"),
    [
        ("pipeline", 3, True),
        ("pipeline", 2, False),
        ("fan_out", 5, False),
        ("shared_document", 3, True),
    ],
)
def test_some_sessions_relay_back_to_a(shape: str, turns: int, back: bool) -> None:
    arm = {**SESSIONS, "session_shape": shape, "turns": turns}
    assert load_plan(content(arms=[arm])).goes_back() == back
    assert not load_plan(content()).goes_back()  # no sessions at all
