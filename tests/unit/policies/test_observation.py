"""Decision records as observations."""

from dataclasses import replace
from typing import Any

import pytest

from kvrelay.policies.assignment import Switchback
from kvrelay.policies.decision import Arm
from kvrelay.policies.observation import in_block, observation


def record(**changed: Any) -> dict[str, Any]:
    decision = {"arm": "relay", "propensity": 0.995, "relay_s": 0.1, "recompute_s": 0.5}
    decision |= changed.pop("decision", {})
    plain = {
        "time_s": 100.0,
        "session_id": "s",
        "first_token_s": 0.2,
        "load_path": "nodes",
        "found_place": "nodes",
        "prompt_tokens": 1000,
        "shared_prefix_fraction": 0.95,
    }
    return plain | {"decision": decision} | changed


def test_a_record_is_read() -> None:
    seen = observation(record())
    assert seen is not None
    assert (seen.arm, seen.preferred, seen.propensity) == (Arm.RELAY, Arm.RELAY, 0.995)
    assert (seen.first_token_s, seen.relay_s, seen.recompute_s) == (0.2, 0.1, 0.5)
    assert seen.stratum.label == "nodes/512-2k/>=90%"


def test_where_the_bytes_came_from_in_the_end_makes_no_stratum() -> None:
    relayed = observation(record(place=None))
    recomputed = observation(record(place=None, load_path=None))
    assert relayed is not None and recomputed is not None
    assert relayed.stratum == recomputed.stratum


@pytest.mark.parametrize("changed", [{"decision": {"propensity": 1.0}}, {"first_token_s": None}])
def test_what_was_not_drawn_or_has_no_outcome_is_left_out(changed: dict[str, Any]) -> None:
    assert observation(record(**changed)) is None


@pytest.mark.parametrize(
    ("decision", "preferred"),
    [
        ({"arm": "recompute", "propensity": 0.005}, Arm.RELAY),
        ({"arm": "recompute", "propensity": 0.995}, Arm.RECOMPUTE),
        ({"arm": "relay", "propensity": 0.1, "preferred": "relay"}, Arm.RELAY),
        ({"propensity": 0.5}, None),
    ],
)
def test_what_the_policy_preferred(decision: dict[str, Any], preferred: Arm | None) -> None:
    seen = observation(record(decision=decision))
    assert seen is not None and seen.preferred is preferred


def test_a_request_without_session_stands_for_itself() -> None:
    seen = observation(record(session_id=None, request_id="r-1"))
    assert seen is not None and seen.session == "r-1"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"decision": {"propensity": 0.0}}, "propensity"),
        ({"decision": {"propensity": 1.5}}, "propensity"),
        ({"decision": {"arm": "both"}}, "both"),
        ({"decision": {"relay_s": float("nan")}}, "relay_s"),
        ({"first_token_s": -1.0}, "first_token_s"),
        ({"time_s": None}, "another form"),
        ({"session_id": None}, "request_id"),
        ({"decision": None}, "another form"),
    ],
)
def test_a_bad_record_is_named(changed: dict[str, Any], named: str) -> None:
    whole = record(**changed) if changed.get("decision", {}) is not None else record() | changed
    with pytest.raises(ValueError, match=named):
        observation(whole)


def test_a_block_is_a_cluster_of_its_own() -> None:
    plan = Switchback(3, 60.0, 20.0)
    time_s = 600.0 + 30.0
    arm = plan.arm(time_s)
    told = {"arm": str(arm), "switchback_pair": 5}
    seen = observation(record(time_s=time_s, decision=told))
    assert seen is not None
    inside = in_block(seen, plan)
    assert inside is not None
    assert (inside.session, inside.propensity, inside.arm) == ("pair 5", 0.5, arm)
    assert in_block(replace(seen, pair=None), plan) is None, "its session was drawn"
    assert in_block(replace(seen, pair=6), plan) is None, "of another plan"
    burning = observation(record(time_s=610.0, decision=told))
    other = observation(record(time_s=time_s + 60.0, decision=told))
    assert burning is not None and in_block(burning, plan) is None
    assert other is not None and in_block(other, plan) is None
