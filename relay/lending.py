"""The source's side of a read between nodes: lease blocks, offer their memory, take it back.

Raw blocks are offered where they are, in the arena. Whatever is not there in the form that the
reader wants is first brought into that form, in cells of their own, by the thread that answers
the reader; so a source encodes the next blocks while the last are on the wire. Blocks that it
holds encoded are offered as they are, in cells too, unless the reader wants another form.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from kvrelay.relay.arena import Slab
from kvrelay.relay.codecs.base import codec
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.encoded import EncodedBlock
from kvrelay.relay.errors import RelayError
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.scratch import Scratch
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore
from kvrelay.relay.transports.base import Offer, Span, TransferError, Transport

logger = logging.getLogger(__name__)
T = TypeVar("T")
# A reader that died leaves its offer open; one that is late may still be reading.
GRACE_S = 1.0
MAX_LENT = 64
OUTBOX_WAIT_S = 1.0
# Blocks that need cells come in several reads, so that encoding, wire and decoding overlap.
ENCODED_BLOCKS = 4


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
        more: more of what was asked is held; to be asked for again, since it needs cells.
    """

    blocks: tuple[LentBlock, ...]
    offer: Offer | None
    refusal: str = ""
    more: bool = False


@dataclass(slots=True)
class _Held:
    """What is held of what was asked, in order: leased slots, and pinned encodings."""

    slab: Slab
    row: LeaseRow
    blocks: list[LentBlock]
    sources: list[int | EncodedBlock]
    more: bool = False

    @property
    def slots(self) -> list[int]:
        return [source for source in self.sources if isinstance(source, int)]

    @property
    def encoded(self) -> list[EncodedBlock]:
        return [source for source in self.sources if isinstance(source, EncodedBlock)]

    def unlease(self) -> None:
        """In the store's thread, once."""
        self.row.release_all(self.slots)

    def unpin(self) -> None:
        """In the store's thread, once."""
        for block in self.encoded:
            block.unpin()


@dataclass(frozen=True, slots=True)
class _Filled:
    """Where blocks are in the form that the reader wants: slots, or cells of a scratch."""

    spans: list[Span]
    scratch: Scratch | None = None
    cells: tuple[int, ...] = ()
    damaged: EncodedBlock | None = None  # what ended it early

    def give_back(self) -> None:
        if self.scratch is not None:
            self.scratch.give_back(list(self.cells))


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
        held = self._server.call(lambda core: self._lease(core, ask, until_s))
        if held is None:
            return Lent((), None)
        in_slots = False  # whether slots themselves are offered, which must stay then
        try:
            filled = _fill(ask.codec, held, partial(self._hub.outbox, ask.slot_bytes))
            in_slots = ask.codec == RawCodec.name
        except RelayError as error:
            return Lent((), None, str(error))
        finally:
            if held.encoded:
                self._server.call(lambda _: held.unpin())
            if not in_slots:
                self._server.call(lambda _: held.unlease())

        def release() -> None:
            filled.give_back()
            if in_slots:
                self._server.call(lambda _: held.unlease())

        damaged, slab = filled.damaged, held.slab
        if damaged is not None:
            logger.error("an encoded block is damaged and dropped")
            self._server.call(lambda core: core.drop([damaged.key]))
        if not filled.spans:
            release()
            return Lent((), None)
        regions = []
        if in_slots:
            size = slab.geometry.stride_bytes * slab.geometry.num_slots
            regions.append(Span(slab.address(0), size))
        if filled.scratch is not None:
            regions.append(filled.scratch.region)
        try:
            offer = self._hub.run(
                lambda: self._offer(transport, regions, filled.spans, until_s, release)
            )
        except (RelayError, TimeoutError) as error:
            release()
            return Lent((), None, str(error))
        blocks = tuple(held.blocks[: len(filled.spans)])
        return Lent(blocks, offer, more=held.more and damaged is None)

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
                self._hub.run(
                    lambda: self._offer(mover, [scratch.region], spans, until_s, release)
                ),
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

    def _lease(self, core: StoreCore, ask: Ask, until_s: float) -> _Held | None:
        """In the store's thread."""
        slab_id = core.find_slab(ask.slot_bytes, ask.block_tokens)
        if slab_id is None:
            return None
        held = _Held(core.slab(slab_id), self._hub.leases(core, slab_id), [], [])
        for key in ask.keys:
            now_ns = time.monotonic_ns() - len(held.blocks)
            header = core.held(slab_id, key)
            if header is not None:
                held.row.take(header.slot, int(until_s * 1e9))
                held.slab.accesses[header.slot] = now_ns
                tokens = held.slab.tokens(header)
                held.sources.append(header.slot)
                held.blocks.append(LentBlock(key, header.parent, tokens, header.checksum))
                continue
            block = core.pin_encoded(slab_id, key, now_ns)
            if block is None:
                break
            if len(held.encoded) == ENCODED_BLOCKS:
                block.unpin()
                held.more = True
                break
            held.sources.append(block)
            held.blocks.append(LentBlock(key, block.parent, block.tokens, block.checksum))
        return held if held.blocks else None

    def _offer(
        self,
        transport: Transport,
        regions: Sequence[Span],
        spans: list[Span],
        until_s: float,
        release: Callable[[], None],
    ) -> Offer:
        """In the transfer thread."""
        for region in regions:
            self._hub.register(region)
        offer = transport.offer(spans)
        self._loans[transport.name, offer.number] = _Loan(offer, transport, until_s, release)
        return offer


def _fill(name: str, held: _Held, outbox: Callable[[], Scratch]) -> _Filled:
    """Bring blocks into the form of a codec; those that cannot be, and what follows, are left out.

    Raises:
        RelayError: there is no room, or no such codec.
    """
    slab, raw = held.slab, name == RawCodec.name
    size = slab.geometry.slot_bytes
    if raw and not held.encoded:
        return _Filled([Span(slab.address(slot), size) for slot in held.slots])
    coder, scratch = codec(name), outbox()
    count = len(held.encoded) if raw else len(held.sources)
    taken = scratch.take(count + 1, OUTBOX_WAIT_S)  # one to decode by way of
    if taken is None:
        raise TransferError("no room for encoded blocks")
    spare, *free = taken
    cells: list[int] = []
    spans: list[Span] = []
    damaged = None

    def write(source: int | EncodedBlock, room: memoryview) -> int | None:
        """Fill a cell; how many bytes, None if the source is damaged."""
        if isinstance(source, int):
            return coder.encode_into(slab.data(source), room)
        if source.codec == name:
            return len(source.copy_to(room))
        if raw:
            return size if source.decode_to(room[:size], scratch.view(spare)) else None
        decoded = scratch.view(spare)[:size]
        return coder.encode_into(decoded, room) if source.decode_to(decoded, room) else None

    try:
        for source in held.sources:
            if raw and isinstance(source, int):
                spans.append(Span(slab.address(source), size))
                continue
            num_bytes = write(source, scratch.view(free[-1]))
            if num_bytes is None:
                damaged = source if isinstance(source, EncodedBlock) else None
                break
            cells.append(free.pop())
            spans.append(scratch.span(cells[-1], num_bytes))
    except BaseException:
        scratch.give_back(taken)
        raise
    scratch.give_back([spare, *free])
    return _Filled(spans, scratch, tuple(cells), damaged)
