import random
from dataclasses import replace
from typing import Any

import pytest
from worlds import MBIT_100, MBIT_200, UNSHAPED, World

from kvrelay.policies import (
    Arm,
    Candidate,
    CostPolicy,
    Costs,
    Reason,
    RelayView,
    Work,
    parse_policy,
)
from kvrelay.policies.cost import FALLBACK_MIN_TOKENS, UNSURE_EXPLORATION

SEEDS = range(12)
THRESHOLDS = [64, 256, 512, 1024, 1280, 1536, 1792, 2048, 4096]
WITHIN = 20  # requests after which decisions have to be right again


def experienced(rng: random.Random, bytes_per_s: float, requests: int = 150) -> Costs:
    """Costs of an engine that has taken both arms in such a world."""
    world = World(rng, bytes_per_s)
    always, never = parse_policy("always"), parse_policy("never")
    for _ in range(requests):
        world.serve(rng.choice([always, never]), world.view())
    return world.costs


def wrong(costs: Costs, relay: float, prefill: float) -> Costs:
    """The same, with coefficients off by these factors."""
    state: dict[str, Any] = costs.to_dict()
    state["prefill"]["coefficients"] = [prefill * v for v in state["prefill"]["coefficients"]]
    for load in state["loads"]:
        load["coefficients"] = [relay * v for v in load["coefficients"]]
    restored = Costs(step_tokens=8192)
    restored.restore(state)
    return restored


# Coefficients that are wrong, and links that change


@pytest.mark.parametrize(("relay", "prefill"), [(5, 1), (0.2, 1), (1, 5), (1, 0.2), (5, 0.2)])
@pytest.mark.parametrize("seed", SEEDS)
def test_coefficients_wrong_by_five_are_right_within_20_requests(
    relay: float, prefill: float, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(rng, MBIT_200, wrong(experienced(rng, MBIT_200), relay, prefill))
    policy = CostPolicy(world.costs)
    for _ in range(WITHIN):
        world.serve(policy, world.view())
    right, regret = world.scored(policy, 60)
    assert right >= 0.95
    assert regret <= 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_degrades_is_noticed_within_20_requests(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng, UNSHAPED, experienced(rng, UNSHAPED))
    policy = CostPolicy(world.costs)
    assert world.scored(policy, 100)[0] == 1.0
    world.bytes_per_s = MBIT_100
    for _ in range(WITHIN):
        world.serve(policy, world.view())
    right, regret = world.scored(policy, 60)
    assert right >= 0.95
    assert regret <= 0.05


@pytest.mark.parametrize("tokens", THRESHOLDS)
def test_no_constant_threshold_does_either(tokens: int) -> None:
    policy = parse_policy(f"min_tokens:{tokens}")
    world = World(random.Random(1), MBIT_200)
    right, regret = world.scored(policy, 400)
    assert right < 0.9
    assert regret > 0.05
    scores = []
    for world.bytes_per_s in (UNSHAPED, MBIT_100):
        scores.append(world.scored(policy, 400))
    assert min(right for right, _ in scores) < 0.9
    assert max(regret for _, regret in scores) > 0.05


def test_chance_takes_little_once_costs_are_known() -> None:
    rng = random.Random(1)
    world = World(rng, MBIT_200)
    policy = CostPolicy(world.costs)
    decisions = [world.serve(policy, world.view()) for _ in range(1000)]
    later = decisions[50:]
    assert sum(decision.uncalibrated for decision in later) < 0.05 * len(later)
    assert sum(decision.explored for decision in later) < 0.04 * len(later)
    right, regret = world.scored(policy, 200)
    assert right >= 0.97
    assert regret <= 0.03


def test_a_link_that_recovers_is_noticed_by_exploration() -> None:
    rng = random.Random(2)
    world = World(rng, MBIT_100, experienced(rng, MBIT_100))
    policy = CostPolicy(world.costs, exploration=0.05)
    world.scored(policy, 60)
    world.bytes_per_s = UNSHAPED
    for _ in range(400):
        world.serve(policy, world.view())
    assert world.scored(policy, 100)[0] >= 0.95


# One decision


def known(rng: random.Random | None = None, bytes_per_s: float = 100e6) -> Costs:
    return experienced(rng or random.Random(3), bytes_per_s)


VIEW = RelayView(
    prompt_tokens=1568,
    local_tokens=0,
    candidates=(Candidate("nodes", 1536, 36_000_000, 36_000_000),),
)


def test_it_says_what_it_expects_of_both_arms() -> None:
    decision = CostPolicy(known()).decide(VIEW)
    assert (decision.arm, decision.reason) == (Arm.RELAY, Reason.RELAYED)
    assert decision.relay_s == pytest.approx(0.02 + 0.36 + 0.14, rel=0.2)
    assert decision.recompute_s == pytest.approx(0.096 + 0.94 + 0.565, rel=0.2)
    assert decision.relay_p5_s < decision.relay_s < decision.relay_p75_s < decision.relay_p95_s
    assert decision.recompute_p5_s < decision.recompute_s < decision.recompute_p95_s
    assert decision.load_p95_s < decision.relay_p95_s
    assert not decision.uncalibrated
    assert not decision.explored


def test_it_is_a_function_of_the_view() -> None:
    policy = CostPolicy(known())
    assert policy.decide(VIEW) == policy.decide(VIEW)


def test_the_cheaper_arm_has_the_rest_of_the_probability() -> None:
    policy = CostPolicy(known(), exploration=0.1)
    by_chance, chosen = (policy.decide(replace(VIEW, draw=draw)) for draw in (0.901, 0.899))
    assert (chosen.arm, chosen.propensity, chosen.explored) == (Arm.RELAY, 0.9, False)
    assert (by_chance.arm, by_chance.propensity) == (Arm.RECOMPUTE, 0.1)
    assert by_chance.reason is Reason.EXPLORED
    assert by_chance.explored
    assert chosen.preferred is by_chance.preferred is Arm.RELAY
    held = policy.decide(replace(VIEW, draw=0.05))
    assert (held.arm, held.propensity, held.explored) == (Arm.RELAY, 0.9, False)


def test_without_exploration_nothing_is_left_to_chance() -> None:
    for costs in (known(), Costs()):
        decision = CostPolicy(costs, exploration=0).decide(replace(VIEW, draw=0.0))
        assert (decision.arm, decision.propensity) == (Arm.RELAY, 1.0)


def test_what_is_cheaper_to_compute_is_computed() -> None:
    decision = CostPolicy(known(bytes_per_s=MBIT_100)).decide(VIEW)
    assert (decision.arm, decision.reason) == (Arm.RECOMPUTE, Reason.CHEAPER_TO_RECOMPUTE)
    assert decision.num_tokens == 0


@pytest.mark.parametrize(
    ("tokens", "arm", "reason"),
    [
        (FALLBACK_MIN_TOKENS, Arm.RELAY, Reason.RELAYED),
        (FALLBACK_MIN_TOKENS - 1, Arm.RECOMPUTE, Reason.UNCALIBRATED),
    ],
)
def test_a_fixed_rule_decides_while_nothing_is_known(tokens: int, arm: Arm, reason: Reason) -> None:
    view = replace(VIEW, candidates=(Candidate("nodes", tokens, 10**7, 10**7),))
    wanted = CostPolicy(Costs()).prefer(view)
    decision = wanted.decision
    assert (decision.arm, decision.reason, decision.uncalibrated) == (arm, reason, True)
    assert (wanted.share, wanted.relay_tokens) == (1.0, tokens)
    relays, other = (CostPolicy(Costs()).decide(replace(view, draw=draw)) for draw in (0.2, 0.7))
    assert (relays.arm, other.arm) == (Arm.RELAY, Arm.RECOMPUTE)
    assert {relays.explored, other.explored} == {False, True}
    assert relays.propensity == other.propensity == UNSURE_EXPLORATION


def test_the_part_is_taken_that_is_worth_it() -> None:
    """What lies in the arena is quickly there, what would have to come besides is not."""
    costs = known(bytes_per_s=5e6)
    for _ in range(20):
        costs.observe_load(("arena",), 30_000_000, 0, 0.02)
    view = replace(
        VIEW,
        candidates=(
            Candidate("nodes", 1536, 36_000_000, 12_000_000),
            Candidate("arena", 1024, 24_000_000),
        ),
    )
    decision = CostPolicy(costs).decide(view)
    assert (decision.arm, decision.num_tokens) == (Arm.RELAY, 1024)


def test_only_what_is_known_competes_with_all_that_is_held() -> None:
    """The arena has never been loaded from; the other nodes' way is known."""
    candidates = (*VIEW.candidates, Candidate("arena", 1024, 24_000_000))
    decision = CostPolicy(known()).decide(replace(VIEW, candidates=candidates))
    assert (decision.uncalibrated, decision.num_tokens) == (False, 1536)


def test_what_wins_however_long_it_takes_is_not_in_doubt() -> None:
    """Nothing was ever loaded from here; that matters only where a load could lose."""
    near, far = Candidate("arena", 1536, 36_000_000), Candidate("encoded", 1536, 360_000_000)
    policy = CostPolicy(known())
    wins, may_lose = (policy.prefer(replace(VIEW, candidates=(each,))) for each in (near, far))
    assert (wins.decision.arm, wins.decision.uncalibrated) == (Arm.RELAY, False)
    assert may_lose.decision.uncalibrated


def test_requests_behind_make_a_saved_prefill_worth_more() -> None:
    costs = known(bytes_per_s=20e6)  # relay takes longer, by a little
    decide = CostPolicy(costs, queue_weight=0.5).decide
    assert decide(replace(VIEW, requests_waiting=1)).arm is Arm.RECOMPUTE
    assert decide(replace(VIEW, requests_waiting=6)).arm is Arm.RELAY
    unweighted = CostPolicy(costs, queue_weight=0.0).decide
    assert unweighted(replace(VIEW, requests_waiting=6)).arm is Arm.RECOMPUTE


def test_a_load_uses_the_time_that_others_compute() -> None:
    costs = known(bytes_per_s=20e6)
    busy = replace(VIEW, ahead=Work.of(0, 20_000))
    decision = CostPolicy(costs).decide(busy)
    assert decision.arm is Arm.RELAY
    assert decision.recompute_s > 10
    idle = CostPolicy(costs).decide(VIEW)
    assert decision.relay_s > idle.relay_s


@pytest.mark.parametrize("parameters", [{"exploration": -0.1}, {"exploration": 0.6}])
def test_impossible_parameters_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="exploration"):
        CostPolicy(Costs(), **parameters)
    with pytest.raises(ValueError, match="queue_weight"):
        CostPolicy(Costs(), queue_weight=-1.0)


def test_what_is_preferred_does_not_depend_on_the_lot() -> None:
    policy = CostPolicy(known(), exploration=0.5)
    wanted = [policy.prefer(replace(VIEW, draw=draw)) for draw in (0.0, 0.5, 0.999)]
    assert wanted[0] == wanted[1] == wanted[2]
    assert (wanted[0].decision.arm, wanted[0].decision.propensity) == (Arm.RELAY, 1.0)
