"""Lots in the connector: who is given one, and what its outcome does to later ones and metrics."""

import logging
import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from kvrelay.policies import Arm, Candidate, Costs, Decision, Reason, RelayView, Work, parse_policy
from kvrelay.policies.assignment import Switchback
from kvrelay.policies.payoff import OVERALL
from kvrelay.relay.connector.audit import Audit
from kvrelay.relay.connector.view import draw_for
from kvrelay.relay.record import RelayRecord
from kvrelay.relay.settings import RelaySettings

NOW_S = 1.8e9
VIEW = RelayView(1056, 0, (Candidate("nodes", 1024, 24_000_000, 24_000_000),))
STRATUM = "nodes/512-2k/>=90%"
RECOMPUTE_S, RELAY_S = 0.6, 0.1


def audit(**settings: Any) -> Audit:
    """Of a policy that knows what both arms take, and prefers to relay."""
    costs = Costs(step_tokens=8192)
    for number in range(1, 30):
        costs.observe_step(Work.of(0, 40 * number), RECOMPUTE_S * 40 * number / 1056)
        costs.observe_load(("nodes",), 10**6 * number, 0, RELAY_S * number / 24)
    chosen = RelaySettings(policy="cost", **settings)
    return Audit(parse_policy("cost", costs, chosen.exploration), chosen)


def record(number: int, decision: Decision, first_token_s: float | None) -> dict[str, Any]:
    return RelayRecord(
        agent="a",
        policy="cost",
        mode="auto",
        decision=decision,
        reason=decision.reason,
        prompt_tokens=VIEW.prompt_tokens,
        local_tokens=0,
        recomputed_tokens=VIEW.prompt_tokens - decision.num_tokens,
        relayed_tokens=decision.num_tokens,
        found_place="nodes",
        shared_prefix_fraction=1024 / 1056,
        first_token_s=first_token_s,
        request_id=f"r{number}",
        time_s=NOW_S + number,
    ).to_dict()


def serve(audit: Audit, count: int, relay_s: float, start: int = 0) -> list[Decision]:
    """Requests one a second, each with a draw of its own."""
    rng, decisions = random.Random(start), []
    for number in range(start, start + count):
        decision = audit.decide(replace(VIEW, draw=rng.random()), NOW_S + number)
        mean_s = relay_s if decision.arm is Arm.RELAY else RECOMPUTE_S
        audit.observe(record(number, decision, mean_s * rng.lognormvariate(0.0, 0.1)))
        decisions.append(decision)
    return decisions


def test_one_percent_of_sessions_get_the_other_arm_by_default() -> None:
    lots = audit()
    kept, other = (lots.decide(replace(VIEW, draw=draw), NOW_S) for draw in (0.985, 0.995))
    assert (kept.arm, kept.propensity, kept.preferred) == (Arm.RELAY, 0.99, Arm.RELAY)
    assert (other.arm, other.reason) == (Arm.RECOMPUTE, Reason.EXPLORED)
    assert other.propensity == pytest.approx(0.01)


def test_without_exploration_nobody_does_and_nothing_is_learnt() -> None:
    lots = audit(exploration=0.0)
    decisions = serve(lots, 300, relay_s=9.0)
    assert {(each.arm, each.propensity) for each in decisions} == {(Arm.RELAY, 1.0)}
    assert lots.take() == {}


def test_a_session_keeps_its_draw_and_a_request_without_one_stands_for_itself() -> None:
    assert draw_for("s", b"salt") == draw_for("s", b"salt")
    assert len({draw_for(f"s{i}", b"salt") for i in range(100)}) == 100
    assert draw_for(None, b"salt") != draw_for(None, b"salt")


def test_a_stratum_that_loses_is_recomputed_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lots = audit(exploration=0.1)
    with caplog.at_level(logging.WARNING):
        decisions = serve(lots, 1000, relay_s=1.5)
    reasons = [each.reason for each in decisions]
    off_at = reasons.index(Reason.STRATUM_OFF)
    assert reasons[off_at : off_at + 300].count(Reason.STRATUM_OFF) > 200
    assert decisions[off_at].preferred is Arm.RELAY
    assert [r.args for r in caplog.records][:2] == [(STRATUM, "off"), (STRATUM, "trial")]
    # The world has changed: the next trial sees it.
    serve(lots, 4000, relay_s=0.05, start=1000)
    assert caplog.records[-1].args == (STRATUM, "on")
    assert lots.decide(VIEW, NOW_S + 5000).arm is Arm.RELAY


def test_what_relay_saves_is_told_once() -> None:
    lots = audit(exploration=0.5)
    serve(lots, 400, relay_s=0.1)
    told = lots.take()
    assert told.keys() == {OVERALL, STRATUM}
    saving_s, lower_s, upper_s, requests, is_off = told[STRATUM]
    assert lower_s < 0.5 < upper_s
    assert saving_s == pytest.approx(0.5, abs=0.05)
    assert (requests, is_off) == (400, False)
    assert told[OVERALL] == [saving_s, lower_s, upper_s, 400, None]
    assert lots.take() == {}


def test_what_turns_a_stratum_off_is_told() -> None:
    lots = audit(exploration=0.1)
    for number in range(1000):
        serve(lots, 1, relay_s=1.5, start=number)
        saving_s, _, upper_s, _, is_off = lots.take()[STRATUM]
        if is_off:
            break
    assert saving_s < upper_s < 0.0


def test_a_saving_without_interval_is_not_told() -> None:
    lots = audit(exploration=0.1)
    serve(lots, 2, relay_s=0.1)
    assert lots.take()[STRATUM] == [None, None, None, 2, False]


def test_requests_without_first_token_or_lot_say_nothing() -> None:
    lots = audit(exploration=0.1)
    decision = lots.decide(VIEW, NOW_S)
    lots.observe(record(1, decision, None))
    lots.observe(record(2, replace(decision, propensity=1.0), 0.5))
    assert lots.take() == {}


def test_other_policies_decide_alone() -> None:
    lots = Audit(parse_policy("always"), RelaySettings())
    decision = lots.decide(replace(VIEW, draw=0.999), NOW_S)
    assert (decision.arm, decision.propensity, decision.preferred) == (Arm.RELAY, 1.0, None)
    lots.observe(record(1, decision, 0.1))
    assert lots.take() == {}


def test_all_engines_have_one_arm_at_a_time_on_request() -> None:
    """Whatever else differs between them: models, sessions, exploration."""
    plan = Switchback.of_cluster(60.0)
    engines = [audit(switchback_s=60.0), audit(switchback_s=60.0, exploration=0.0)]
    seen = set()
    for time_s in (NOW_S + 20.0 * number for number in range(60)):
        found = {
            (decision.arm, decision.switchback_pair, decision.propensity)
            for engine in engines
            for decision in (
                engine.decide(replace(VIEW, draw=draw), time_s) for draw in (0.0, 0.5, 0.999)
            )
        }
        assert found == {(plan.arm(time_s), plan.pair(time_s), 0.5)}
        seen |= found
    assert len(seen) == 20


def test_a_fault_ends_the_audit_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    lots = audit(exploration=0.1)
    decision = lots.decide(VIEW, NOW_S)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            lots.observe(record(1, decision, 0.1) | {"time_s": -1.0})
    assert len(caplog.records) == 1
    assert lots.take() == {}
    later = lots.decide(replace(VIEW, draw=0.95), NOW_S)
    assert (later.arm, later.propensity) == (Arm.RECOMPUTE, pytest.approx(0.1))


def test_a_record_takes_little_of_the_scheduler_thread() -> None:
    """Tens of microseconds; the fastest of some rounds, since others may have the core."""
    lots = audit(exploration=0.01)
    decision = lots.decide(VIEW, NOW_S)
    records = [record(number, decision, 0.1) for number in range(1200)]
    fastest_s = math.inf
    for start in range(0, 1200, 100):
        begun_s = time.thread_time()
        for each in records[start : start + 100]:
            lots.observe(each)
        fastest_s = min(fastest_s, (time.thread_time() - begun_s) / 100)
    assert fastest_s < 500e-6
