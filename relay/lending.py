"""The source's side of a read between nodes: lease blocks, offer their memory, take it back.

Runs in the transfer thread, like everything that touches a transport.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvrelay.relay.arena import Slab
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore
from kvrelay.relay.transports.base import Offer, Span, Transport

logger = logging.getLogger(__name__)
# A reader that died leaves its offer open; one that is late may still be reading.
GRACE_S = 1.0
MAX_LENT = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """What a reader wants to read.

    Attributes:
        reader: its node.
        keys: blocks in order; what the source lacks ends the loan.
        slot_bytes, block_tokens: sizes of the reader's slab, which must be the source's.
        transport: name of the transport.
        seconds: how long the reader may take.
    """

    reader: str
    keys: tuple[bytes, ...]
    slot_bytes: int
    block_tokens: int
    transport: str
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


@dataclass(frozen=True, slots=True)
class _Loan:
    offer: Offer
    transport: Transport
    leases: LeaseRow
    slots: tuple[int, ...]
    until_s: float


class Lending:
    """All that is lent to other nodes' stores."""

    def __init__(
        self,
        server: StoreServer,
        transports: Mapping[str, Transport],
        leases: Callable[[StoreCore, int], LeaseRow],
        register: Callable[[Slab], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leases` gives the store's own row of a slab, `register` makes its memory known."""
        self._server = server
        self._transports = transports
        self._leases = leases
        self._register = register
        self._now_s = now_s
        self._loans: dict[tuple[str, int], _Loan] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def lend(self, ask: Ask) -> Lent:
        """Lease what is held of the asked blocks and offer it."""
        transport = self._transports.get(ask.transport)
        if transport is None:
            return Lent((), None, f"no transport '{ask.transport}' here")
        if len(self._loans) >= MAX_LENT:
            return Lent((), None, f"{MAX_LENT} loans are open already")
        until_s = self._now_s() + ask.seconds + GRACE_S

        def lease(core: StoreCore) -> tuple[Slab, LeaseRow, list[int], list[LentBlock]] | None:
            slab_id = core.find_slab(ask.slot_bytes, ask.block_tokens)
            if slab_id is None:
                return None
            slab, row = core.slab(slab_id), self._leases(core, slab_id)
            slots: list[int] = []
            blocks: list[LentBlock] = []
            for key in ask.keys:
                header = core.held(slab_id, key)
                if header is None:
                    break
                row.take(header.slot, int(until_s * 1e9))
                slab.accesses[header.slot] = time.monotonic_ns() - len(slots)
                slots.append(header.slot)
                blocks.append(LentBlock(key, header.parent, slab.tokens(header), header.checksum))
            return slab, row, slots, blocks

        leased = self._server.call(lease)
        if leased is None or not leased[2]:
            return Lent((), None)
        slab, row, slots, blocks = leased
        self._register(slab)
        spans = [Span(slab.address(slot), slab.geometry.slot_bytes) for slot in slots]
        try:
            offer = transport.offer(spans)
        except Exception as error:
            self._release(row, slots)
            logger.exception("blocks could not be offered")
            return Lent((), None, f"offer failed: {error}")
        self._loans[transport.name, offer.number] = _Loan(
            offer, transport, row, tuple(slots), until_s
        )
        return Lent(tuple(blocks), offer)

    def take_back(self, transport: str, number: int) -> None:
        """The reader is done with an offer; harmless if it has ended."""
        loan = self._loans.pop((transport, number), None)
        if loan is not None:
            loan.transport.withdraw(loan.offer)
            self._release(loan.leases, loan.slots)

    def expire(self) -> None:
        """End loans whose time is over."""
        now_s = self._now_s()
        for (transport, number), loan in list(self._loans.items()):
            if now_s > loan.until_s:
                self.take_back(transport, number)

    def _release(self, row: LeaseRow, slots: tuple[int, ...] | list[int]) -> None:
        def release(_: StoreCore) -> None:
            for slot in slots:
                row.release(slot)

        self._server.call(release)
