"""Eviction by value density: expected seconds of prefill saved, per second and byte of keeping.

    value = rate of uses (class, age) * seconds that computing the block costs / its bytes

The *rate* is learned while the store runs (`reuse.py`), also from blocks that were evicted: a key
that comes again is a use that was missed. A block's class is read off the prefix tree:

- its uses so far;
- its turn: how often its chain was used and then grew at its end, as conversations do; or that
  it is shared: that several branches go on from it or from behind it;
- where its branch began: of the branches that began there (behind the same system prompt, say),
  how many were ever used again. That tells applications apart without naming them.

The *seconds* are those of the branch on which the block lies: a block can only be used together
with all before it, and goes after all behind it, so a branch is kept or given up as a whole, and
each of its blocks counts for the mean of the branch.
"""

import bisect
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from kvrelay.policies.eviction import NO_SLOT, EvictionPolicy, Floats, Ints
from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.reuse import ReuseModel

# Classes: by uses 0, 1, 2-3, 4-15 and more; by turn 0, 1, 2, more and shared; by the share of
# branches used again below 0.1, 0.25, 0.5 and above.
_USES = [1, 2, 4, 16]
_LAST_TURN, _SHARED = 3, 4
_AGAIN = [0.1, 0.25, 0.5]
_NUM_USES, _NUM_TURNS, _NUM_GROUPS = len(_USES) + 1, _SHARED + 1, len(_AGAIN) + 1
# A place where branches begin is believed to be like all others until it has so many, and
# counts them half once it has so many.
_BELIEF_BRANCHES, _MEMORY_BRANCHES = 4.0, 256.0
# Memory of the reuse model, in lives per slot; evicted blocks remembered, per slot and in all.
_MEMORY_LIVES = 8
_GHOSTS_PER_SLOT, _MAX_GHOSTS = 2, 1 << 17


def _class(group: int, turn: int, uses: int) -> int:
    return (group * _NUM_TURNS + turn) * _NUM_USES + bisect.bisect_right(_USES, uses)


class _Ghost(NamedTuple):
    """What is remembered of a block that was evicted."""

    kind: int
    used_ns: int
    uses: int


class _Ghosts:
    """Evicted blocks that may come again; the oldest is forgotten first."""

    def __init__(self, size: int) -> None:
        self._kinds: Ints = np.zeros(size, np.int64)
        self._used_ns: Ints = np.zeros(size, np.int64)
        self._uses: Ints = np.zeros(size, np.int64)
        self._keys: list[Hashable | None] = [None] * size
        self._at: dict[Hashable, int] = {}
        self._next = 0

    def add(self, key: Hashable, ghost: _Ghost) -> _Ghost | None:
        """Remember a block; the one that is forgotten for it."""
        at, self._next = self._next, (self._next + 1) % len(self._keys)
        forgotten = None
        if self._keys[at] is not None:
            forgotten = self.take(self._keys[at])
        self._keys[at] = key
        self._at[key] = at
        self._kinds[at], self._used_ns[at], self._uses[at] = ghost
        return forgotten

    def take(self, key: Hashable) -> _Ghost | None:
        """What is remembered of a block that has come again; it is no ghost any more."""
        at = self._at.pop(key, None)
        if at is None:
            return None
        self._keys[at] = None
        return _Ghost(int(self._kinds[at]), int(self._used_ns[at]), int(self._uses[at]))

    def lasting(self) -> tuple[Ints, Ints]:
        """Kinds and last uses of all."""
        at = np.fromiter(self._at.values(), np.int64, len(self._at))
        return self._kinds[at], self._used_ns[at]


class ValueDensity(EvictionPolicy):
    """What saves least prefill for the room it takes goes first."""

    def __init__(
        self, num_slots: int, block_tokens: int, slot_bytes: int, cost: PrefillCost
    ) -> None:
        super().__init__(num_slots, block_tokens)
        self._slot_bytes = slot_bytes
        self._cost = cost
        self._reuse = ReuseModel(
            _NUM_GROUPS, _NUM_TURNS * _NUM_USES, memory_lives=_MEMORY_LIVES * num_slots
        )
        self._ghosts = _Ghosts(min(_GHOSTS_PER_SLOT * num_slots, _MAX_GHOSTS))
        self._key: list[Hashable] = [None] * num_slots
        self._full = [True] * num_slots
        self._uses: Ints = np.zeros(num_slots, np.int64)
        self._turn: Ints = np.zeros(num_slots, np.int64)
        self._class: Ints = np.zeros(num_slots, np.int64)
        # A branch is named by its first slot. Of each branch: its group; the depth at which it
        # ends; the depth up to which it is shared.
        self._branch: Ints = np.arange(num_slots)
        self._group: Ints = np.zeros(num_slots, np.int64)
        self._end: Ints = np.zeros(num_slots, np.int64)
        self._shared: Ints = np.zeros(num_slots, np.int64)
        # Of each slot: full blocks right behind it; branches that began there, and those used
        # again. The last is the start of all sequences, which `NO_SLOT` indexes.
        self._grown = [0] * num_slots
        self._begun: Floats = np.zeros(num_slots + 1)
        self._again: Floats = np.zeros(num_slots + 1)
        self._all_begun = self._all_again = 0

    @property
    def name(self) -> str:
        return "value_density"

    # What is worth how much

    def _values(self, slots: Ints, now_ns: int) -> Floats:
        self._learn(now_ns)
        ages_s = np.asarray((now_ns - self._used_ns[slots]) * 1e-9, np.float64)
        rate_per_s = self._reuse.rate_per_s(self._class[slots], ages_s)
        branch = self._branch[slots]
        start, end = self._depth[branch], np.maximum(self._end[branch], self._depth[branch] + 1)
        size = self.block_tokens
        block_s = self._cost.added_s(start * size, end * size) / (end - start)
        return np.asarray(rate_per_s * block_s / self._slot_bytes)

    def _learn(self, now_ns: int) -> None:
        slots = np.flatnonzero(self._held)
        classes, used_ns = self._ghosts.lasting()
        classes = np.concatenate([self._class[slots], classes])
        used_ns = np.concatenate([self._used_ns[slots], used_ns])
        self._reuse.update(classes, np.asarray((now_ns - used_ns) * 1e-9, np.float64))

    # What happens

    def _inserted(self, slot: int, key: Hashable, num_tokens: int) -> None:
        parent = int(self._parent[slot])
        ghost = self._ghosts.take(key)
        self._key[slot] = key
        self._full[slot] = num_tokens == self.block_tokens
        self._uses[slot] = 0 if ghost is None else ghost.uses + 1
        self._grown[slot] = 0
        self._begun[slot] = self._again[slot] = 0.0
        if parent == NO_SLOT or self._grown[parent] or self._begun[parent]:
            self._begin_branch(slot, parent, ghost)
        else:
            self._branch[slot] = self._branch[parent]
            turn = int(self._turn[parent])
            if ghost is None and self._uses[parent] and turn != _SHARED:
                turn = min(turn + 1, _LAST_TURN)
            self._turn[slot] = turn
        branch = int(self._branch[slot])
        if ghost is not None:
            self._reuse.missed(ghost.kind, (int(self._used_ns[slot]) - ghost.used_ns) * 1e-9)
        if self._full[slot]:
            self._end[branch] = max(self._end[branch], self._depth[slot] + 1)
            if parent != NO_SLOT:
                self._grown[parent] += 1
        group, turn = int(self._group[branch]), int(self._turn[slot])
        self._class[slot] = _class(group, turn, int(self._uses[slot]))

    def _begin_branch(self, slot: int, parent: int, ghost: _Ghost | None) -> None:
        """Start a branch behind `parent`; with a ghost it is one that was there before."""
        mean = (self._all_again + 1) / (self._all_begun + 4)
        again = self._again[parent] + _BELIEF_BRANCHES * mean
        share = again / (self._begun[parent] + _BELIEF_BRANCHES)
        self._branch[slot] = slot
        self._group[slot] = bisect.bisect_right(_AGAIN, share)
        self._end[slot] = self._shared[slot] = self._depth[slot]
        self._turn[slot] = 0
        if parent != NO_SLOT:
            self._share(parent)
        if ghost is None:
            self._begun[parent] += 1
            self._all_begun += 1
            if self._begun[parent] >= _MEMORY_BRANCHES:
                self._begun[parent] /= 2
                self._again[parent] /= 2
        elif not ghost.uses:
            self._again[parent] += 1
            self._all_again += 1

    def _share(self, slot: int) -> None:
        """Another branch begins behind a slot: what is before it on its branch is shared."""
        branch, end = self._branch[slot], self._depth[slot] + 1
        if end > self._shared[branch]:
            self._shared[branch] = end
            on = np.flatnonzero(self._held & (self._branch == branch) & (self._depth < end))
            self._class[on] += (_SHARED - self._turn[on]) * _NUM_USES
            self._turn[on] = _SHARED

    def _used(self, slots: Ints, times_ns: Ints) -> None:
        since_s = np.asarray((times_ns - self._used_ns[slots]) * 1e-9, np.float64)
        self._reuse.used(self._class[slots], since_s)
        first = slots[(self._uses[slots] == 0) & (self._branch[slots] == slots)]
        np.add.at(self._again, self._parent[first], 1.0)
        self._all_again += len(first)
        self._uses[slots] += 1
        self._class[slots] += np.isin(self._uses[slots], _USES)

    def _removed(self, slot: int, evicted: bool, now_ns: int) -> None:
        branch, parent = int(self._branch[slot]), int(self._parent[slot])
        life = _Ghost(int(self._class[slot]), int(self._used_ns[slot]), int(self._uses[slot]))
        over = self._ghosts.add(self._key[slot], life) if evicted else life
        if over is not None:
            self._reuse.lost(over.kind, (now_ns - over.used_ns) * 1e-9)
        if self._full[slot]:
            if self._end[branch] == self._depth[slot] + 1:
                self._end[branch] -= 1
            if parent != NO_SLOT:
                self._grown[parent] -= 1
        if branch == slot:  # what is left of it was dropped from between: each is its own
            left = np.flatnonzero(self._held & (self._branch == slot))
            left = left[left != slot]
            self._branch[left] = left
            self._group[left] = self._group[slot]
            self._end[left] = self._shared[left] = self._depth[left] + 1
