"""One read: consecutive blocks of a fetch, from one source, in one way.

    queued -> asked -> lent -> (room for encodings) -> reading -> landed

Lives in the transfer thread (transfer.py), like the fetch that it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from kvrelay.policies import Reason
from kvrelay.relay.arena import Slab
from kvrelay.relay.codecs.base import CodecError, codec
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.lending import Ask, Lent, LentBlock
from kvrelay.relay.routes import Way
from kvrelay.relay.transports.base import Span, Transfer, TransferError

if TYPE_CHECKING:
    from kvrelay.relay.transfer import Answer, Peer, Transfers

MAX_READS_PER_SOURCE = 4


class ReadFailed(Exception):
    """A read brought less than it was to bring; `reason` says why."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Read:
    """See the module's head.

    Attributes:
        slots: where the blocks go, reserved by this store.
        rest: what the source has too but did not lend this time, for another read.
        landed: how many, from the first on, have come and were right.
        wire_bytes: what has been moved for those.
    """

    node_id: str
    peer: Peer
    way: Way
    slab: Slab
    keys: list[bytes]
    slots: list[int]
    rest: list[tuple[bytes, int]] = field(default_factory=list)
    queued_s: float = field(default_factory=time.perf_counter)
    asked_s: float | None = None
    answer: Answer | None = None
    lent: Lent | None = None
    transfer: Transfer | None = None
    cells: list[int] = field(default_factory=list)  # encodings on their way in
    landed: int = 0
    wire_bytes: int = 0
    ended_s: float | None = None
    given_up: bool = False

    def advance(self, transfers: Transfers, seconds_left: float) -> list[tuple[int, LentBlock]]:
        """Move on; slots whose bytes have come and are right, with what they hold.

        Raises:
            ReadFailed: no more will come.
            TransferError: the same, by the transport or the source.
        """
        if self.asked_s is None:
            if transfers.reading[self.node_id] >= MAX_READS_PER_SOURCE:
                return []
            self._ask(transfers, seconds_left)
        if self.lent is None and self.answer is not None:
            self.lent = self.answer.poll()
            if self.lent is not None:
                self._take_in(self.lent)
        if self.lent is not None and self.transfer is None:
            self._start(transfers, self.lent)
        if self.transfer is None or self.lent is None:
            return []
        arrived = self.transfer.poll()
        good = []
        try:
            while self.landed < arrived:
                good.append(self._take(transfers, self.lent, self.landed))
                self.landed += 1
        except ReadFailed:
            if not good:
                raise
            return good  # the next call meets the bad one again
        if self.landed == len(self.lent.blocks):
            if self.landed == len(self.keys):
                self.ended_s = time.perf_counter()
            elif not good:
                raise ReadFailed(Reason.SOURCE_LOST, f"{self.node_id} has not all blocks")
        return good

    def give_up(self, transfers: Transfers, free_slots: Callable[[], None]) -> None:
        """End early; `free_slots` is called once nothing can write to the slots any more."""
        self.given_up = True
        peer, lent, cells = self.peer, self.lent, self.cells
        scratch = transfers.inbox(self.slab.geometry.slot_bytes) if cells else None
        self.cells = []

        def free() -> None:
            if scratch is not None:
                scratch.give_back(cells)
            else:
                free_slots()
            if lent is not None and lent.offer is not None:
                peer.take_back(lent.offer)

        if scratch is not None:
            free_slots()  # only cells were within the transport's reach
        if self.transfer is None:
            free()
            return
        self.transfer.cancel()
        count = len(cells) or len(self.keys) - self.landed
        transfers.quarantine(self.transfer, count, free)

    def finish(self) -> None:
        """All has come: the source may have its blocks back."""
        if self.lent is not None and self.lent.offer is not None:
            self.peer.take_back(self.lent.offer)

    def take_rest(self) -> list[Read]:
        """The read that brings the rest, if there is one; each is given out once."""
        rest, self.rest = self.rest, []
        keys, slots = [key for key, _ in rest], [slot for _, slot in rest]
        return [Read(self.node_id, self.peer, self.way, self.slab, keys, slots)] if rest else []

    @property
    def complete(self) -> bool:
        """Whether all of its blocks have come."""
        return self.ended_s is not None

    def _ask(self, transfers: Transfers, seconds_left: float) -> None:
        transfers.reading[self.node_id] += 1
        self.asked_s = time.perf_counter()
        g = self.slab.geometry
        ask = Ask(
            reader=transfers.node_id,
            keys=tuple(self.keys),
            slot_bytes=g.slot_bytes,
            block_tokens=g.block_tokens,
            transport=self.way.transport,
            codec=self.way.codec,
            seconds=seconds_left,
        )
        self.answer = self.peer.ask(ask)

    def _take_in(self, lent: Lent) -> None:
        if lent.refusal:
            raise TransferError(f"{self.node_id}: {lent.refusal}")
        keys = [block.key for block in lent.blocks]
        if lent.offer is None or not keys or keys != self.keys[: len(keys)]:
            raise ReadFailed(Reason.SOURCE_LOST, f"{self.node_id} has none of the blocks")
        sizes = [span.num_bytes for span in lent.offer.spans]
        size = self.slab.geometry.slot_bytes
        fits = [size] * len(keys) if self.way.codec == RawCodec.name else sizes
        if len(sizes) != len(keys) or sizes != fits:
            raise TransferError(f"{self.node_id} offers blocks of another size")
        if lent.more:
            count = len(keys)
            self.rest = list(zip(self.keys[count:], self.slots[count:], strict=True))
            self.keys, self.slots = self.keys[:count], self.slots[:count]

    def _start(self, transfers: Transfers, lent: Lent) -> None:
        if lent.offer is None:
            return
        g = self.slab.geometry
        spans = lent.offer.spans
        if self.way.codec == RawCodec.name:
            region = Span(self.slab.address(0), g.stride_bytes * g.num_slots)
            slots = self.slots[: len(spans)]
            targets = [Span(self.slab.address(slot), g.slot_bytes) for slot in slots]
        else:
            scratch = transfers.inbox(g.slot_bytes)
            if max(span.num_bytes for span in spans) > len(scratch.view(0)):
                raise TransferError(f"{self.node_id} offers encodings that are too long")
            cells = scratch.take(len(spans))
            if cells is None:
                return  # others' encodings are on their way in: the next call tries again
            self.cells = cells
            region = scratch.region
            targets = [
                scratch.span(cell, span.num_bytes) for cell, span in zip(cells, spans, strict=True)
            ]
        transfers.register(region)
        self.transfer = transfers.transports[self.way.transport].read(lent.offer, targets)

    def _take(self, transfers: Transfers, lent: Lent, number: int) -> tuple[int, LentBlock]:
        """A block that has arrived, decoded and verified."""
        if lent.offer is None:
            raise AssertionError("blocks have landed that were not offered")
        block, slot = lent.blocks[number], self.slots[number]
        num_bytes = lent.offer.spans[number].num_bytes
        if self.way.codec != RawCodec.name:
            scratch = transfers.inbox(self.slab.geometry.slot_bytes)
            encoded = scratch.view(self.cells[0])[:num_bytes]
            try:
                codec(self.way.codec).decode(encoded, self.slab.data(slot))
            except CodecError as error:
                raise ReadFailed(Reason.LOAD_CORRUPT, str(error)) from error
        if xxhash.xxh3_128_digest(self.slab.data(slot)) != block.checksum:
            raise ReadFailed(Reason.LOAD_CORRUPT, f"block {number} from {self.node_id}")
        if self.way.codec != RawCodec.name:
            scratch.give_back([self.cells.pop(0)])
        self.wire_bytes += num_bytes
        return slot, block
