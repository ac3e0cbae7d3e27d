"""Which held blocks to give up: the interface, what all policies share, and two yardsticks.

Blocks form a prefix tree, and a block is of use only while all before it are held. So a block
counts for no less than the best of those that come after it, and a parent goes after its
children: a policy values blocks one by one, `victims` keeps that order.

A store may keep some blocks in a second, slower tier. To `demote` a block changes nothing in what
is known of it, only among whom it is chosen: a parent may be demoted after its children are, but
goes for good only when they have.

Preconditions the caller guarantees: one thread; a slot is inserted when its block becomes
visible and removed when it no longer is; times are of one monotonic clock.
Duties of the implementor: `_values` is a pure function of what was told; the same history
gives the same victims.

Readers do not report what they read: they write the time into a word per slot that the caller
hands to `observe` from time to time. A word that changed is one use, however often it did.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvrelay.policies.prefill import PrefillCost

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_SLOT = -1

# Look-up and save of one request touch its blocks within about a second: one use, not two.
SAME_USE_NS = 500_000_000
# A ranking is good for so long, or until this share of the slots has been taken from it.
_RANKING_NS = 5_000_000_000
_RANKED_SHARE = 32


class Victim(NamedTuple):
    """A slot to free, and the value its policy gives it; policies' units differ."""

    value: float
    slot: int


@dataclass(slots=True)
class _Ranking:
    """Slots of least value of one tier as of a time, ascending, each with its life."""

    victims: list[tuple[Victim, int]] = field(default_factory=list)
    passed: int = 0
    at_ns: int = -_RANKING_NS


class EvictionPolicy(ABC):
    """Keeps account of the blocks in equal slots, and tells which are worth least."""

    def __init__(self, num_slots: int, block_tokens: int) -> None:
        """An empty store.

        Args:
            num_slots: slots are numbered from 0.
            block_tokens: tokens of a full block.
        """
        if num_slots < 1 or block_tokens < 1:
            raise ValueError(f"num_slots={num_slots} and block_tokens={block_tokens}")
        self.num_slots = num_slots
        self.block_tokens = block_tokens
        self._held: Bools = np.zeros(num_slots, np.bool_)
        self._used_ns: Ints = np.zeros(num_slots, np.int64)
        self._depth: Ints = np.zeros(num_slots, np.int64)
        self._parent: Ints = np.full(num_slots, NO_SLOT, np.int64)
        self._children = [0] * num_slots
        self._demoted: Bools = np.zeros(num_slots, np.bool_)
        self._keepers = [0] * num_slots  # children that have to go first
        # Which life of a slot a ranking is about: it changes with every use.
        self._life: Ints = np.zeros(num_slots, np.int64)
        self._rankings = {False: _Ranking(), True: _Ranking()}  # by whether it is of demoted ones

    # What happens

    def insert(
        self, slot: int, key: Hashable, parent_slot: int, num_tokens: int, now_ns: int
    ) -> None:
        """A block has become visible.

        Args:
            slot: where it is; a free one.
            key: its identity, by which it is known again after an eviction.
            parent_slot: where the block before it is; `NO_SLOT` if it is not held or none.
            num_tokens: fewer than a full block's in a tail.
            now_ns: also the time that the slot's access word holds.
        """
        if self._held[slot]:
            raise ValueError(f"slot {slot} is held")
        self._held[slot] = True
        self._used_ns[slot] = now_ns
        self._depth[slot] = self._depth[parent_slot] + 1 if parent_slot != NO_SLOT else 0
        self._parent[slot] = parent_slot
        self._children[slot] = self._keepers[slot] = 0
        self._demoted[slot] = False
        self._life[slot] += 1
        self._inserted(slot, key, num_tokens)
        if parent_slot != NO_SLOT:
            self._children[parent_slot] += 1
            self._keepers[parent_slot] += 1

    def demote(self, slot: int) -> None:
        """A held block has gone to the second tier."""
        self._move(slot, True)

    def promote(self, slot: int) -> None:
        """A demoted block has come back."""
        self._move(slot, False)

    def _move(self, slot: int, demoted: bool) -> None:
        if not self._held[slot] or self._demoted[slot] == demoted:
            raise ValueError(f"slot {slot} is not held where it should be")
        self._demoted[slot] = demoted
        self._life[slot] += 1
        behind = self._held & (self._parent == slot)
        self._keepers[slot] = int((behind & (self._demoted <= demoted)).sum())
        parent = int(self._parent[slot])
        if parent != NO_SLOT and not self._demoted[parent]:
            self._keepers[parent] += -1 if demoted else 1

    def observe(self, accesses_ns: NDArray[np.uint64]) -> None:
        """Take note of uses since the last call.

        Args:
            accesses_ns: time of the last access of each slot: [num_slots].
        """
        seen = accesses_ns.view(np.int64)
        slots = np.flatnonzero((seen != self._used_ns) & self._held)
        if not len(slots):
            return
        times_ns = seen[slots]
        counted = times_ns - self._used_ns[slots] >= SAME_USE_NS
        self._life[slots] += 1
        self._used(slots[counted], times_ns[counted])
        self._used_ns[slots] = times_ns

    def remove(self, slot: int, evicted: bool, now_ns: int) -> None:
        """A block is no longer visible.

        Args:
            evicted: because room was needed; else it was of no use any more.
        """
        if not self._held[slot]:
            raise ValueError(f"slot {slot} is not held")
        if self._children[slot]:  # dropped from between: those behind it are on their own
            self._parent[self._held & (self._parent == slot)] = NO_SLOT
        self._removed(slot, evicted, now_ns)
        parent = self._parent[slot]
        if parent != NO_SLOT:
            self._children[parent] -= 1
            self._keepers[parent] -= int(self._demoted[slot] <= self._demoted[parent])
        self._held[slot] = False
        self._life[slot] += 1

    # What is asked

    def held(self) -> set[int]:
        """The slots that hold a block."""
        return set(np.flatnonzero(self._held).tolist())

    def victims(
        self, count: int, blocked: Bools, now_ns: int, demoted: bool = False
    ) -> list[Victim]:
        """The slots worth least, in the order in which they should go.

        Nothing changes here: the caller removes or demotes those that it does free.

        Args:
            count: how many slots to free; fewer are returned if there are not that many.
            blocked: slots that must stay, such as leased ones: [num_slots].
            demoted: choose among the demoted ones; else among the others.
        """
        if count <= 0:
            return []
        ranking = self._rankings[demoted]
        stale = now_ns - ranking.at_ns >= _RANKING_NS
        chosen = [] if stale else self._choose(ranking, count, blocked)
        num_held = int((self._held & (self._demoted == demoted)).sum())
        wanted = max(2 * count, self.num_slots // _RANKED_SHARE)
        while len(chosen) < count:
            ranking = self._rank(demoted, min(wanted, num_held), now_ns)
            chosen = self._choose(ranking, count, blocked)
            if wanted >= num_held:
                break
            wanted *= 4
        if len(chosen) < count:
            # All that is left stands before blocked blocks: better free than refuse.
            taken = {victim.slot for victim in chosen}
            rest = [v for v, _ in ranking.victims if not blocked[v.slot] and v.slot not in taken]
            chosen += rest[: count - len(chosen)]
        return chosen

    def _rank(self, demoted: bool, count: int, now_ns: int) -> _Ranking:
        """Order the `count` held slots of least value of one tier."""
        slots = np.flatnonzero(self._held)
        values = self._with_children(slots, self._values(slots, now_ns))
        mine = self._demoted[slots] == demoted
        slots, values = slots[mine], values[mine]
        if count < len(slots):
            lowest = np.argpartition(values, count - 1)[:count]
            slots, values = slots[lowest], values[lowest]
        order = np.lexsort((self._used_ns[slots], -self._depth[slots], values))
        slots, values = slots[order], values[order]
        victims = map(Victim, values.tolist(), slots.tolist())
        lives = self._life[slots].tolist()
        ranking = _Ranking(list(zip(victims, lives, strict=True)), at_ns=now_ns)
        self._rankings[demoted] = ranking
        return ranking

    def _with_children(self, slots: Ints, values: Floats) -> Floats:
        """Each block's value, or the highest of those that come after it if that is more.

        Ancestors at twice the distance in every round: log2 of the longest chain's rounds.
        """
        whole = np.full(self.num_slots + 1, -np.inf)  # the last stands for no parent
        whole[slots] = values
        ancestor = np.append(self._parent, NO_SLOT)
        below = slots[ancestor[slots] != NO_SLOT]
        while len(below):
            higher = below[whole[below] > whole[ancestor[below]]]
            np.maximum.at(whole, ancestor[higher], whole[higher])
            ancestor = ancestor[ancestor]
            below = below[ancestor[below] != NO_SLOT]
        return np.asarray(whole[slots])

    def _choose(self, ranking: _Ranking, count: int, blocked: Bools) -> list[Victim]:
        """Up to `count` slots of the ranking, without any that has a child which stays."""
        chosen: list[Victim] = []
        gone: dict[int, int] = {}  # children that are chosen
        for at in range(ranking.passed, len(ranking.victims)):
            victim, life = ranking.victims[at]
            slot = victim.slot
            if self._life[slot] != life or self._keepers[slot] > gone.get(slot, 0):
                if at == ranking.passed:
                    ranking.passed += 1  # used since, it or a child: not among the least any more
                continue
            if blocked[slot]:
                continue
            chosen.append(victim)
            if len(chosen) == count:
                break
            parent = int(self._parent[slot])
            gone[parent] = gone.get(parent, 0) + 1
        return chosen

    # What policies differ in

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that reports use."""

    @abstractmethod
    def _values(self, slots: Ints, now_ns: int) -> Floats:
        """What held slots are worth; the lowest go first."""

    def _inserted(self, slot: int, key: Hashable, num_tokens: int) -> None:  # noqa: B027
        """A slot has been inserted; its parent does not count it as a child yet."""

    def _used(self, slots: Ints, times_ns: Ints) -> None:  # noqa: B027
        """Slots have been used; `_used_ns` still tells when they were before."""

    def _removed(self, slot: int, evicted: bool, now_ns: int) -> None:  # noqa: B027
        """A slot is about to be removed; its parent still counts it."""


class LeastRecentlyUsed(EvictionPolicy):
    """What was not used for longest goes first."""

    @property
    def name(self) -> str:
        return "lru"

    def _values(self, slots: Ints, now_ns: int) -> Floats:
        return self._used_ns[slots].astype(np.float64)


class GreedyDualSizeFrequency(EvictionPolicy):
    """Uses times the cost of a miss, on top of the value of the last victim.

    H = L + frequency * cost / size, where L, the H of what went last, ages what stays. Sizes
    are equal here, cost is that of computing the block at its place.

    Source: Cherkasova, Improving WWW proxies performance with Greedy-Dual-Size-Frequency
    caching policy, HP Laboratories HPL-98-69, 1998.
    """

    def __init__(self, num_slots: int, block_tokens: int, cost: PrefillCost) -> None:
        super().__init__(num_slots, block_tokens)
        self._cost = cost
        self._frequency: Floats = np.zeros(num_slots)
        self._priority: Floats = np.zeros(num_slots)
        self._age = 0.0

    @property
    def name(self) -> str:
        return "gdsf"

    def _values(self, slots: Ints, now_ns: int) -> Floats:
        return self._priority[slots]

    def _inserted(self, slot: int, key: Hashable, num_tokens: int) -> None:
        self._frequency[slot] = 0
        self._use(np.array([slot]))

    def _used(self, slots: Ints, times_ns: Ints) -> None:
        self._use(slots)

    def _use(self, slots: Ints) -> None:
        self._frequency[slots] += 1
        start = self._depth[slots] * self.block_tokens
        cost_s = self._cost.added_s(start, start + self.block_tokens)
        self._priority[slots] = self._age + self._frequency[slots] * cost_s

    def _removed(self, slot: int, evicted: bool, now_ns: int) -> None:
        if evicted:
            self._age = max(self._age, float(self._priority[slot]))
