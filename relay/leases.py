"""Leases: a reader's claim that a slot be left alone until a time.

A lease is one word in shared memory, row = client, column = slot, holding the monotonic
time in ns at which it ends. The client writes its own row, the store only reads it, and
clears it when the client's connection closes, which the kernel sees to when a process dies.
So taking one costs a store instruction, not a message, and none outlives its owner.

A lease is a courtesy to the reader, not what correctness rests on: a reader whose lease ran
out, or who raced an eviction, finds the generation changed after its copy and recomputes.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvrelay.relay.arena import MAX_CLIENTS, Slab


class LeaseRow:
    """The leases of one client on one slab."""

    def __init__(self, slab: Slab, client_id: int) -> None:
        if not 0 <= client_id < MAX_CLIENTS:
            raise ValueError(f"client_id {client_id} outside [0, {MAX_CLIENTS})")
        num_slots = slab.geometry.num_slots
        self._row = slab.leases[client_id * num_slots : (client_id + 1) * num_slots]
        self._counts: Counter[int] = Counter()

    def take(self, slot: int, until_ns: int) -> None:
        """Lease a slot; several leases of one slot are counted, the latest end holds."""
        self._counts[slot] += 1
        self._row[slot] = max(self._row[slot], until_ns)

    def release(self, slot: int) -> None:
        """Give one lease back.

        Raises:
            KeyError: the slot is not leased here.
        """
        if slot not in self._counts:
            raise KeyError(f"slot {slot} is not leased")
        self._counts[slot] -= 1
        if not self._counts[slot]:
            del self._counts[slot]
            self._row[slot] = 0

    def release_all(self, slots: Sequence[int]) -> None:
        """Give one lease of each of these slots back."""
        for slot in slots:
            self.release(slot)

    def __len__(self) -> int:
        """Leases held, each slot once."""
        return len(self._counts)


def leased(slab: Slab, now_ns: int) -> NDArray[np.bool_]:
    """Which slots some client has leased beyond `now_ns`: [num_slots]."""
    table = np.frombuffer(slab.leases, np.uint64).reshape(MAX_CLIENTS, -1)
    return np.asarray((table > np.uint64(now_ns)).any(axis=0))


def clear_client(slab: Slab, client_id: int) -> None:
    """End all leases of a client that has gone (store only)."""
    table = np.frombuffer(slab.leases, np.uint64).reshape(MAX_CLIENTS, -1)
    table[client_id] = 0
