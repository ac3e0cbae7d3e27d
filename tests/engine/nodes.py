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

from kvrelay.relay import protocol
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.client import Attachment, StoreClient
from kvrelay.relay.connector.fetches import Fetches
from kvrelay.relay.directory import Batch, Cursor, DirectoryCore
from kvrelay.relay.keys import BlockKey, child_key, pack_tokens, root_key
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.lending import Ask, Lent
from kvrelay.relay.routes import Routes
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import Entry, StoreCore
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports.base import Offer, TransferError, Transport
from kvrelay.relay.transports.memory import MemoryTransport

SLOT, SIZE = 8192, 4
ROOT = root_key(bytes(32))


class Node:
    """One node's store."""

    def __init__(
        self,
        wire: "Wire",
        name: str,
        capacity_bytes: int,
        codec: str,
        more: dict[str, Transport] | None,
        encoded_bytes: int,
    ) -> None:
        self.name, self.wire = name, wire
        self.address = f"kvrelay-test-{uuid.uuid4().hex}"
        self.transport = MemoryTransport()
        core = StoreCore(capacity_bytes, time.monotonic_ns, encoded_bytes)
        self.catalog = Catalog(core.incarnation)
        self.server = StoreServer(core, self.address, self.catalog, self._changed)
        self.transfers = Transfers(
            self.server,
            catalog=self.catalog,
            node_id=name,
            peer=wire.peer,
            make_transports=lambda: {self.transport.name: self.transport, **(more or {})},
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
            what = (True, tuple(blocks), ())
        else:
            what = (False, tuple(core.published(events.added)), events.removed)
        return Batch(self.name, core.incarnation, *what, self.ways, events.expected)

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
        codec: str = "raw",
        more: dict[str, Transport] | None = None,
        encoded_bytes: int = 0,
    ) -> Node:
        """A node; `more` transports are there beside the one in memory."""
        node = self.nodes[name] = Node(self, name, capacity_bytes, codec, more, encoded_bytes)
        node.publish()
        return node

    def spread(self) -> None:
        """Every node hears what the directory knows."""
        for node in self.nodes.values():
            changes = self.directory.changes(node.cursor, node.name)
            node.catalog.apply(changes)
            node.transfers.hear(changes)
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


def no_peer(name: str) -> "WirePeer":
    """Where there is one node only."""
    raise TransferError(f"no node {name}")


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
    node: Node,
    blocks: list[tuple[bytes, bytes, bytes]],
    slot_bytes: int = SLOT,
    block_tokens: int = SIZE,
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


def chain(seed: int, count: int, size: int = SIZE) -> list[tuple[bytes, bytes, bytes]]:
    """Key, parent and tokens of the blocks of a sequence, of `size` tokens each."""
    blocks = []
    parent = ROOT
    for number in range(count):
        tokens = pack_tokens([seed, number, *[0] * (size - 2)])
        key = child_key(parent, tokens)
        blocks.append((bytes(key), bytes(parent), tokens))
        parent = BlockKey(key)
    return blocks


class Reader:
    """An engine's worker, as far as fetching goes."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.landed: dict[int, list[protocol.LandedBlock]] = {}
        self.ended: dict[int, protocol.FetchEnded] = {}
        self.news = threading.Condition()
        self.fetches = Fetches(self._on_landed, self._on_ended)
        self.client = StoreClient(node.address, "worker")
        slab_id, self.slab, catalog = self.client.open_slab(SLOT, SIZE)
        row = LeaseRow(self.slab, self.client.client_id)
        self.attachment = Attachment(self.client, slab_id, self.slab, row, catalog, node.address)
        self.number = 0

    def start(self, keys: list[bytes], seconds: float = 5.0) -> int:
        self.number += 1
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        self.fetches.start(self.attachment, self.number, keys, deadline_ns)
        return self.number

    def wait(self, number: int, timeout_s: float = 10.0) -> protocol.FetchEnded:
        with self.news:
            assert self.news.wait_for(lambda: number in self.ended, timeout_s)
        return self.ended[number]

    def fetch(self, keys: list[bytes], seconds: float = 5.0) -> protocol.FetchEnded:
        return self.wait(self.start(keys, seconds))

    def good(self, number: int) -> list[bytes]:
        """Keys that landed, in order, after a look at every byte."""
        for block in self.landed.get(number, []):
            assert bytes(self.slab.data(block.slot)) == (block.key * SLOT)[:SLOT]
            assert self.slab.state(block.slot) == block.state
        return [block.key for block in self.landed.get(number, [])]

    def _on_landed(self, number: int, blocks: list[protocol.LandedBlock]) -> None:
        with self.news:
            self.landed.setdefault(number, []).extend(blocks)
            self.news.notify_all()

    def _on_ended(self, number: int, ended: protocol.FetchEnded) -> None:
        with self.news:
            self.ended[number] = ended
            self.news.notify_all()

    def close(self) -> None:
        self.fetches.close()
        self.client.close()


def idle(node: Node) -> bool:
    stats = node.server.call(StoreCore.stats)
    moving = node.transfers.run(node.transfers.stats)
    return (stats["reserved"], stats["leases"]) == (0, 0) and (
        moving["fetches"],
        moving["loans"],
        moving["quarantined"],
        moving.get("faults", 0),
    ) == (0, 0, 0, 0)


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.01)


def wait_demoted(server: StoreServer) -> None:
    """Wait until nothing is left in the arena."""
    end = time.monotonic() + 10
    while server.call(StoreCore.stats)["used_bytes"]:
        assert time.monotonic() < end, server.call(StoreCore.stats)
        time.sleep(0.002)


def share(node: Node, reader: Reader, seed: int, count: int) -> list[bytes]:
    """Put blocks on a node and wait until the reader's node has heard of them."""
    blocks = chain(seed, count)
    put(node, blocks, SLOT, SIZE)
    keys = [key for key, _, _ in blocks]
    wait_for(lambda: all(reader.node.catalog.places(key) for key in keys))
    return keys
