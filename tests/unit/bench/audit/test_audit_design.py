"""Assignment: balanced, drawn from the seed alone, in the orders that the designs promise."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from fake_audit import content

from kvrelay.bench.audit.design import (
    Ask,
    Unit,
    cycles,
    gaps,
    orders,
    rng_of,
    square,
    treated_places,
)
from kvrelay.bench.audit.plan import Plan, load_plan
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.units import estimate_s, planned
from kvrelay.bench.audit.workload.sessions import Shape

SEEDS = range(40)
# Of a unit of one hand-over, as plans without turns named it.
KEY = "sessions/same-node/512/idle/high/en/0-1ae667"


def rich(**changes: Any) -> Plan:
    """A plan with every design."""
    arms = [
        {"name": "recompute", "designs": ["paired"], "pairs": 8},
        {"name": "relay", "designs": ["paired"], "pairs": 8},
        {"name": "policy", "designs": ["paired"], "strata": ["1gbit/512/idle/high/en"], "pairs": 4},
        {"name": "recompute", "designs": ["aa"], "strata": ["1gbit/512/idle/high/en"], "pairs": 4},
    ]
    for name in ("recompute", "relay", "shared_pool"):
        strata = ["same-node/512/idle/high/en", "1gbit/512/idle/high/en"]
        arms.append({"name": name, "designs": ["sessions"], "strata": strata, "sessions": 6})
    levels = {"link": ["same-node", "1gbit"], "load": ["idle", "busy"]}
    stream = {"link": "1gbit", "requests": 10}
    return load_plan(
        content(
            **{
                "arms": arms,
                "strata": content()["strata"] | levels,
                "busy": {"requests": 3},
                "randomised": [{**stream, "blocks": 4}],
                "saturation": [{**stream, "blocks_per_share": 3}],
                "switchback": [{**stream, "blocks_per_arm": 12}],
                "staggered": [{**stream, "periods": 2}],
                **changes,
            }
        )
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 11])
def test_squares_are_balanced(size: int) -> None:
    rows = square(size)
    times = len(rows) // size
    for place in range(size):
        assert Counter(row[place] for row in rows) == dict.fromkeys(range(size), times)
    behind = Counter(two for row in rows for two in pairwise(row))
    assert set(behind.values()) == {times}
    assert len(behind) == size * (size - 1)


def test_two_arms_go_abba() -> None:
    seen = set()
    for seed in SEEDS:
        found = orders(["A", "B"], 8, random.Random(seed))
        for first, second in zip(found[::2], found[1::2], strict=True):
            assert sorted([first, second]) == [["A", "B"], ["B", "A"]]
        seen.add("".join(order[0] for order in found))
    assert len(seen) > 8  # not always the same


def test_cycles_spread_what_they_count() -> None:
    drawn = cycles({"a": 5, "b": 5, "c": 2}, random.Random(1))
    assert Counter(drawn) == {"a": 5, "b": 5, "c": 2}
    assert set(drawn[:3]) == {"a", "b", "c"} and set(drawn[6:8]) == {"a", "b"}


def test_shares_and_gaps() -> None:
    rng = random.Random(2)
    for share in (0.0, 0.25, 0.5, 1.0):
        places = treated_places(20, share, rng)
        assert len(places) == 20 * share and places <= set(range(20))
    come = gaps(4000, rng)
    assert come[0] == 0 and min(come) >= 0
    assert abs(sum(come) / 3999 - 1) < 0.06  # standard error 0.016


def test_each_purpose_has_chance_of_its_own() -> None:
    assert rng_of(1, "a").random() == rng_of(1, "a").random()
    assert len({rng_of(seed, name).random() for seed in (1, 2) for name in ("a", "b")}) == 4


def test_the_seed_decides_everything() -> None:
    units = planned(rich())
    assert planned(rich()) == units
    assert len({unit.key for unit in units}) == len(units)
    other = planned(rich(seed=4))
    assert not {unit.key for unit in units} & {unit.key for unit in other}


def test_pairs_are_the_same_requests_in_each_arm() -> None:
    plan = rich()
    pairs = [unit for unit in planned(plan) if unit.design == "paired"]
    assert len(pairs) == 4 * 8
    for unit in pairs:
        assert [len(block) for block in unit.blocks] == [
            3 if unit.stratum.load == "busy" else 1
        ] * len(unit.blocks)
        alike = {tuple((ask.text, ask.gap) for ask in block) for block in unit.blocks}
        assert len(alike) == 1
        assert all(len({ask.arm for ask in block}) == 1 for block in unit.blocks)
        third = unit.stratum.name == "1gbit/512/idle/high/en" and unit.number < 4
        assert set(unit.arms) == {"recompute", "relay"} | ({"policy"} if third else set())
    texts = [ask.text for unit in pairs for ask in unit.blocks[0]]
    assert len(set(texts)) == len(texts)
    for stratum in plan.all_strata():
        if stratum.name == "1gbit/512/idle/high/en":
            continue
        first = Counter(unit.arms[0] for unit in pairs if unit.stratum == stratum)
        assert first == {"recompute": 4, "relay": 4}


def test_aa_is_the_control_twice() -> None:
    units = [unit for unit in planned(rich()) if unit.design == "aa"]
    assert len(units) == 4
    for unit in units:
        assert len(unit.blocks) == 2 and unit.arms == ("recompute",)


def test_sessions_are_balanced_over_time() -> None:
    units = [unit for unit in planned(rich()) if unit.design == "sessions"]
    for link in ("same-node", "1gbit"):
        here = sorted((u for u in units if u.stratum.link == link), key=lambda unit: unit.number)
        arms = [unit.arms[0] for unit in here]
        assert len(arms) == 18
        for cycle in range(0, 18, 3):
            assert set(arms[cycle : cycle + 3]) == {"recompute", "relay", "shared_pool"}
        assert {ask.propensity for unit in here for block in unit.blocks for ask in block} == {
            1 / 3
        }


def test_a_session_has_one_arm_and_its_shape() -> None:
    arms = [
        {
            "name": name,
            "designs": ["sessions"],
            "sessions": 4,
            "strata": [stratum],
            "session_shape": shape,
            "turns": turns,
        }
        for name in ("recompute", "relay")
        for stratum, shape, turns in (
            ("same-node/512/idle/high/en", "fan_out", 5),
            ("1gbit/512/idle/high/en", "pipeline", 2),
        )
    ]
    units = [unit for unit in planned(rich(arms=arms)) if unit.design == "sessions"]
    assert Counter((unit.stratum.link, unit.shape, unit.turns) for unit in units) == {
        ("same-node", Shape.FAN_OUT, 5): 8,
        ("1gbit", Shape.PIPELINE, 2): 8,
    }
    assert all(len(unit.arms) == 1 for unit in units)
    assert {unit.requests for unit in units} == {4, 1}


def test_turns_take_time_and_make_another_unit() -> None:
    def first(**fields: Any) -> Unit:
        stratum = Stratum("same-node", 512, "idle", "high", "en")
        return Unit("sessions", stratum, ((Ask("relay", 5),),), 0, **fields)

    hand_over, longer = first(), first(turns=4)
    assert estimate_s(longer) > estimate_s(first(turns=3)) > estimate_s(hand_over)
    # What a plan measured before it knew of turns keeps its name.
    assert hand_over.key == first(shape=Shape.PIPELINE, turns=2).key == KEY
    assert len({hand_over.key, longer.key, first(shape=Shape.FAN_OUT, turns=4).key}) == 3


def test_links_are_visited_in_turn() -> None:
    units = [u for u in planned(rich()) if u.design in ("paired", "aa", "sessions")]
    changes = sum(a.stratum.link != b.stratum.link for a, b in pairwise(units))
    assert changes <= 7  # four visits of two links, not a change for each unit


def test_switchback_is_a_coin_for_each_two_blocks() -> None:
    heads = 0
    for seed in SEEDS:
        blocks = [unit for unit in planned(rich(seed=seed)) if unit.design == "switchback"]
        assert [unit.block for unit in blocks] == list(range(24))
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            assert first.pair == second.pair
            assert {first.arms, second.arms} == {("recompute",), ("relay",)}
            assert [(a.text, a.gap) for a in first.blocks[0]] == [
                (a.text, a.gap) for a in second.blocks[0]
            ]
            heads += first.arms == ("relay",)
    assert abs(heads - 240) < 42  # of 480: 3.8 standard deviations


def test_saturation_and_randomised_treat_their_share() -> None:
    units = planned(rich())
    saturation = [unit for unit in units if unit.design == "saturation"]
    assert Counter(unit.saturation for unit in saturation) == dict.fromkeys(
        (0, 0.25, 0.5, 0.75, 1), 3
    )
    for unit in [*saturation, *(unit for unit in units if unit.design == "randomised")]:
        share = 0.5 if unit.saturation is None else unit.saturation
        (block,) = unit.blocks
        treated = [ask for ask in block if ask.arm == "relay"]
        assert len(treated) == round(share * 10)
        for ask in block:
            of_arm = len(treated) if ask.arm == "relay" else 10 - len(treated)
            assert ask.propensity == pytest.approx(of_arm / 10)
    first = {
        unit.blocks[0][0].arm
        for seed in SEEDS
        for unit in planned(rich(seed=seed))
        if unit.design == "randomised"
    }
    assert first == {"recompute", "relay"}


def test_staggered_treats_one_of_two_receivers_from_the_middle_on() -> None:
    chosen = set()
    for seed in SEEDS:
        units = [unit for unit in planned(rich(seed=seed)) if unit.design == "staggered"]
        assert [unit.block for unit in units] == [0, 1, 2, 3]
        treated = set()
        for unit in units:
            asks = [ask for block in unit.blocks for ask in block]
            assert Counter(ask.receiver for ask in asks) == {0: 10, 1: 10}
            relays = {ask.receiver for ask in asks if ask.arm == "relay"}
            assert len(relays) == (unit.block is not None and unit.block >= 2)
            treated |= relays
        assert len(treated) == 1
        chosen |= treated
    assert chosen == {0, 1}


def test_estimates_grow_with_what_there_is_to_do() -> None:
    units = planned(rich())
    assert all(estimate_s(unit) > 0 for unit in units)
    assert estimate_s(units[0], slowness=3.0) > estimate_s(units[0])
