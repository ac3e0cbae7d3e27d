"""One fetch: blocks that an engine of this node waits for and that are not in the arena.

They are decoded, if this node holds them encoded, or read from other nodes' stores. Lives in the
transfer thread (transfer.py). `advance` is called over and over and never waits for anything but
the store's own thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvrelay.policies import Reason
from kvrelay.relay import index, protocol
from kvrelay.relay.arena import Slab, SlotHeader
from kvrelay.relay.codecs.base import NAMES as CODECS
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.encoded import EncodedBlock
from kvrelay.relay.keys import BlockKey
from kvrelay.relay.lending import ENCODED_BLOCKS, GRACE_S, LentBlock
from kvrelay.relay.read import Read, ReadFailed
from kvrelay.relay.routes import Way
from kvrelay.relay.store import Entry, Refusal, StoreCore
from kvrelay.relay.transports.base import TransferError

if TYPE_CHECKING:
    from kvrelay.relay.transfer import Peer, Transfers

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.01  # whether somebody still writes what a fetch waits for


@dataclass(slots=True)
class _Totals:
    sources: dict[str, None] = field(default_factory=dict)
    ways: dict[tuple[Way, str], None] = field(default_factory=dict)
    codecs: dict[str, None] = field(default_factory=dict)
    num_bytes: int = 0
    decoded_bytes: int = 0
    wire_bytes: int = 0
    queue_s: float = 0.0


class Fetch:
    """One `protocol.Fetch` until its client has what it needs."""

    def __init__(
        self, transfers: Transfers, client_id: int, message: protocol.Fetch, ahead: bool = False
    ) -> None:
        """See the module's head; with `ahead` it is the store itself that wants the blocks."""
        self.client_id, self.number = client_id, message.number
        self.ended = False
        # What has come ahead: sealed slots, and their access words at that time.
        self.came: list[tuple[SlotHeader, int]] = []
        self._ahead = ahead
        self._t = transfers
        self._slab_id = message.slab_id
        self._slab: Slab | None = None
        self._deadline_ns = message.deadline_ns
        self._begun_s = time.perf_counter()
        self._keys = list(dict.fromkeys(message.keys))
        self._granted: dict[bytes, int] = {}
        self._encoded: dict[bytes, EncodedBlock] = {}  # granted ones to decode, pinned
        self._elsewhere: set[bytes] = set()  # somebody here is writing them
        self._looked_s = self._begun_s
        self._leased: list[int] = []
        self._reads: list[Read] = []
        self._tried: set[str] = set()
        self._retried = False
        self._totals = _Totals()
        self._cut: Reason | None = None  # why the fetch will end short, once the rest has come

    # Called by the transfer thread

    def start(self) -> None:
        """Claim slots and plan reads; what this node holds already lands at once."""
        self._cut = self._t.server.call(self._claim)
        if self._granted:
            self._cut = self._plan() or self._cut

    def advance(self) -> None:
        """Move everything on by what has happened."""
        if self.ended:
            return
        if self._left_s() <= 0:
            self._give_up(Reason.LOAD_DEADLINE)
            return
        self._look_elsewhere()
        for read in list(self._reads):
            if not read.complete and not read.given_up:
                self._advance(read)
        self._decode()
        reading = not all(read.complete for read in self._reads)
        if not (reading or self._encoded or self._elsewhere):
            self._finish(self._cut)

    def cancel(self) -> None:
        """The client needs no more."""
        if not self.ended:
            self._give_up(None)

    def fault(self) -> None:
        """Something unforeseen has happened: the client recomputes what has not landed."""
        if not self.ended:
            self._give_up(Reason.LOAD_FAULT)

    def release(self) -> None:
        """Give back the leases on what has landed."""
        slots, self._leased = self._leased, []
        if slots:
            self._t.server.call(lambda core: self._t.leases(core, self._slab_id).release_all(slots))

    @property
    def expired(self) -> bool:
        """Whether the client has had more than its time to copy what landed."""
        return self.ended and self._left_s() < -GRACE_S

    # Steps

    def _left_s(self) -> float:
        return (self._deadline_ns - time.monotonic_ns()) / 1e9

    def _claim(self, core: StoreCore) -> Reason | None:
        """In the store's thread: lease what is here, reserve slots for the rest."""
        self._slab = core.slab(self._slab_id)
        self._lease(core, [h for key in self._keys if (h := core.held(self._slab_id, key))])
        wanted = [key for key in self._keys if core.held(self._slab_id, key) is None]
        granted, refused = core.reserve(self._t.own_id(core), self._slab_id, wanted)
        self._granted = dict(granted)
        left_out = [key for key in wanted if key not in self._granted]
        if not refused.get(Refusal.FULL):
            self._elsewhere = set(left_out)
            self._pin(core, self._granted)
            return None
        # Some are full, some being written: without asking which, none is waited for.
        first = self._keys.index(left_out[0])
        surplus = [key for key in self._keys[first:] if key in self._granted]
        slots = [self._granted.pop(key) for key in surplus]
        core.abort(self._t.own_id(core), self._slab_id, slots)
        self._keys = self._keys[:first]
        self._pin(core, self._granted)
        return Reason.NO_ROOM

    def _pin(self, core: StoreCore, keys: Iterable[bytes]) -> None:
        """In the store's thread: have those of granted blocks stay that are encoded here."""
        now_ns = time.monotonic_ns()
        for key in keys:
            block = core.pin_encoded(self._slab_id, key, now_ns)
            if block is not None:
                self._encoded[key] = block

    def _lease(self, core: StoreCore, headers: Sequence[SlotHeader]) -> None:
        """In the store's thread: lease sealed slots for the client and say that they are there."""
        row = self._t.leases(core, self._slab_id)
        until_ns = self._deadline_ns + int(GRACE_S * 1e9)
        for header in headers:
            row.take(header.slot, until_ns)
            self._leased.append(header.slot)
        blocks = [protocol.LandedBlock(h.key, h.slot, h.state, h.checksum) for h in headers]
        for start in range(0, len(blocks), protocol.MAX_KEYS):
            part = blocks[start : start + protocol.MAX_KEYS]
            self._t.server.push(self.client_id, protocol.Landed(self.number, part))

    def _plan(self) -> Reason | None:
        """Divide what is to be read among sources; what nobody has is given up."""
        coming = {key for read in self._reads for key in read.keys} | self._encoded.keys()
        keys = [key for key in self._keys if key in self._granted and key not in coming]
        offered = self._t.catalog.nodes()
        mine = tuple(self._t.transports)
        at = 0
        while at < len(keys):
            places = [
                (node_id, way)
                for node_id in self._t.catalog.places(keys[at])
                if node_id not in self._tried
                and (way := self._t.routes.choose(node_id, offered.get(node_id, ()), mine, CODECS))
            ]
            if not places:
                break
            runs = {node_id: self._run_length(node_id, keys[at:]) for node_id, _ in places}
            node_id, way = min(
                places, key=lambda place: (-runs[place[0]], self._t.reading[place[0]])
            )
            run = keys[at : at + runs[node_id]]
            try:
                peer = self._t.peer(node_id)
            except TransferError:
                self._t.routes.failed(node_id)
                self._tried.add(node_id)
                continue
            self._read(node_id, peer, way, run)
            at += len(run)
        lost = keys[at:]
        if not lost:
            return None
        self._abort(lost)
        self._trim(self._keys.index(lost[0]))
        return Reason.SOURCE_LOST

    def _read(self, node_id: str, peer: Peer, way: Way, keys: list[bytes]) -> None:
        slab = self._slab
        if slab is None:
            raise AssertionError("a read before the claim")
        count = len(keys) if way.codec == RawCodec.name else ENCODED_BLOCKS
        for start in range(0, len(keys), count):
            part = keys[start : start + count]
            slots = [self._granted[key] for key in part]
            self._reads.append(Read(node_id, peer, way, slab, part, slots))

    def _run_length(self, node_id: str, keys: Sequence[bytes]) -> int:
        return next(
            (n for n, key in enumerate(keys) if node_id not in self._t.catalog.places(key)),
            len(keys),
        )

    def _look_elsewhere(self) -> None:
        """Take in what others have written meanwhile."""
        slab = self._slab
        if not self._elsewhere or slab is None:
            return
        there = [h for key in self._elsewhere if (h := index.find(slab, BlockKey(key)))]
        if there:
            self._elsewhere -= {header.key for header in there}
            self._t.server.call(lambda core: self._lease(core, there))
        now_s = time.perf_counter()
        if self._elsewhere and now_s - self._looked_s > LOOK_AGAIN_S:
            self._looked_s = now_s
            no_room = self._t.server.call(self._take_over)
            if cut := self._plan() or no_room:
                self._trim(len(self._keys))
                self._cut = self._cut or cut

    def _take_over(self, core: StoreCore) -> Reason | None:
        """In the store's thread: reserve what its writer has given up, to read it oneself."""
        slab_id = self._slab_id
        given_up = [
            key
            for key in self._keys
            if key in self._elsewhere
            and not core.being_written(slab_id, key)
            and core.held(slab_id, key) is None
        ]
        granted, _ = core.reserve(self._t.own_id(core), slab_id, given_up)
        self._granted.update(granted)
        self._pin(core, [key for key, _ in granted])
        self._elsewhere -= {key for key, _ in granted}
        if len(granted) == len(given_up):
            return None
        refused = next(key for key in given_up if key not in self._granted)
        self._keys = self._keys[: self._keys.index(refused)]
        self._elsewhere &= set(self._keys)
        return Reason.NO_ROOM

    def _advance(self, read: Read) -> None:
        good: list[tuple[int, LentBlock]] = []
        failure: ReadFailed | TransferError | None = None
        try:
            good = read.advance(self._t, self._left_s())
        except (ReadFailed, TransferError) as error:
            failure = error
        self._reads += read.take_rest()
        if good:
            self._commit([self._entry(slot, block) for slot, block in good])
            num_bytes = read.slab.geometry.slot_bytes * len(good)
            self._totals.num_bytes += num_bytes
            self._t.counters["fetched_blocks"] += len(good)
            self._t.counters["fetched_bytes"] += num_bytes
        if failure is not None:
            self._failed(read, failure)
        if read.complete:
            self._over(read)

    def _decode(self) -> None:
        """Bring a few blocks into their slots that this node holds encoded."""
        slab = self._slab
        good: list[bytes] = []
        damaged = None
        for key, block in list(self._encoded.items())[:ENCODED_BLOCKS]:  # then others' turn
            if slab is None or damaged is not None:
                break
            room = self._t.room(slab.geometry.slot_bytes)
            if block.decode_to(slab.data(self._granted[key]), room):
                good.append(key)
            else:
                damaged = key
        if good and slab is not None:
            blocks = [self._encoded.pop(key) for key in good]
            self._commit([self._entry(self._granted[b.key], b) for b in blocks], blocks)
            self._totals.decoded_bytes += slab.geometry.slot_bytes * len(good)
            self._totals.codecs |= {block.codec: None for block in blocks}
            self._t.counters["decoded_blocks"] += len(good)
        if damaged is not None:
            self._drop_damaged(damaged)

    def _drop_damaged(self, key: bytes) -> None:
        """An encoding of this node is of no use; the block may come from another place."""
        self._t.counters[f"failed_{Reason.LOAD_CORRUPT}"] += 1
        logger.error("an encoded block is damaged and dropped")
        self._unpin([key])
        self._t.server.call(lambda core: core.drop([key]))
        if self._plan() is not None:
            self._cut = self._cut or Reason.LOAD_CORRUPT

    def _commit(self, entries: list[Entry], decoded: Sequence[EncodedBlock] = ()) -> None:
        def commit(core: StoreCore) -> None:
            for block in decoded:
                block.unpin()
            core.commit(self._t.own_id(core), self._slab_id, entries)
            held = [h for e in entries if (h := core.held(self._slab_id, e.key))]
            if self._ahead:
                accesses = core.slab(self._slab_id).accesses
                self.came += [(header, accesses[header.slot]) for header in held]
            self._lease(core, held)

        self._t.server.call(commit)
        for entry in entries:
            del self._granted[entry.key]

    def _entry(self, slot: int, block: EncodedBlock | LentBlock) -> Entry:
        return Entry(slot, block.key, block.parent, block.tokens, block.checksum, self._ahead)

    def _over(self, read: Read) -> None:
        """A read has ended, well or not: count it."""
        if read.asked_s is None:
            return
        self._t.reading[read.node_id] -= 1
        totals = self._totals
        totals.queue_s += read.asked_s - read.queued_s
        totals.wire_bytes += read.wire_bytes
        self._t.counters["wire_bytes"] += read.wire_bytes
        if read.landed and read.lent is not None and read.lent.offer is not None:
            path = self._t.transports[read.way.transport].path(read.lent.offer)
            totals.sources[read.node_id] = None
            totals.ways[read.way, path] = None
            totals.codecs[read.way.codec] = None
        if read.ended_s is not None:
            num_bytes = len(read.keys) * read.slab.geometry.slot_bytes
            seconds = read.ended_s - read.asked_s
            self._t.routes.measured(read.node_id, read.way, num_bytes, seconds)
            read.finish()

    def _failed(self, read: Read, error: Exception) -> None:
        """Give a read up; its remaining blocks may come from another place, once."""
        reason = error.reason if isinstance(error, ReadFailed) else Reason.TRANSFER_FAILED
        self._t.counters[f"failed_{reason}"] += 1
        if reason is Reason.TRANSFER_FAILED:
            logger.warning("a read by %s failed: %s", "/".join(read.way), error)
        rest = read.keys[read.landed :]
        self._give_back(read)
        if reason is Reason.TRANSFER_FAILED:
            self._suspect(read)
        elif rest:
            self._t.catalog.withdraw(read.node_id, rest[0])
        self._tried.add(read.node_id)
        self._reads.remove(read)
        if not self._retried and self._reclaim(rest):
            self._retried = True
            if self._plan() is None:
                return
            rest = [key for key in rest if key not in self._granted]  # its beginning may come
        lost = set(rest)
        gap = next((n for n, key in enumerate(self._keys) if key in lost), len(self._keys))
        self._trim(gap)
        self._cut = self._cut or reason

    def _trim(self, count: int) -> None:
        """Give up what lies behind the first `count` blocks: of no use to the client any more."""
        self._keys = self._keys[:count]
        left = set(self._keys)
        for read in list(self._reads):
            if read.keys[0] not in left and not read.complete:
                self._give_back(read)
                self._reads.remove(read)
        self._elsewhere &= left
        behind = [key for key in self._encoded if key not in left]
        self._unpin(behind)
        self._abort(behind)

    def _unpin(self, keys: Sequence[bytes]) -> None:
        blocks = [self._encoded.pop(key) for key in keys]

        def unpin(_: StoreCore) -> None:
            for block in blocks:
                block.unpin()

        if blocks:
            self._t.server.call(unpin)

    def _suspect(self, read: Read) -> None:
        """A source that was asked did not deliver; or, if it did answer, the transport."""
        if read.asked_s is not None:
            transport = None if read.lent is None else read.way.transport
            self._t.routes.failed(read.node_id, transport)

    def _reclaim(self, keys: list[bytes]) -> bool:
        """Reserve fresh slots for blocks whose read was given up; False if that cannot be."""
        if not keys or not any(
            node_id not in self._tried for node_id in self._t.catalog.places(keys[0])
        ):
            return False

        def reserve(core: StoreCore) -> list[tuple[bytes, int]]:
            granted, _ = core.reserve(self._t.own_id(core), self._slab_id, keys)
            return granted

        granted = self._t.server.call(reserve)
        self._granted.update(granted)
        return len(granted) == len(keys)

    def _give_back(self, read: Read) -> None:
        """End a read that is not complete: its slots are free once nothing writes to them."""
        if read.complete:
            return
        slots = [self._granted.pop(key) for key in read.keys if key in self._granted]
        self._over(read)
        server, own_id, slab_id = self._t.server, self._t.own_id, self._slab_id
        server.call(lambda core: core.disown(own_id(core), slab_id, slots))
        read.give_up(
            self._t, lambda: server.call(lambda core: core.abort(own_id(core), slab_id, slots))
        )

    def _abort(self, keys: Sequence[bytes]) -> None:
        slots = [self._granted.pop(key) for key in keys if key in self._granted]
        if slots:
            self._t.server.call(lambda core: core.abort(self._t.own_id(core), self._slab_id, slots))

    def _give_up(self, reason: Reason | None) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            if reason is Reason.LOAD_DEADLINE and not read.complete:
                self._suspect(read)
            self._give_back(read)
        self._finish(reason)

    def _finish(self, failure: Reason | None) -> None:
        self.ended = True
        self._unpin(list(self._encoded))
        self._abort(list(self._granted))
        totals = self._totals
        ended = protocol.FetchEnded(
            number=self.number,
            failure=str(failure or ""),
            sources=tuple(totals.sources),
            transport=",".join(dict.fromkeys(way.transport for way, _ in totals.ways)),
            path=",".join(dict.fromkeys(path for _, path in totals.ways)),
            codec=",".join(totals.codecs),
            num_bytes=totals.num_bytes,
            decoded_bytes=totals.decoded_bytes,
            wire_bytes=totals.wire_bytes,
            queue_s=totals.queue_s,
            transfer_s=time.perf_counter() - self._begun_s if totals.codecs else 0.0,
        )
        self._t.server.call(lambda _: self._t.server.push(self.client_id, ended))
