import copy
import json
import math
import random
from typing import Any

import pytest

from kvrelay.policies.costs import MAX_WAYS, SURE_AFTER, Costs
from kvrelay.policies.forecast import NOTHING, Forecast
from kvrelay.policies.prefill import PrefillCost, Work

TRUE = PrefillCost(0.03, 1.5e-3, 4e-7)
NODES = ("nodes",)
NIXL = ("nodes", "n1", "nixl", "tcp", "raw")
PLASMA = ("nodes", "n2", "plasma", "plasma/tcp", "lz4")


def step_s(work: Work) -> float:
    return TRUE.fixed_s + TRUE.per_token_s * work.tokens + TRUE.per_token_squared_s * work.squares


def some_work(rng: random.Random) -> Work:
    return Work.of(rng.choice([0, 1000, 3000]), rng.choice([1, 30, 200, 700, 1500, 2048]))


def taught(rng: random.Random, steps: int = 150, loads: int = 60) -> Costs:
    costs = Costs()
    for _ in range(steps):
        work = some_work(rng)
        costs.observe_step(work, step_s(work) * rng.lognormvariate(0, 0.1))
    for n in range(loads):
        way, rate = (NIXL, 25e6) if n % 2 else (PLASMA, 100e6)
        num_bytes = rng.randrange(1, 20) * 3_000_000
        ahead = rng.choice([0, 0, 30_000_000])
        seconds = 0.02 + (num_bytes + ahead) / rate
        costs.observe_load(way, num_bytes, ahead, seconds * rng.lognormvariate(0, 0.1))
    return costs


def test_work_adds_up() -> None:
    assert Work.of(100, 50) == (50, 150**2 - 100**2)
    assert Work.of(0, 100).plus(Work.of(100, 50)) == Work.of(0, 150)


def test_predictions_are_as_good_as_they_say() -> None:
    rng = random.Random(1)
    costs = taught(rng)
    inside, errors = 0, []
    for _ in range(400):
        work = some_work(rng)
        seconds = step_s(work) * rng.lognormvariate(0, 0.1)
        forecast = costs.prefill(work)
        inside += forecast.p5_s <= seconds <= forecast.p95_s
        errors.append(abs(forecast.p50_s / seconds - 1))
        costs.observe_step(work, seconds)
    assert 0.85 <= inside / 400 <= 0.97
    assert sorted(errors)[200] < 0.12


def test_long_prompts_take_several_steps_and_carry_what_is_decoded_beside_them() -> None:
    costs = Costs(step_tokens=1000)
    one = costs.prefill(Work.of(0, 1000)).p50_s
    two = costs.prefill(Work.of(0, 1001)).p50_s
    assert two - one == pytest.approx(PrefillCost().fixed_s, rel=0.05)
    beside = Work(100, 100 * 5000)
    assert costs.prefill(Work.of(0, 900), beside).p50_s > costs.prefill(Work.of(0, 900)).p50_s
    assert costs.prefill(Work.of(0, 0)) == NOTHING
    assert costs.within_a_step(Work.of(0, 3000)).tokens == 1000
    assert costs.within_a_step(Work.of(0, 30)) == Work.of(0, 30)


def test_nothing_is_sure_until_it_has_been_seen() -> None:
    costs = Costs()
    long = Work.of(0, 2000)
    assert not costs.prefill(long).is_sure
    for _ in range(20 * SURE_AFTER):  # the rest of relayed prompts says nothing about long ones
        costs.observe_step(Work.of(2000, 4), step_s(Work.of(2000, 4)))
    assert costs.prefill(Work.of(2000, 4)).is_sure
    assert not costs.prefill(long).is_sure
    for _ in range(SURE_AFTER):
        costs.observe_step(long, step_s(long))
    assert costs.prefill(long).is_sure
    assert costs.prefill(long).p50_s == pytest.approx(step_s(long), rel=0.1)
    assert not costs.load(NODES, 10**7).is_sure


def test_ways_are_told_apart_as_far_as_they_are_known() -> None:
    costs = taught(random.Random(2), loads=100)
    num_bytes = 30_000_000
    slow = costs.load(NIXL[:2], num_bytes).p50_s
    fast = costs.load(PLASMA[:2], num_bytes).p50_s
    assert slow == pytest.approx(0.02 + num_bytes / 25e6, rel=0.15)
    assert fast == pytest.approx(0.02 + num_bytes / 100e6, rel=0.15)
    mixed = costs.load(NODES, num_bytes)
    assert 0.8 * fast < mixed.p50_s < 1.2 * slow
    assert mixed.p95_s > 2.5 * mixed.p5_s, "the place alone tells little"
    unknown = costs.load(("nodes", "n9"), num_bytes)
    assert unknown == mixed, "an unknown source is one of the place"


def test_loads_wait_for_those_ahead() -> None:
    costs = taught(random.Random(3), loads=200)
    alone, behind = (costs.load(NIXL, 15_000_000, ahead).p50_s for ahead in (0, 30_000_000))
    assert behind - alone == pytest.approx(30e6 / 25e6, rel=0.25)


def test_a_load_that_was_given_up_counts_only_if_it_took_longer_than_expected() -> None:
    costs = taught(random.Random(4), loads=100)
    way, num_bytes = NIXL, 25_000_000
    before = costs.load(way, num_bytes)
    costs.observe_unfinished_load(way, num_bytes, 0, num_bytes // 2, 0.1)
    assert costs.load(way, num_bytes) == before
    for _ in range(3):
        costs.observe_unfinished_load(way, num_bytes, 0, num_bytes // 4, 2.0)
    assert costs.load(way, num_bytes).p50_s > 4.0


def test_the_number_of_ways_is_bounded() -> None:
    costs = Costs()
    for n in range(2 * MAX_WAYS):
        costs.observe_load(("nodes", f"n{n}"), 10**6, 0, 0.1)
    ways = [tuple(entry["way"]) for entry in costs.to_dict()["loads"]]
    assert len(ways) == MAX_WAYS
    assert NODES in ways
    assert ("nodes", f"n{2 * MAX_WAYS - 1}") in ways


def test_what_was_learnt_survives_but_is_not_trusted_before_it_is_seen_again() -> None:
    costs = taught(random.Random(5))
    state = json.loads(json.dumps(costs.to_dict()))
    again = Costs()
    again.restore(state)
    work = Work.of(0, 1500)
    assert again.prefill(work).p50_s == pytest.approx(costs.prefill(work).p50_s, rel=0.15)
    assert again.load(NIXL, 10**7).p50_s == pytest.approx(costs.load(NIXL, 10**7).p50_s, rel=0.15)
    assert not again.prefill(work).is_sure
    assert not again.load(NIXL, 10**7).is_sure


def damaged(state: dict[str, Any], what: str) -> Any:
    state = copy.deepcopy(state)
    if what == "schema":
        state["schema"] = 99
    elif what == "nan":
        state["prefill"]["coefficients"][0] = math.nan
    elif what == "negative":
        state["loads"][0]["coefficients"][1] = -1.0
    elif what == "text":
        state["prefill"]["coefficients"] = ["a", "b", "c"]
    elif what == "short":
        state["prefill"]["coefficients"] = [1.0]
    elif what == "missing":
        del state["loads"]
    elif what == "no way":
        state["loads"][0]["way"] = []
    else:
        return what
    return state


@pytest.mark.parametrize(
    "what", ["schema", "nan", "negative", "text", "short", "missing", "no way", "", None, 7, []]
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(what: Any) -> None:
    costs = taught(random.Random(6))
    before = costs.to_dict()
    state = damaged(before, what) if isinstance(what, str) and what else what
    with pytest.raises(ValueError, match=r"state|schema|coefficients"):
        costs.restore(state)
    assert costs.to_dict() == before


def test_forecasts_are_ordered() -> None:
    rng = random.Random(7)
    costs = taught(rng)
    for _ in range(100):
        forecast: Forecast = costs.prefill(some_work(rng)) + costs.load(NIXL, 10**7)
        assert 0 <= forecast.p5_s <= forecast.p50_s <= forecast.p75_s <= forecast.p95_s
