"""The source's side of a read between nodes: lease blocks, offer their memory, take it back.

With a codec the blocks are first encoded, into memory of their own, by the thread that
answers the reader; so a source encodes the next blocks while the last are on the wire.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from kvrelay.relay.arena import Slab, SlotHeader
from kvrelay.relay.codecs.base import Codec, codec
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.errors import RelayError
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.scratch import Scratch
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore
from kvrelay.relay.transports.base import Offer, Span, TransferError, Transport

T = TypeVar("T")
# A reader that died leaves its offer open; one that is late may still be reading.
GRACE_S = 1.0
MAX_LENT = 64
OUTBOX_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader wants to read.

    Attributes:
        reader: its node.
        keys: blocks in order; what the source lacks ends the loan.
        slot_bytes, block_tokens: sizes of the reader's slab, which must be the source's.
        transport, codec: names of the transport and the codec.
        seconds: how long the reader may take.
    """

    reader: str
    keys: tuple[bytes, ...]
    slot_bytes: int
    block_tokens: int
    transport: str
    codec: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LentBlock:
    """One block that can be read: its header's content, as the reader commits it."""

    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Lent:
    """The answer to `Ask`: the first of the asked blocks, and how to read them.

    Attributes:
        blocks: a prefix of what was asked.
        offer: spans of the blocks, in order; None if there is no block.
        refusal: why there is nothing, where it is not that the blocks are not held.
    """

    blocks: tuple[LentBlock, ...]
    offer: Offer | None
    refusal: str = ""


_Leased = tuple[Slab, LeaseRow, list[SlotHeader], list[LentBlock]]


@dataclass(frozen=True, slots=True)
class _Loan:
    offer: Offer
    transport: Transport
    until_s: float
    release: Callable[[], None]


class Hub(Protocol):
    """What lending needs of the transfer thread."""

    transports: dict[str, Transport]

    def run(self, function: Callable[[], T], timeout_s: float = ...) -> T:
        """Run something in the transfer thread."""

    def leases(self, core: StoreCore, slab_id: int) -> LeaseRow:
        """The store's own leases of a slab; in the store's thread."""

    def register(self, region: Span) -> None:
        """Make memory known to every transport, once; in the transfer thread."""

    def outbox(self, slot_bytes: int) -> Scratch:
        """Memory for encoded blocks that are offered."""


class Lending:
    """All that is lent to other nodes' stores."""

    def __init__(
        self, server: StoreServer, hub: Hub, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._hub = hub
        self._now_s = now_s
        self._loans: dict[tuple[str, int], _Loan] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def lend(self, ask: Ask) -> Lent:
        """Offer what is held of the asked blocks. Not in the transfer thread: it may wait."""
        transport = self._hub.transports.get(ask.transport)
        if transport is None:
            return Lent((), None, f"no transport '{ask.transport}' here")
        if len(self._loans) >= MAX_LENT:
            return Lent((), None, f"{MAX_LENT} loans are open already")
        until_s = self._now_s() + ask.seconds + GRACE_S
        leased = self._server.call(lambda core: self._lease(core, ask, until_s))
        if leased is None:
            return Lent((), None)
        slab, row, headers, blocks = leased
        slots = [header.slot for header in headers]

        def unlease() -> None:
            self._server.call(lambda _: row.release_all(slots))

        region = Span(slab.address(0), slab.geometry.stride_bytes * slab.geometry.num_slots)
        release: Callable[[], None] = unlease
        try:
            if ask.codec == RawCodec.name:
                spans = [Span(slab.address(slot), slab.geometry.slot_bytes) for slot in slots]
            else:
                scratch = self._hub.outbox(slab.geometry.slot_bytes)
                region, cells = scratch.region, list[int]()
                try:
                    cells, spans = _encode(codec(ask.codec), scratch, slab, slots)
                finally:  # once, whatever follows: others may have leased the same slots
                    unlease()
                    release = partial(scratch.give_back, cells)
            offer = self._hub.run(lambda: self._offer(transport, region, spans, until_s, release))
        except (RelayError, TimeoutError) as error:
            release()
            return Lent((), None, str(error))
        return Lent(tuple(blocks), offer)

    def lend_cells(
        self, transport: str, scratch: Scratch, count: int, num_bytes: int, seconds: float
    ) -> Lent:
        """Offer the beginnings of cells that nobody uses. Not in the transfer thread."""
        mover = self._hub.transports.get(transport)
        cells = scratch.take(count, OUTBOX_WAIT_S)
        if mover is None or cells is None:
            return Lent((), None, f"no transport '{transport}', or no room")
        spans = [scratch.span(cell, num_bytes) for cell in cells]
        until_s = self._now_s() + seconds + GRACE_S
        release = partial(scratch.give_back, cells)
        try:
            return Lent(
                (),
                self._hub.run(lambda: self._offer(mover, scratch.region, spans, until_s, release)),
            )
        except (RelayError, TimeoutError) as error:
            release()
            return Lent((), None, str(error))

    def take_back(self, transport: str, number: int) -> None:
        """The reader is done with an offer; harmless if it has ended."""
        loan = self._loans.pop((transport, number), None)
        if loan is not None:
            loan.transport.withdraw(loan.offer)
            loan.release()

    def expire(self) -> None:
        """End loans whose time is over."""
        now_s = self._now_s()
        for (transport, number), loan in list(self._loans.items()):
            if now_s > loan.until_s:
                self.take_back(transport, number)

    def _lease(self, core: StoreCore, ask: Ask, until_s: float) -> _Leased | None:
        """In the store's thread."""
        slab_id = core.find_slab(ask.slot_bytes, ask.block_tokens)
        if slab_id is None:
            return None
        slab, row = core.slab(slab_id), self._hub.leases(core, slab_id)
        headers: list[SlotHeader] = []
        for key in ask.keys:
            header = core.held(slab_id, key)
            if header is None:
                break
            row.take(header.slot, int(until_s * 1e9))
            slab.accesses[header.slot] = time.monotonic_ns() - len(headers)
            headers.append(header)
        if not headers:
            return None
        blocks = [LentBlock(h.key, h.parent, slab.tokens(h), h.checksum) for h in headers]
        return slab, row, headers, blocks

    def _offer(
        self,
        transport: Transport,
        region: Span,
        spans: list[Span],
        until_s: float,
        release: Callable[[], None],
    ) -> Offer:
        """In the transfer thread."""
        self._hub.register(region)
        offer = transport.offer(spans)
        self._loans[transport.name, offer.number] = _Loan(offer, transport, until_s, release)
        return offer


def _encode(
    coder: Codec, scratch: Scratch, slab: Slab, slots: list[int]
) -> tuple[list[int], list[Span]]:
    """Encode slots into cells of their own; the cells, and the encodings' spans.

    Raises:
        TransferError: there is no room.
    """
    cells = scratch.take(len(slots), OUTBOX_WAIT_S)
    if cells is None:
        raise TransferError("no room for encoded blocks")
    try:
        spans = [
            scratch.span(cell, coder.encode_into(slab.data(slot), scratch.view(cell)))
            for cell, slot in zip(cells, slots, strict=True)
        ]
    except BaseException:
        scratch.give_back(cells)
        raise
    return cells, spans
