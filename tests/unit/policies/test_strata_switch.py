"""A stratum that loses turns itself off, and comes back when the world has changed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvrelay.policies import Arm, Candidate, Decision, Reason, RelayView
from kvrelay.policies.assignment import Preference, Switchback
from kvrelay.policies.payoff import OVERALL
from kvrelay.policies.strata import stratum_of
from kvrelay.policies.strata_switch import Stage, Standing, StrataSwitch, SwitchSettings

VIEW = RelayView(1056, 0, (Candidate("nodes", 1024, 1 << 20),))
NEAR = replace(VIEW, candidates=(Candidate("arena", 1024, 1 << 20),))
PREDICTED = {"relay_s": 0.3, "recompute_s": 0.6}
RELAYS = Preference(Decision(Arm.RELAY, Reason.RELAYED, 1024, **PREDICTED), 1024)
RECOMPUTES = Preference(
    Decision(Arm.RECOMPUTE, Reason.CHEAPER_TO_RECOMPUTE, **PREDICTED), relay_tokens=512
)
SETTINGS = SwitchSettings(epsilon=0.1)


def record(view: RelayView, time_s: float, decision: Decision, ttft_s: float) -> dict[str, Any]:
    held = view.local_tokens + view.candidates[0].num_tokens
    return {
        "time_s": time_s,
        "session_id": f"{time_s}",
        "first_token_s": ttft_s,
        "prompt_tokens": view.prompt_tokens,
        "shared_prefix_fraction": held / view.prompt_tokens,
        "found_place": view.candidates[0].place,
        "decision": {
            "arm": str(decision.arm),
            "propensity": decision.propensity,
            "preferred": str(decision.preferred),
            "relay_s": decision.relay_s,
            "recompute_s": decision.recompute_s,
            "switchback_pair": decision.switchback_pair,
        },
    }


class Loop:
    """Requests one a second, whose arms the switch draws."""

    def __init__(
        self, seed: int, settings: SwitchSettings = SETTINGS, plan: Switchback | None = None
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.switch = StrataSwitch(settings, plan)
        self.told: dict[str, Standing] = {}
        self.now_s = 0.0
        self.reasons: list[Reason] = []

    def run(
        self, count: int, relay_s: float, *, view: RelayView = VIEW, until: Stage | None = None
    ) -> bool:
        """Requests that take 0.6 s recomputed and `relay_s` relayed; whether `until` came."""
        for _ in range(count):
            self.now_s += 1.0
            draw = float(self.rng.random())
            decision = self.switch.decide(view, RELAYS, draw, self.now_s)
            self.reasons.append(decision.reason)
            mean_s = relay_s if decision.arm is Arm.RELAY else 0.6
            ttft_s = mean_s * float(self.rng.lognormal(-0.08, 0.4))
            self.told |= self.switch.observe(record(view, self.now_s, decision, ttft_s))
            if until is not None and self.stage(view) is until:
                return True
        return False

    def stage(self, view: RelayView = VIEW) -> Stage:
        return self.switch.stages()[stratum_of(view).label]


def test_a_losing_stratum_is_turned_off_and_comes_back_when_the_world_changes() -> None:
    loop = Loop(1)
    assert loop.run(6000, relay_s=1.2, until=Stage.OFF)
    off_at = len(loop.reasons)
    loop.run(4000, relay_s=1.2)
    assert loop.stage() is not Stage.ON
    while_off = loop.reasons[off_at:]
    assert while_off.count(Reason.STRATUM_OFF) > 0.85 * len(while_off)
    assert loop.run(10_000, relay_s=0.15, until=Stage.ON)
    back_at = len(loop.reasons)
    loop.run(2000, relay_s=0.15)
    assert loop.stage() is Stage.ON
    assert loop.reasons[back_at:].count(Reason.RELAYED) > 0.9 * 2000


def test_waits_grow_while_it_goes_on_losing() -> None:
    loop = Loop(2)
    assert loop.run(6000, relay_s=1.5, until=Stage.OFF)
    waits, started_s, stage = [], loop.now_s, Stage.OFF
    for _ in range(12_000):
        loop.run(1, relay_s=1.5)
        if loop.stage() is not stage:
            stage = loop.stage()
            if stage is Stage.TRIAL:
                waits.append(loop.now_s - started_s)
            started_s = loop.now_s
    assert len(waits) >= 3
    assert waits[:3] == pytest.approx([600.0, 1200.0, 2400.0], abs=2.0)


def test_a_stratum_that_pays_stays_on() -> None:
    for seed in range(5):
        loop = Loop(seed)
        assert not loop.run(3000, relay_s=0.3, until=Stage.OFF)


def test_strata_are_switched_one_by_one() -> None:
    loop = Loop(3)
    for _ in range(3000):
        loop.run(1, relay_s=1.5)
        loop.run(1, relay_s=0.1, view=NEAR)
    assert loop.stage() is not Stage.ON
    assert loop.stage(NEAR) is Stage.ON
    near = loop.told[stratum_of(NEAR).label]
    assert near.estimate.lower_s > 0.0
    assert near.stage is Stage.ON
    assert loop.told[stratum_of(VIEW).label].stage is loop.stage()
    overall = loop.told[OVERALL]
    assert (overall.stage, overall.estimate.requests) == (None, 6000)


def test_a_trial_without_an_answer_ends_without_relay() -> None:
    loop = Loop(4, SwitchSettings(epsilon=0.1, trial_sessions=300))
    assert loop.run(6000, relay_s=1.2, until=Stage.OFF)
    assert loop.run(700, relay_s=0.6, until=Stage.TRIAL)
    assert loop.run(302, relay_s=0.6, until=Stage.OFF)


def test_without_draws_nothing_is_turned_off() -> None:
    loop = Loop(5, SwitchSettings(epsilon=0.0))
    loop.run(500, relay_s=9.0)
    assert loop.switch.stages() == {}
    assert set(loop.reasons) == {Reason.RELAYED}


def test_requests_that_the_policy_would_recompute_are_not_held_against_it() -> None:
    rng = np.random.default_rng(6)
    switch = StrataSwitch(SETTINGS)
    for i in range(4000):
        decision = switch.decide(VIEW, RECOMPUTES, float(rng.random()), float(i))
        ttft_s = 5.0 if decision.arm is Arm.RELAY else 0.6
        told = switch.observe(record(VIEW, float(i), decision, ttft_s))
        assert OVERALL not in told
    assert set(switch.stages().values()) == {Stage.ON}


def test_decisions_say_what_the_lot_made_of_them() -> None:
    switch = StrataSwitch(SETTINGS)
    kept = switch.decide(VIEW, RELAYS, 0.5, 0.0)
    assert (kept.arm, kept.propensity, kept.preferred) == (Arm.RELAY, 0.95, Arm.RELAY)
    assert (kept.reason, kept.num_tokens) == (Reason.RELAYED, 1024)
    lot = switch.decide(VIEW, RELAYS, 0.99, 0.0)
    assert (lot.arm, lot.reason, lot.num_tokens) == (Arm.RECOMPUTE, Reason.EXPLORED, 0)
    assert (lot.propensity, lot.preferred, lot.relay_s) == (0.05, Arm.RELAY, 0.3)
    other = switch.decide(VIEW, RECOMPUTES, 0.01, 0.0)
    assert (other.arm, other.reason, other.num_tokens) == (Arm.RELAY, Reason.RELAYED, 512)
    assert (other.propensity, other.preferred) == (0.05, Arm.RECOMPUTE)
    stays = switch.decide(VIEW, RECOMPUTES, 0.5, 0.0)
    assert (stays.reason, stays.propensity) == (Reason.CHEAPER_TO_RECOMPUTE, 0.95)
    explored = [each.explored for each in (kept, lot, other, stays)]
    assert explored == [False, True, True, False]


# How sure the policy is


UNSURE = replace(RELAYS, share=1.0)


def test_a_policy_that_is_unsure_has_the_lot_decide_more_often() -> None:
    switch = StrataSwitch(SETTINGS)
    low, high = (switch.decide(VIEW, UNSURE, draw, 0.0) for draw in (0.3, 0.7))
    assert (low.arm, high.arm) == (Arm.RELAY, Arm.RECOMPUTE)
    assert low.propensity == high.propensity == 0.5
    assert (low.explored, high.reason) == (False, Reason.EXPLORED)


def test_where_relay_was_seen_to_lose_doubt_does_not_bring_it_back() -> None:
    loop = Loop(1)
    assert loop.run(6000, relay_s=1.2, until=Stage.OFF)
    for draw in (0.06, 0.5, 0.94):
        decision = loop.switch.decide(VIEW, UNSURE, draw, loop.now_s)
        assert (decision.arm, decision.reason) == (Arm.RECOMPUTE, Reason.STRATUM_OFF)
        assert (decision.propensity, decision.preferred) == (0.95, Arm.RELAY)
        assert not decision.explored
    tried = loop.switch.decide(VIEW, UNSURE, 0.04, loop.now_s)
    assert (tried.arm, tried.propensity, tried.explored) == (Arm.RELAY, 0.05, True)


# Blocks of the whole cluster


PLAN = Switchback.of_cluster(40.0)


@pytest.mark.parametrize("wanted", [RELAYS, RECOMPUTES])
def test_in_a_block_all_have_one_arm(wanted: Preference) -> None:
    switch = StrataSwitch(SETTINGS, PLAN)
    for time_s in (5.0, 45.0, 85.0, 125.0, 1e9):
        found = [switch.decide(VIEW, wanted, draw, time_s) for draw in (0.0, 0.5, 0.999)]
        assert found[0] == found[1] == found[2]
        decision = found[0]
        assert (decision.arm, decision.propensity) == (PLAN.arm(time_s), 0.5)
        assert decision.switchback_pair == PLAN.pair(time_s)
        assert decision.preferred is wanted.decision.arm
        if decision.arm is not Arm.RELAY:
            mine = wanted.decision.arm is Arm.RECOMPUTE
            reason = Reason.CHEAPER_TO_RECOMPUTE if mine else Reason.SWITCHBACK
            assert decision.reason is reason


def test_blocks_are_compared_and_nothing_is_switched() -> None:
    loop = Loop(7, SwitchSettings(epsilon=0.0), PLAN)
    loop.run(6000, relay_s=1.2)
    assert loop.stage() is Stage.ON
    estimate = loop.told[OVERALL].estimate
    assert estimate.sessions == 75, "pairs of blocks"
    assert estimate.requests == pytest.approx(4500, abs=10), "but for their burn-in"
    assert estimate.lower_s < -0.6 < estimate.upper_s < 0.0


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 1.5}, {"trial_share": 0.0}, {"first_wait_s": 0.0}, {"max_wait_s": 1.0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SwitchSettings(**wrong)  # type: ignore[arg-type]
