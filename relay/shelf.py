"""What the store holds of one block size: a slab's slots and their states, and encoded blocks."""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvrelay.policies.eviction import Bools
from kvrelay.relay.arena import Slab, SlabGeometry, SlotHeader
from kvrelay.relay.directory import PublishedBlock
from kvrelay.relay.encoded import EncodedBlock, EncodedMemory, num_pages
from kvrelay.relay.index import IndexWriter, find
from kvrelay.relay.keys import BlockKey
from kvrelay.relay.leases import leased
from kvrelay.relay.ledger import Ledger


class Listing(Protocol):
    """Where engines look for what is not in the arena."""

    def show_encoded(self, block: PublishedBlock, checksum: bytes) -> None:
        """This node has come to hold a block encoded."""

    def hide_encoded(self, key: bytes) -> None:
        """It no longer does."""


@dataclass(slots=True)
class Shelf:
    """See the module's head.

    Attributes:
        slab: the slots.
        index: its tables.
        ledger: what the blocks are worth.
        free: slots that nobody has.
        sealed: slots that readers can find, by key.
        reserved: slots that are being written: client and key.
        pending: the same slots by key.
        demoting: sealed slots that are being encoded.
        encoded: blocks that are held encoded, by key; none of them is sealed.
    """

    slab: Slab
    index: IndexWriter
    ledger: Ledger
    free: list[int]
    sealed: dict[bytes, int] = field(default_factory=dict)
    reserved: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    pending: dict[bytes, int] = field(default_factory=dict)
    demoting: set[int] = field(default_factory=set)
    encoded: dict[bytes, EncodedBlock] = field(default_factory=dict)

    @classmethod
    def create(
        cls, geometry: SlabGeometry, incarnation: bytes, encoded: EncodedMemory | None
    ) -> "Shelf":
        """An empty one; `encoded` is where the store keeps encoded blocks, if it does."""
        slab = Slab.create(geometry, incarnation)
        most = 0 if encoded is None else encoded.num_pages // num_pages(0, geometry.slot_bytes)
        free = list(range(geometry.num_slots - 1, -1, -1))
        return cls(slab, IndexWriter(slab), Ledger(slab, most), free)

    @property
    def stride_bytes(self) -> int:
        """What a slot takes of the arena."""
        return self.slab.geometry.stride_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of reserved and sealed slots."""
        return (len(self.sealed) + len(self.reserved)) * self.stride_bytes

    def header(self, slot: int) -> SlotHeader:
        """The header of a sealed slot."""
        header = self.slab.read_header(slot)
        if header is None:
            raise AssertionError(f"slot {slot} is not sealed")
        return header

    def published(self, key: bytes) -> PublishedBlock | None:
        """What others must know of a block; None if it is not held."""
        size = self.slab.geometry.block_tokens
        if key in self.sealed:
            header = self.header(self.sealed[key])
            return PublishedBlock(key, header.parent, self.slab.tokens(header), size)
        if key in self.encoded:
            block = self.encoded[key]
            return PublishedBlock(key, block.parent, block.tokens, size)
        return None

    def blocked(self, now_ns: int) -> Bools:
        """Slots that must stay for now: [num_slots]."""
        blocked = leased(self.slab, now_ns)
        blocked[list(self.demoting)] = True
        return blocked

    def unreserve(self, slot: int) -> None:
        """A reserved slot will not be committed."""
        _, key = self.reserved.pop(slot)
        del self.pending[key]
        self.free.append(slot)

    def unseal(self, header: SlotHeader) -> None:
        """Free a sealed slot."""
        # Unseal first: a reader that copies right now finds another generation afterwards.
        self.slab.set_state(header.slot, ((header.state >> 1) + 1) << 1)
        self.index.remove(header)
        del self.sealed[header.key]
        self.demoting.discard(header.slot)
        self.free.append(header.slot)

    def check_integrity(self, clients: Set[int]) -> None:
        """Check every invariant that concerns this size alone.

        Raises:
            AssertionError: naming the one that does not hold.
        """
        sealed, reserved, free = set(self.sealed.values()), set(self.reserved), set(self.free)
        require(len(free) == len(self.free), "a slot is free twice")
        require(len(sealed) == len(self.sealed), "two keys share a slot")
        require(
            not (sealed & reserved or sealed & free or reserved & free), "a slot is in two states"
        )
        require(len(sealed | reserved | free) == self.slab.geometry.num_slots, "a slot is lost")
        require(
            self.pending == {key: slot for slot, (_, key) in self.reserved.items()},
            "pending keys and reservations differ",
        )
        require(
            {owner for owner, _ in self.reserved.values()} <= clients,
            "a reservation outlived its client",
        )
        for key, slot in self.sealed.items():
            found = find(self.slab, BlockKey(key))
            require(found is not None and found.slot == slot, "a sealed key is not found")
        require(not self.sealed.keys() & self.encoded.keys(), "a block is held twice")
        require(all(block.held for block in self.encoded.values()), "a block is gone and held")
        require(self.ledger.agrees(self.sealed, self.encoded), "the ledger knows of other blocks")
        for slot in reserved | free:
            require(not self.slab.state(slot) & 1, "a slot that is not committed is visible")
        for table in (self.slab.key_table, self.slab.parent_table):
            entries = np.frombuffer(table, np.uint32)
            require(
                int(((entries > 0) & (entries < 0xFFFFFFFF)).sum()) <= len(sealed),
                "a table has more entries than there are sealed slots",
            )


def require(holds: bool, what: str) -> None:
    """Raise AssertionError unless it holds."""
    if not holds:
        raise AssertionError(what)
