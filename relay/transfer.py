"""Brings blocks into this node's arena, for engines to load: from other nodes, store to store, and
from this node's encoded blocks.

One thread owns all transports, reads and loans of a store:

    engine's worker --Fetch--> server --> inbox --> claim slots -> ask a source -> read
                    <--Landed-- commit <-- verify <-- poll, or decode <---------+
                    <--FetchEnded

A slot is committed only after its bytes have been verified against the checksum that came
with the source's offer, so nothing unverified ever becomes visible. A slot whose read was given
up stays reserved, in quarantine, until its transport says that nothing will write to it.
"""

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from kvrelay.relay import protocol
from kvrelay.relay.ahead import Ahead
from kvrelay.relay.calls import Call
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.codecs.base import NAMES as CODECS
from kvrelay.relay.codecs.base import Octets, codec, max_encoded_bytes
from kvrelay.relay.directory import Changes
from kvrelay.relay.fetch import Fetch
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.lending import Ask, Lending, Lent
from kvrelay.relay.routes import Routes
from kvrelay.relay.scratch import Scratch
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore
from kvrelay.relay.transports.base import Offer, Span, Transfer, Transport

logger = logging.getLogger(__name__)
T = TypeVar("T")
_BUSY_WAIT_S = 0.0002
_IDLE_WAIT_S = 0.05  # loans and quarantine are looked after


class Answer(Protocol):
    """A source's answer that is on its way."""

    def poll(self) -> Lent | None:
        """The answer; None while it is not there.

        Raises:
            TransferError: there will be none.
        """


class Peer(Protocol):
    """Another node's store, for control. Neither method waits."""

    def ask(self, ask: Ask) -> Answer:
        """Ask it for blocks.

        Raises:
            TransferError: it cannot be reached.
        """

    def take_back(self, offer: Offer) -> None:
        """Tell it that an offer is no longer read."""


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """Memory that a read which was given up may still write to."""

    transfer: Transfer
    count: int  # slots or cells
    free: Callable[[], None]


class Transfers:
    """The transfer thread of one store. Its `FetchDesk` methods only put into the inbox."""

    def __init__(
        self,
        server: StoreServer,
        *,
        catalog: Catalog,
        node_id: str,
        peer: Callable[[str], Peer],
        make_transports: Callable[[], Mapping[str, Transport]],
        routes: Routes | None = None,
    ) -> None:
        """Start.

        Args:
            server: the store; it hands fetches over once it is told to, see `attach`.
            catalog: who holds what.
            node_id: this node.
            peer: the store of another node; raises TransferError if there is none.
            make_transports: called in the thread, when another node is first seen.
            routes: which transport to take; measured as reads come in.
        """
        self.server, self.catalog, self.node_id, self.peer = server, catalog, node_id, peer
        self.routes = routes or Routes()
        self.transports: dict[str, Transport] = {}
        self.counters: Counter[str] = Counter()
        self.reading: Counter[str] = Counter()  # reads under way, by source
        self._make_transports = make_transports
        self._rows: dict[int, LeaseRow] = {}
        self._own_id: int | None = None
        self._registered: set[int] = set()
        self._scratches: dict[tuple[str, int], Scratch] = {}
        self._scratches_lock = threading.Lock()
        self._rooms: dict[int, Octets] = {}
        self._lending = Lending(server, self)
        self._ahead = Ahead(self)
        self._fetches: dict[tuple[int, int], Fetch] = {}
        self._quarantine: list[_Quarantined] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvrelay-transfer", daemon=True)
        self._thread.start()
        server.attach(self)

    # The store's thread

    def begin(self, client_id: int, fetch: protocol.Fetch) -> None:
        """See `FetchDesk`."""
        self._post(lambda: self._begin(client_id, fetch))

    def end(self, client_id: int, number: int) -> None:
        """See `FetchDesk`."""
        self._post(lambda: self._end(client_id, number))

    def gone(self, client_id: int) -> None:
        """See `FetchDesk`."""
        self._post(lambda: self._gone(client_id))

    # Any thread

    def run(self, function: Callable[[], T], timeout_s: float = 60.0) -> T:
        """Run something in the transfer thread and return what it returns.

        Raises:
            TimeoutError: the thread did not get to it in time, and now will not.
        """
        call = Call(function)
        self._post(call)
        return call.wait(timeout_s, "the transfer thread")

    def warm_up(self) -> tuple[str, ...]:
        """Make the transports, which takes seconds, if that has not been done; their names."""

        def make() -> tuple[str, ...]:
            if not self.transports:
                for name in CODECS:
                    codec(name)
                self.transports.update(self._make_transports())
            return tuple(self.transports)

        return self.run(make)

    def hear(self, changes: Changes) -> None:
        """Take in what the directory says, after the catalog has."""
        heard = [each for batch in changes.batches for each in batch.expected]
        if heard:
            self._post(lambda: self._ahead.hear(heard))

    def lend(self, ask: Ask) -> Lent:
        """Answer another node's store."""
        return self._lending.lend(ask)

    def lend_memory(
        self, transport: str, slot_bytes: int, count: int, num_bytes: int, seconds: float
    ) -> Lent:
        """Offer memory that holds nothing, to be read by a probe."""
        scratch = self.outbox(slot_bytes)
        return self._lending.lend_cells(transport, scratch, count, num_bytes, seconds)

    def take_back(self, transport: str, number: int) -> None:
        """Another node's store no longer reads an offer."""
        self._post(lambda: self._lending.take_back(transport, number))

    def stats(self) -> dict[str, int]:
        """Counts for status displays and tests; in the transfer thread."""
        self._ahead.settle()
        return {
            "fetches": len(self._fetches),
            "loans": len(self._lending),
            "quarantined": sum(each.count for each in self._quarantine),
            **dict(self.counters),
        }

    def close(self) -> None:
        """Stop; what is under way is given up."""
        self._closing = True
        self._post(lambda: None)
        self._thread.join(5)

    # The transfer thread

    def own_id(self, core: StoreCore) -> int:
        """The store's own client, for slots that it writes and leases that it takes."""
        if self._own_id is None:
            self._own_id = core.connect()
        return self._own_id

    @property
    def fetching(self) -> bool:
        """Whether blocks are being brought for somebody."""
        return any(not fetch.ended for fetch in self._fetches.values())

    def open_ahead(self, message: protocol.Fetch) -> Fetch:
        """Begin to bring blocks that nobody has asked for; `close_fetch` has to follow."""
        return self._open(self.server.call(self.own_id), message, ahead=True)

    def close_fetch(self, fetch: Fetch) -> None:
        """What has landed of a fetch may be evicted, what has not is not needed."""
        self._fetches.pop((fetch.client_id, fetch.number), None)
        fetch.cancel()
        fetch.release()

    def leases(self, core: StoreCore, slab_id: int) -> LeaseRow:
        """The store's own leases of a slab."""
        if slab_id not in self._rows:
            self._rows[slab_id] = LeaseRow(core.slab(slab_id), self.own_id(core))
        return self._rows[slab_id]

    def register(self, region: Span) -> None:
        """Make memory known to every transport, once."""
        if region.address not in self._registered:
            self._registered.add(region.address)
            for transport in self.transports.values():
                transport.register(region)

    def outbox(self, slot_bytes: int) -> Scratch:
        """Memory for encoded blocks that are offered. Any thread."""
        return self._scratch("outbox", slot_bytes)

    def inbox(self, slot_bytes: int) -> Scratch:
        """Memory that encoded blocks are read into."""
        return self._scratch("inbox", slot_bytes)

    def room(self, slot_bytes: int) -> Octets:
        """Memory in which an encoding of this node is put together to be decoded."""
        if slot_bytes not in self._rooms:
            self._rooms[slot_bytes] = np.empty(max_encoded_bytes(slot_bytes), np.uint8)
        return self._rooms[slot_bytes]

    def quarantine(self, transfer: Transfer, count: int, free: Callable[[], None]) -> None:
        """Call `free` once nothing can write any more to what a transfer was given."""
        self._quarantine.append(_Quarantined(transfer, count, free))
        self.counters["quarantines"] += 1

    def _scratch(self, use: str, slot_bytes: int) -> Scratch:
        with self._scratches_lock:
            if (use, slot_bytes) not in self._scratches:
                self._scratches[use, slot_bytes] = Scratch(slot_bytes)
            return self._scratches[use, slot_bytes]

    def _post(self, work: Callable[[], object]) -> None:
        with self._wake:
            self._inbox.append(lambda: (work(), None)[1])
            self._wake.notify()

    def _run(self) -> None:
        while not self._closing:
            with self._wake:
                if not self._inbox:
                    self._wake.wait(self._wait_s())
                work, self._inbox = self._inbox, deque()
            for each in work:
                self._guarded(each)
            for fetch in list(self._fetches.values()):
                if not self._guarded(fetch.advance) and not self._guarded(fetch.fault):
                    fetch.ended = True
                if fetch.expired:
                    self._guarded(fetch.release)
                    self._fetches.pop((fetch.client_id, fetch.number), None)
            if not self._guarded(self._ahead.advance):
                self._ahead = Ahead(self)  # what it had begun ends by its deadline
            self._guarded(self._lending.expire)
            if self._busy:
                for transport in self.transports.values():
                    self._guarded(transport.progress)
            self._guarded(self._free_quarantined)
        for transport in self.transports.values():
            with contextlib.suppress(Exception):
                transport.close()

    @property
    def _busy(self) -> bool:
        """Whether bytes may be moving."""
        return bool(self.fetching or len(self._lending) or self._quarantine)

    def _wait_s(self) -> float | None:
        if self._busy:
            return _BUSY_WAIT_S
        return _IDLE_WAIT_S if self._fetches else self._ahead.wait_s

    def _guarded(self, work: Callable[[], object]) -> bool:
        """A fault costs what was under way, not the thread; whether there was none."""
        try:
            work()
        except Exception:
            self.counters["faults"] += 1
            logger.exception("transfer fault")
            return False
        return True

    def _begin(self, client_id: int, message: protocol.Fetch) -> None:
        self._open(client_id, message)
        self.counters["fetched"] += 1

    def _open(self, client_id: int, message: protocol.Fetch, ahead: bool = False) -> Fetch:
        fetch = Fetch(self, client_id, message, ahead)
        self._fetches[client_id, message.number] = fetch
        if not self._guarded(fetch.start):
            fetch.fault()
        return fetch

    def _end(self, client_id: int, number: int) -> None:
        fetch = self._fetches.get((client_id, number))
        if fetch is not None:
            self.close_fetch(fetch)

    def _gone(self, client_id: int) -> None:
        for each, number in list(self._fetches):
            if each == client_id:
                self._end(each, number)

    def _free_quarantined(self) -> None:
        for held in list(self._quarantine):
            with contextlib.suppress(Exception):
                held.transfer.poll()  # moves it on; its failure is why it is here
            if held.transfer.quiet:
                self._quarantine.remove(held)
                held.free()
