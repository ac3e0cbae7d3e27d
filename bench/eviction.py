"""Replays a trace against a store that is too small, and counts what an eviction policy saves.

The replay keeps to what the store does: the longest held prefix of a request is a hit, all its
held blocks are touched (deeper ones a nanosecond earlier, as the connector does), the rest is
computed and saved, and for that, slots are freed. The policy sees uses only when it looks at the
access words, once a second and before it evicts.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.traces import Trace
from kvrelay.policies.eviction import (
    NO_SLOT,
    EvictionPolicy,
    Floats,
    GreedyDualSizeFrequency,
    Ints,
    LeastRecentlyUsed,
)
from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.value_density import ValueDensity

OBSERVE_EVERY_NS = 1_000_000_000
POLICIES = ("lru", "gdsf", "value_density", "clairvoyant")
_SLOT_BYTES = 1 << 20  # equal for all, so it cancels


class Clairvoyant(EvictionPolicy):
    """Knows when each block is used next: seconds saved per second until then.

    Greedy as Belady's rule is, but for unequal costs no proven optimum: a reference, not a bound.
    """

    def __init__(
        self, num_slots: int, block_tokens: int, cost: PrefillCost, next_use_s: Floats
    ) -> None:
        """Args: next_use_s: of each block, kept up to date by the replay."""
        super().__init__(num_slots, block_tokens)
        self._cost = cost
        self._next_use_s = next_use_s
        self._block: Ints = np.zeros(num_slots, np.int64)

    @property
    def name(self) -> str:
        return "clairvoyant"

    def _inserted(self, slot: int, key: Hashable, num_tokens: int) -> None:
        assert isinstance(key, int)
        self._block[slot] = key

    def _values(self, slots: Ints, now_ns: int) -> Floats:
        wait_s = self._next_use_s[self._block[slots]] - now_ns * 1e-9
        length = self._depth[slots] + 1
        saved_s = self._cost.added_s(0 * length, length * self.block_tokens) / length
        return np.asarray(saved_s / np.maximum(wait_s, 1e-3))


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it.

    Attributes:
        saved_s: seconds of prefill that hits saved.
        all_s: seconds of prefill without any hit.
        hit_tokens: tokens of hits.
        all_tokens: tokens of all full blocks of all prompts.
        evictions: blocks evicted.
    """

    saved_s: float
    all_s: float
    hit_tokens: int
    all_tokens: int
    evictions: int


def replay(trace: Trace, policy_name: str, num_slots: int, cost: PrefillCost) -> Replay:
    """Replay a whole trace, from an empty store on."""
    next_use_s = np.full(trace.num_blocks, np.inf)
    policy = _policy(policy_name, num_slots, trace.block_tokens, cost, next_use_s)
    return _Store(trace, policy, num_slots, cost, next_use_s).run()


def unlimited(trace: Trace, cost: PrefillCost) -> Replay:
    """What a store without limit would save."""
    new = trace.first_seen()
    size = trace.block_tokens
    saved_s = all_s = 0.0
    for i in range(len(trace)):
        blocks = new[trace.starts[i] : trace.starts[i + 1]]
        saved_s += float(cost.added_s(0, _leading(~blocks) * size))
        all_s += float(cost.added_s(0, int(trace.input_tokens[i])))
    return Replay(saved_s, all_s, int((~new).sum()) * size, len(new) * size, 0)


def _policy(
    name: str, num_slots: int, block_tokens: int, cost: PrefillCost, next_use_s: Floats
) -> EvictionPolicy:
    if name == "lru":
        return LeastRecentlyUsed(num_slots, block_tokens)
    if name == "gdsf":
        return GreedyDualSizeFrequency(num_slots, block_tokens, cost)
    if name == "clairvoyant":
        return Clairvoyant(num_slots, block_tokens, cost, next_use_s)
    return ValueDensity(num_slots, block_tokens, _SLOT_BYTES, cost)


class _Store:
    def __init__(
        self,
        trace: Trace,
        policy: EvictionPolicy,
        num_slots: int,
        cost: PrefillCost,
        next_use_s: Floats,
    ) -> None:
        self._trace = trace
        self._policy = policy
        self._cost = cost
        self._next_use_s = next_use_s
        self._slot_of: Ints = np.full(trace.num_blocks, NO_SLOT)
        self._block_in: Ints = np.zeros(num_slots, np.int64)
        self._free = list(range(num_slots - 1, -1, -1))
        self._accesses_ns: NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self._blocked: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self._evictions = 0

    def run(self) -> Replay:
        trace, cost, size = self._trace, self._cost, self._trace.block_tokens
        again_s = _next_uses_s(trace)
        # A monotonic clock is well above 0, and touches lie a little in the past.
        times_ns = (trace.times_s * 1e9).astype(np.int64) + 1_000_000_000_000
        saved_s, all_s, hit_tokens = 0.0, 0.0, 0
        observed_ns = 0
        for i, now_ns in enumerate(times_ns.tolist()):
            blocks = trace.request_blocks(i)
            all_s += float(cost.added_s(0, int(trace.input_tokens[i])))
            if now_ns - observed_ns >= OBSERVE_EVERY_NS:
                self._policy.observe(self._accesses_ns)
                observed_ns = now_ns
            hit = self._serve(blocks, now_ns, again_s[trace.starts[i] : trace.starts[i + 1]])
            saved_s += float(cost.added_s(0, hit * size))
            hit_tokens += hit * size
        return Replay(saved_s, all_s, hit_tokens, len(trace.blocks) * size, self._evictions)

    def _serve(self, blocks: Ints, now_ns: int, again_s: Floats) -> int:
        """One request; how many leading blocks were held."""
        slots = self._slot_of[blocks]
        held = slots != NO_SLOT
        touched = np.flatnonzero(held)
        self._accesses_ns[slots[touched]] = now_ns - touched
        self._next_use_s[blocks] = again_s + 1000.0
        missing = np.flatnonzero(~held)
        if len(missing) > len(self._free):
            self._make_room(len(missing) - len(self._free), slots[touched], now_ns)
        for place in missing[: len(self._free)].tolist():
            self._save(blocks, place, now_ns)
        return _leading(held)

    def _make_room(self, count: int, in_use: Ints, now_ns: int) -> None:
        self._policy.observe(self._accesses_ns)
        self._blocked[in_use] = True
        for victim in self._policy.victims(count, self._blocked, now_ns):
            self._policy.remove(victim.slot, evicted=True, now_ns=now_ns)
            self._slot_of[self._block_in[victim.slot]] = NO_SLOT
            self._free.append(victim.slot)
            self._evictions += 1
        self._blocked[in_use] = False

    def _save(self, blocks: Ints, place: int, now_ns: int) -> None:
        slot, block = self._free.pop(), int(blocks[place])
        parent = int(self._slot_of[blocks[place - 1]]) if place else NO_SLOT
        self._slot_of[block], self._block_in[slot] = slot, block
        self._accesses_ns[slot] = now_ns
        self._policy.insert(slot, block, parent, self._trace.block_tokens, now_ns)


def _leading(held: NDArray[np.bool_]) -> int:
    return len(held) if held.all() else int(held.argmin())


def _next_uses_s(trace: Trace) -> Floats:
    """For each block of each request, when a request has it next; infinite if none has."""
    times_s = np.repeat(trace.times_s, np.diff(trace.starts))
    order = np.argsort(trace.blocks, kind="stable")
    same = trace.blocks[order][1:] == trace.blocks[order][:-1]
    again_s = np.full(len(order), np.inf)
    again_s[order[:-1][same]] = times_s[order[1:][same]]
    return again_s
