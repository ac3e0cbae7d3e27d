"""What every eviction policy owes the store, and what each is meant to prefer."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrelay.policies.eviction import (
    NO_SLOT,
    EvictionPolicy,
    GreedyDualSizeFrequency,
    LeastRecentlyUsed,
)
from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.value_density import ValueDensity

SECOND = 1_000_000_000
COST = PrefillCost()
MAKE: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": lambda slots: LeastRecentlyUsed(slots, 128),
    "gdsf": lambda slots: GreedyDualSizeFrequency(slots, 128, COST),
    "value_density": lambda slots: ValueDensity(slots, 128, 4096, COST),
}
every_policy = pytest.mark.parametrize("name", list(MAKE))


class Shop:
    """Chains of blocks in a policy's slots, as a store would keep them."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.now_ns = 1000 * SECOND
        self.free = list(range(policy.num_slots - 1, -1, -1))
        self.slot_of: dict[str, int] = {}
        self.accesses = np.zeros(policy.num_slots, np.uint64)
        self.parent: dict[int, int] = {}

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)

    def request(self, keys: list[str]) -> None:
        """Use the blocks that are held, insert the others, evict for that."""
        held = [self.slot_of[key] for key in keys if key in self.slot_of]
        self.accesses[held] = self.now_ns
        self.policy.observe(self.accesses)
        missing = [i for i, key in enumerate(keys) if key not in self.slot_of]
        blocked = np.zeros(self.policy.num_slots, np.bool_)
        blocked[held] = True
        self.evict(len(missing) - len(self.free), blocked)
        for i in missing[: len(self.free)]:
            slot = self.free.pop()
            parent = self.slot_of.get(keys[i - 1], NO_SLOT) if i else NO_SLOT
            self.slot_of[keys[i]], self.parent[slot] = slot, parent
            self.accesses[slot] = self.now_ns
            self.policy.insert(slot, keys[i], parent, 128, self.now_ns)

    def evict(self, count: int, blocked: np.ndarray | None = None) -> list[str]:
        """Free slots; the keys of what went."""
        if blocked is None:
            blocked = np.zeros(self.policy.num_slots, np.bool_)
        victims = [v.slot for v in self.policy.victims(count, blocked, self.now_ns)]
        names = {slot: key for key, slot in self.slot_of.items()}
        for slot in victims:
            self.remove(names[slot], evicted=True)
        return [names[slot] for slot in victims]

    def remove(self, key: str, evicted: bool) -> None:
        slot = self.slot_of.pop(key)
        self.policy.remove(slot, evicted, self.now_ns)
        self.free.append(slot)
        del self.parent[slot]


def chain(name: str, length: int, begin: list[str] | None = None) -> list[str]:
    return [*(begin or []), *(f"{name}.{i}" for i in range(length))]


def busy_shop(name: str, num_slots: int, seed: int, requests: int) -> Shop:
    """A shop after random requests: conversations below three system prompts."""
    rng = random.Random(seed)
    shop = Shop(MAKE[name](num_slots))
    talks: list[list[str]] = []
    for number in range(requests):
        shop.wait(rng.expovariate(0.5))
        if talks and rng.random() < 0.4:
            talk = rng.choice(talks)
            talk += chain(f"more{number}", rng.randrange(3))
        else:
            prompt = chain(f"prompt{rng.randrange(3)}", 3)
            talk = chain(f"talk{number}", rng.randrange(1, 6), prompt)
            talks.append(talk)
        shop.request(list(talk))
        if rng.random() < 0.05 and shop.slot_of:
            shop.remove(rng.choice(list(shop.slot_of)), evicted=False)
    return shop


@every_policy
@given(seed=st.integers(0, 10_000), count=st.integers(0, 60), data=st.data())
@settings(max_examples=40, deadline=None)
def test_victims_are_held_unblocked_distinct_and_enough(
    name: str, seed: int, count: int, data: st.DataObject
) -> None:
    shop = busy_shop(name, 40, seed, 40)
    held = sorted(shop.slot_of.values())
    blocked = np.zeros(40, np.bool_)
    blocked[data.draw(st.lists(st.sampled_from(held)))] = True
    victims = [v.slot for v in shop.policy.victims(count, blocked, shop.now_ns)]
    assert len(victims) == len(set(victims))
    assert set(victims) <= set(held)
    assert not blocked[victims].any()
    assert len(victims) == min(count, sum(not blocked[slot] for slot in held))
    assert shop.policy.held() == set(held)


@every_policy
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_children_go_before_their_parents(name: str, seed: int, count: int) -> None:
    shop = busy_shop(name, 40, seed, 60)
    nothing = np.zeros(40, np.bool_)
    gone: set[int] = set()
    for victim in shop.policy.victims(count, nothing, shop.now_ns):
        held_children = {slot for slot, parent in shop.parent.items() if parent == victim.slot}
        # What was dropped from between is nobody's parent any more, whoever has its slot now.
        assert held_children <= gone | orphans(shop)
        gone.add(victim.slot)


def orphans(shop: Shop) -> set[int]:
    names = {slot: key for key, slot in shop.slot_of.items()}
    return {
        slot
        for slot, parent in shop.parent.items()
        if shop.policy._parent[slot] != parent and slot in names
    }


@every_policy
def test_what_stands_before_a_blocked_block_goes_last(name: str) -> None:
    shop = Shop(MAKE[name](8))
    shop.request(chain("a", 4))
    shop.wait(5)
    shop.request(chain("b", 4))
    blocked = np.zeros(8, np.bool_)
    blocked[shop.slot_of["a.3"]] = True
    assert set(shop.evict(4, blocked)) == set(chain("b", 4))
    assert set(shop.evict(9, blocked)) == set(chain("a", 3))
    assert list(shop.slot_of) == ["a.3"]


@every_policy
def test_the_same_history_gives_the_same_victims(name: str) -> None:
    first, second = (busy_shop(name, 50, 7, 200) for _ in range(2))
    assert first.slot_of == second.slot_of
    assert first.evict(30) == second.evict(30)


@every_policy
def test_used_blocks_outlive_unused_ones(name: str) -> None:
    shop = Shop(MAKE[name](40))
    shop.request(chain("hot", 4))
    for number in range(60):
        shop.wait(10)
        shop.request(chain("hot", 4))
        shop.request(chain(f"cold{number}", 4))
    assert set(chain("hot", 4)) <= set(shop.slot_of)


@every_policy
def test_what_was_used_much_but_long_ago_goes(name: str) -> None:
    shop = Shop(MAKE[name](40))
    for _ in range(30):
        shop.wait(2)
        shop.request(chain("old", 4))
    for number in range(400):
        shop.wait(20)
        shop.request(chain(f"now{number // 2}", 4))
    assert not set(chain("old", 4)) & set(shop.slot_of)


def test_lru_is_lru() -> None:
    rng = random.Random(1)
    shop = Shop(MAKE["lru"](30))
    last: dict[str, int] = {}
    for _ in range(300):
        shop.wait(1)
        key = f"k{rng.randrange(60)}"
        gone = set(shop.slot_of)
        shop.request([key])
        last[key] = shop.now_ns
        gone -= set(shop.slot_of)
        for victim in gone:
            assert last[victim] < min(last[kept] for kept in shop.slot_of)


def test_several_uses_at_once_are_one() -> None:
    policy = GreedyDualSizeFrequency(2, 128, COST)
    shop = Shop(policy)
    shop.request(["a"])
    shop.wait(1)
    for _ in range(5):
        shop.request(["a"])
        shop.wait(0.1)
    shop.wait(1)
    shop.request(["b"])
    assert policy._frequency[shop.slot_of["a"]] == 2


def test_of_branches_used_alike_the_long_one_is_worth_more() -> None:
    """A block far back costs more to compute, and is used only with all before it."""
    shop = Shop(MAKE["value_density"](64))
    for _ in range(3):
        shop.request(chain("long", 40))
        shop.request(chain("short", 4))
        shop.wait(5)
    assert set(shop.evict(4)) == set(chain("short", 4))
    assert shop.evict(3) == ["long.39", "long.38", "long.37"]


@pytest.mark.parametrize(("name", "kept"), [("value_density", range(13, 16)), ("lru", range(11))])
def test_value_density_learns_what_follows_a_system_prompt(name: str, kept: range) -> None:
    """Below one prompt all is asked again 75 s later, below the other nothing ever is."""
    shop = Shop(MAKE[name](64))
    talks: list[list[str]] = []
    for number in range(300):
        shop.wait(5)
        shop.request(chain(f"once{number}", 3, chain("tool", 2)))
        talks.append(chain(f"twice{number}", 3, chain("chat", 2)))
        shop.request(talks[-1])
        if number >= 15:
            shop.request(talks[number - 15])
    assert sum(set(talk) <= set(shop.slot_of) for talk in talks[-15:]) in kept


def test_a_block_that_comes_again_is_remembered() -> None:
    shop = Shop(MAKE["value_density"](4))
    shop.request(["a"])
    shop.evict(1)
    shop.wait(30)
    shop.request(["a"])
    policy = shop.policy
    assert isinstance(policy, ValueDensity)
    assert policy._uses[shop.slot_of["a"]] == 1


@every_policy
def test_impossible_calls_are_refused(name: str) -> None:
    policy = MAKE[name](2)
    policy.insert(0, "a", NO_SLOT, 128, 1)
    with pytest.raises(ValueError, match="slot 0 is held"):
        policy.insert(0, "b", NO_SLOT, 128, 2)
    with pytest.raises(ValueError, match="slot 1 is not held"):
        policy.remove(1, True, 2)
    with pytest.raises(ValueError, match="num_slots=0"):
        MAKE[name](0)
    assert policy.victims(0, np.zeros(2, np.bool_), 3) == []


def tiers(shop: Shop, seed: int) -> set[int]:
    """Demote, promote and insert at random, as a store would; which slots are demoted."""
    rng = random.Random(seed)
    nothing = np.zeros(shop.policy.num_slots, np.bool_)
    demoted: set[int] = set()
    names: dict[int, str] = {}
    for _ in range(rng.randrange(1, 6)):
        for victim in shop.policy.victims(rng.randrange(6), nothing, shop.now_ns):
            shop.policy.demote(victim.slot)
            demoted.add(victim.slot)
        for slot in rng.sample(sorted(demoted), min(len(demoted), rng.randrange(3))):
            shop.policy.promote(slot)
            demoted.discard(slot)
        if demoted and rng.random() < 0.3:
            names = {slot: key for key, slot in shop.slot_of.items()}
            slot = rng.choice(sorted(demoted))
            shop.remove(names[slot], evicted=rng.random() < 0.5)
            demoted.discard(slot)
        shop.wait(rng.expovariate(0.1))
    return demoted


@every_policy
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_tiers_are_chosen_from_apart_and_demoted_blocks_keep_none_that_is_not(
    name: str, seed: int, count: int
) -> None:
    shop = busy_shop(name, 40, seed, 60)
    demoted = tiers(shop, seed)
    nothing = np.zeros(40, np.bool_)
    held = shop.policy.held()
    first = [v.slot for v in shop.policy.victims(count, nothing, shop.now_ns)]
    second = [v.slot for v in shop.policy.victims(count, nothing, shop.now_ns, demoted=True)]
    assert set(first) <= held - demoted
    assert set(second) <= demoted
    assert len(first) == min(count, len(held - demoted))
    assert len(second) == min(count, len(demoted))
    gone: set[int] = set()
    for slot in first:
        assert children(shop, slot) - demoted <= gone
        gone.add(slot)
    gone.clear()
    # Those that stand before blocks which are not demoted come last.
    before_others = ancestors_of(shop, held - demoted)
    free = [slot for slot in second if slot not in before_others]
    assert second[: len(free)] == free
    for slot in free:
        assert children(shop, slot) <= gone
        gone.add(slot)


def children(shop: Shop, slot: int) -> set[int]:
    parents = shop.policy._parent
    return {other for other in shop.policy.held() if parents[other] == slot}


def ancestors_of(shop: Shop, slots: set[int]) -> set[int]:
    found = set()
    for slot in slots:
        parent = int(shop.policy._parent[slot])
        while parent != NO_SLOT:
            found.add(parent)
            parent = int(shop.policy._parent[parent])
    return found


@every_policy
def test_what_is_known_of_a_block_goes_with_it(name: str) -> None:
    policy = MAKE[name](4)
    nothing = np.zeros(4, np.bool_)
    accesses = np.zeros(4, np.uint64)
    for slot in range(4):
        accesses[slot] = SECOND
        policy.insert(slot, f"k{slot}", NO_SLOT, 128, SECOND)
    accesses[1] = accesses[3] = 20 * SECOND
    policy.observe(accesses)
    for slot in range(4):
        policy.demote(slot)
    order = [v.slot for v in policy.victims(4, nothing, 30 * SECOND, demoted=True)]
    assert set(order[:2]) == {0, 2}
    policy.promote(0)
    policy.promote(1)
    assert [v.slot for v in policy.victims(4, nothing, 30 * SECOND)] == [0, 1]
    with pytest.raises(ValueError, match="slot 0 is not held where"):
        policy.promote(0)
