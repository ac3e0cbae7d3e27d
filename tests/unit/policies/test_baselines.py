from dataclasses import replace

import pytest

from kvrelay.policies import Arm, Candidate, Decision, Reason, RelayView, parse_policy


def view(num_tokens: int) -> RelayView:
    return RelayView(
        prompt_tokens=num_tokens + 1,
        local_tokens=0,
        candidates=(Candidate("arena", num_tokens, num_tokens * 10),),
    )


def test_always_takes_everything() -> None:
    assert parse_policy("always").decide(view(5)) == Decision(Arm.RELAY, Reason.RELAYED, 5)


def test_never_refuses_with_its_reason() -> None:
    decision = parse_policy("never").decide(view(5000))
    assert (decision.arm, decision.reason) == (Arm.RECOMPUTE, Reason.POLICY_NEVER)


@pytest.mark.parametrize(("tokens", "arm"), [(255, Arm.RECOMPUTE), (256, Arm.RELAY)])
def test_min_tokens_has_its_threshold_inclusive(tokens: int, arm: Arm) -> None:
    assert parse_policy("min_tokens:256").decide(view(tokens)).arm is arm


@pytest.mark.parametrize("loads", [7, 8])
def test_floor_and_queue_has_a_threshold_and_a_cap(loads: int) -> None:
    policy = parse_policy("floor_and_queue:1024,8")
    assert policy.decide(view(1023)).reason is Reason.TOO_FEW_TOKENS
    decision = policy.decide(replace(view(1024), loads_in_flight=loads))
    if loads < 8:
        assert (decision.arm, decision.num_tokens) == (Arm.RELAY, 1024)
    else:
        assert decision.reason is Reason.TOO_MANY_LOADS


@pytest.mark.parametrize(
    "text",
    [
        *("always", "never", "min_tokens:64", "floor_and_queue:1024,8", "cost"),
        *("similarity:0.85,0.90", "similarity:0.855,1.00"),
    ],
)
def test_name_round_trips(text: str) -> None:
    assert parse_policy(text).name == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "sometimes", "always:1", "cost:1"),
        *("min_tokens", "min_tokens:x", "min_tokens:0", "min_tokens:-1"),
        *("floor_and_queue", "floor_and_queue:1024", "floor_and_queue:0,8"),
        *("floor_and_queue:1024,0", "floor_and_queue:1024,8,1", "floor_and_queue:a,b"),
    ],
)
def test_bad_policies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"policy|min_tokens|max_loads"):
        parse_policy(text)


def test_a_decision_cannot_contradict_itself() -> None:
    with pytest.raises(ValueError, match="num_tokens"):
        Decision(Arm.RELAY, Reason.RELAYED, 0)
    with pytest.raises(ValueError, match="num_tokens"):
        Decision(Arm.RECOMPUTE, Reason.NO_SOURCE, 1)


NEAR, FAR = Candidate("arena", 256, 2560), Candidate("nodes", 512, 5120)


def similar(similarity: float | None, *candidates: Candidate) -> Decision:
    view = RelayView(1000, 0, candidates, similarity=similarity)
    return parse_policy("similarity:0.85,0.90").decide(view)


@pytest.mark.parametrize("similarity", [0.9, 0.95, 1.0])
def test_similar_prompts_are_relayed_from_anywhere(similarity: float) -> None:
    assert similar(similarity, FAR, NEAR) == Decision(Arm.RELAY, Reason.RELAYED, 512)


@pytest.mark.parametrize("similarity", [0.85, 0.899])
@pytest.mark.parametrize("place", ["arena", "encoded"])
def test_less_similar_ones_only_from_this_node(similarity: float, place: str) -> None:
    here = Candidate(place, 256, 2560)
    assert similar(similarity, FAR, here) == Decision(Arm.RELAY, Reason.RELAYED, 256)
    refused = similar(similarity, FAR)
    assert (refused.arm, refused.reason) == (Arm.RECOMPUTE, Reason.DISSIMILAR)


@pytest.mark.parametrize("similarity", [0.0, 0.849])
def test_dissimilar_ones_are_computed_however_much_matches(similarity: float) -> None:
    assert similar(similarity, FAR, NEAR).reason is Reason.DISSIMILAR


def test_without_a_similarity_it_is_not_guessed() -> None:
    refused = similar(None, NEAR)
    assert (refused.arm, refused.reason) == (Arm.RECOMPUTE, Reason.SIMILARITY_UNKNOWN)


@pytest.mark.parametrize(
    "text",
    ["", "0.9", "x,0.9", "0.9,0.85", "-0.1,0.9", "0.85,1.1", "nan,0.9", "0.8,0.85,0.9", "0.8,"],
)
def test_bad_thresholds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="similarity needs"):
        parse_policy(f"similarity:{text}")
