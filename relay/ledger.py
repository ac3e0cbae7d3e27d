"""What the blocks of one size are worth, in the arena or encoded.

A block has a number here for as long as the store has it, whichever of its two places it is in.
So what is known of its use goes with it when it is demoted, and comes back with it.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvrelay.policies.eviction import NO_SLOT, Bools, Ints
from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.value_density import ValueDensity
from kvrelay.relay.arena import Slab


class Ledger:
    """Uses and worth of the blocks of one slab, and of the encoded ones of its size."""

    def __init__(self, slab: Slab, max_encoded: int) -> None:
        """Nothing held; `max_encoded` is the most blocks that can be held encoded."""
        g = slab.geometry
        count = g.num_slots + max_encoded
        self._slab = slab
        self._stride_bytes = g.stride_bytes
        self._policy = ValueDensity(count, g.block_tokens, g.stride_bytes, PrefillCost())
        self._free = list(range(count - 1, -1, -1))
        self._numbers: dict[bytes, int] = {}
        self._keys = [b""] * count
        self._slots: Ints = np.full(count, NO_SLOT, np.int64)  # by number; none if encoded
        self._used_ns: NDArray[np.uint64] = np.zeros(count, np.uint64)

    def insert(self, key: bytes, slot: int, parent: bytes, num_tokens: int, now_ns: int) -> None:
        """A block has become visible in a slot: a new one, or an encoded one that is back.

        `now_ns` is also what the slot's access word holds.
        """
        number = self._numbers.get(key)
        if number is None:
            before = self._numbers.get(parent, NO_SLOT)
            number = self._numbers[key] = self._free.pop()
            self._keys[number] = key
            self._policy.insert(number, key, before, num_tokens, now_ns)
        else:
            self._policy.promote(number)
        self._slots[number] = slot

    def demote(self, key: bytes) -> None:
        """A block has left its slot and is held encoded."""
        number = self._numbers[key]
        self._used_ns[number] = self._slab.accesses[int(self._slots[number])]
        self._slots[number] = NO_SLOT
        self._policy.demote(number)

    def remove(self, key: bytes, needed: bool, now_ns: int) -> None:
        """A block is not held any more, because its room was `needed` or it was of no use."""
        number = self._numbers.pop(key)
        self._policy.remove(number, needed, now_ns)
        self._slots[number] = NO_SLOT
        self._free.append(number)

    def use(self, key: bytes, now_ns: int) -> None:
        """An encoded block has been read; what is in slots tells that itself."""
        self._used_ns[self._numbers[key]] = now_ns

    def observe(self) -> None:
        """Take note of what readers have used."""
        numbers = np.flatnonzero(self._slots != NO_SLOT)
        accesses = np.frombuffer(self._slab.accesses, np.uint64)
        self._used_ns[numbers] = accesses[self._slots[numbers]]
        self._policy.observe(self._used_ns)

    def victims(self, count: int, blocked: Bools, now_ns: int) -> list[tuple[float, int]]:
        """The slots worth least: (expected seconds saved per second and byte, slot).

        Args:
            blocked: slots that must stay: [num_slots].
        """
        numbers = np.flatnonzero(self._slots != NO_SLOT)
        theirs = np.zeros(len(self._slots), np.bool_)
        theirs[numbers] = blocked[self._slots[numbers]]
        victims = self._policy.victims(count, theirs, now_ns)
        return [(victim.value, int(self._slots[victim.slot])) for victim in victims]

    def encoded_victims(
        self, count: int, blocked: Iterable[bytes], now_ns: int
    ) -> list[tuple[float, bytes]]:
        """The encoded blocks worth least: (expected seconds saved per second, key).

        Args:
            blocked: keys of encoded blocks that must stay.
        """
        theirs = np.zeros(len(self._slots), np.bool_)
        theirs[[self._numbers[key] for key in blocked]] = True
        victims = self._policy.victims(count, theirs, now_ns, demoted=True)
        return [(victim.value * self._stride_bytes, self._keys[victim.slot]) for victim in victims]

    def agrees(self, sealed: dict[bytes, int], encoded: Iterable[bytes]) -> bool:
        """Whether it knows of exactly these blocks: key to slot, and keys of encoded ones."""
        known = {key: int(self._slots[number]) for key, number in self._numbers.items()}
        expected = sealed | dict.fromkeys(encoded, NO_SLOT)
        return known == expected and self._policy.held() == set(self._numbers.values())
