"""Several nodes in one process: real stores, catalogs and transfers; only Ray is missing.

What Ray does for them, a `Wire` does: control messages are calls with a delay, the directory
is a core that every change goes to at once.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

from kvrelay.relay.catalog import Catalog
from kvrelay.relay.client import StoreClient
from kvrelay.relay.directory import Batch, Cursor, DirectoryCore
from kvrelay.relay.lending import Ask, Lent
from kvrelay.relay.routes import Routes
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import Entry, StoreCore
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports.base import Offer, TransferError, Transport
from kvrelay.relay.transports.memory import MemoryTransport


class Node:
    """One node's store."""

    def __init__(
        self, wire: "Wire", name: str, capacity_bytes: int, transport: Transport, codec: str
    ) -> None:
        self.name, self.wire = name, wire
        self.address = f"kvrelay-test-{uuid.uuid4().hex}"
        self.transport = transport
        core = StoreCore(capacity_bytes, time.monotonic_ns)
        self.catalog = Catalog(core.incarnation)
        self.server = StoreServer(core, self.address, self.catalog, self._changed)
        self.transfers = Transfers(
            self.server,
            catalog=self.catalog,
            node_id=name,
            peer=wire.peer,
            make_transports=lambda: {self.transport.name: self.transport},
            routes=Routes(codec=codec),
        )
        self.ways = self.transfers.warm_up()
        self.cursor: Cursor | None = None
        self._known = False

    def _changed(self) -> None:
        """In the store's thread: publish, as the actor does."""
        self.wire.pool.submit(self.publish)

    def publish(self) -> None:
        with self.wire.lock:
            batch = self.server.call(self._batch)
            self._known = self.wire.directory.publish(batch)
            self.wire.spread()

    def _batch(self, core: StoreCore) -> Batch:
        events = core.take_events()
        if not self._known:
            blocks = core.published(core.keys())
            return Batch(self.name, core.incarnation, True, tuple(blocks), (), self.ways)
        blocks = core.published(events.added)
        return Batch(self.name, core.incarnation, False, tuple(blocks), events.removed, self.ways)

    def client(self) -> StoreClient:
        return StoreClient(self.address, "test")

    def check(self) -> None:
        """Nothing may be left over once nothing is going on."""
        self.server.call(StoreCore.check_integrity)

    def close(self) -> None:
        self.transfers.close()
        self.server.close()


class Wire:
    """What joins the nodes; it may be cut."""

    def __init__(self) -> None:
        self.directory = DirectoryCore(time.monotonic, silence_s=1e9)
        self.lock = threading.RLock()
        self.pool = ThreadPoolExecutor(8)
        self.nodes: dict[str, Node] = {}
        self.cut = False
        self.delay_s = 0.0
        self.on_ask: Callable[[Ask], None] = lambda ask: None

    def add(
        self,
        name: str,
        capacity_bytes: int = 64 << 20,
        transport: Transport | None = None,
        codec: str = "raw",
    ) -> Node:
        transport = transport or MemoryTransport()
        node = self.nodes[name] = Node(self, name, capacity_bytes, transport, codec)
        node.publish()
        return node

    def spread(self) -> None:
        """Every node hears what the directory knows."""
        for node in self.nodes.values():
            changes = self.directory.changes(node.cursor, node.name)
            node.catalog.apply(changes)
            node.cursor = changes.cursor

    def settle(self) -> None:
        """Wait until every node knows what every other node holds."""
        for node in self.nodes.values():
            node.publish()

    def peer(self, name: str) -> "WirePeer":
        if name not in self.nodes:
            raise TransferError(f"no node {name}")
        return WirePeer(self, self.nodes[name])

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.pool.shutdown()


class WirePeer:
    def __init__(self, wire: Wire, node: Node) -> None:
        self._wire, self._node = wire, node

    def ask(self, ask: Ask) -> "WireAnswer":
        def answer() -> Lent:
            time.sleep(self._wire.delay_s)
            self._wire.on_ask(ask)
            return self._node.transfers.lend(ask)

        return WireAnswer(self._wire, self._wire.pool.submit(answer))

    def take_back(self, offer: Offer) -> None:
        if not self._wire.cut:
            self._wire.pool.submit(self._node.transfers.take_back, offer.transport, offer.number)


class WireAnswer:
    def __init__(self, wire: Wire, future: "Future[Lent]") -> None:
        self._wire, self._future = wire, future

    def poll(self) -> Lent | None:
        if self._wire.cut or not self._future.done():
            return None
        return self._future.result()


def put(
    node: Node, blocks: list[tuple[bytes, bytes, bytes]], slot_bytes: int, block_tokens: int
) -> None:
    """Write blocks (key, parent, packed tokens); the bytes of each are its key, repeated."""
    client = node.client()
    slab_id, slab, _ = client.open_slab(slot_bytes, block_tokens)
    granted = dict(client.reserve(slab_id, [key for key, _, _ in blocks]).granted)
    entries = []
    for key, parent, tokens in blocks:
        slot = granted[key]
        slab.data(slot)[:] = (key * slot_bytes)[:slot_bytes]
        checksum = xxhash.xxh3_128_digest(slab.data(slot))
        entries.append(Entry(slot, key, parent, tokens, checksum))
    client.commit(slab_id, entries)
    client.close()
