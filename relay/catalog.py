"""What can be had beside the arena, in this node's shared memory, for engines to look up.

That is what this node holds encoded, and what other nodes' stores hold. A catalog is a slab
(arena.py) whose slots hold no KV: the same tables, headers and tokens, so that a prompt is
matched against them by the code that matches it against the arena, without a message. A prompt
that nobody has seen costs no round trip.

Only the store writes. What the catalog says is a hint: whoever is named may have lost the block
meanwhile, and then the load is a miss. The checksum of a block that other nodes alone hold is
`ELSEWHERE`: that is how engines tell it from one that is encoded here.
"""

import threading
from dataclasses import dataclass, field

from kvrelay.relay.arena import Slab, SlabGeometry, SlotHeader
from kvrelay.relay.directory import Batch, Changes, PublishedBlock
from kvrelay.relay.index import IndexWriter
from kvrelay.relay.keys import TOKEN_BYTES

MAX_BLOCKS = 65_536  # of one block size; about 1 KB each, taken as they come
ELSEWHERE = bytes(16)


@dataclass(slots=True)
class _Table:
    slab: Slab
    index: IndexWriter
    free: list[int]
    slots: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    block: PublishedBlock
    nodes: list[str]


class Catalog:
    """Blocks of other nodes, which nodes those are, and what is encoded here.

    Safe for several threads.
    """

    def __init__(self, incarnation: bytes, max_blocks: int = MAX_BLOCKS) -> None:
        """`incarnation` is the store's own: engines see both go together."""
        self._incarnation = incarnation
        self._max_blocks = max_blocks
        self._lock = threading.Lock()
        self._tables: dict[int, _Table] = {}
        self._known: dict[bytes, _Known] = {}
        self._encoded: dict[bytes, tuple[PublishedBlock, bytes]] = {}  # with its checksum
        self._held: dict[str, set[bytes]] = {}
        self._transports: dict[str, tuple[str, ...]] = {}
        self.not_listed = 0  # blocks for which there was no room

    def slab(self, block_tokens: int) -> Slab:
        """The slab that lists blocks of this size, made if it is the first time."""
        with self._lock:
            return self._table(block_tokens).slab

    def apply(self, changes: Changes) -> None:
        """Take in what the directory says."""
        with self._lock:
            if changes.everything:
                for node_id in list(self._held):
                    self._forget(node_id)
            for batch in changes.batches:
                self._apply(batch)

    def show_encoded(self, block: PublishedBlock, checksum: bytes) -> None:
        """See `Listing`."""
        with self._lock:
            self._encoded[block.key] = block, checksum
            self._show(block)

    def hide_encoded(self, key: bytes) -> None:
        """See `Listing`."""
        with self._lock:
            encoded = self._encoded.pop(key, None)
            if encoded is not None:
                self._show(encoded[0])

    def clear(self) -> None:
        """Forget all other nodes: the directory has been out of reach for too long."""
        with self._lock:
            for node_id in list(self._held):
                self._forget(node_id)

    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Other nodes, and the transports that read from them."""
        with self._lock:
            return dict(self._transports)

    def places(self, key: bytes) -> list[str]:
        """Nodes that hold a block and can be read from."""
        with self._lock:
            known = self._known.get(key)
            return [n for n in known.nodes if self._transports.get(n)] if known else []

    def withdraw(self, node_id: str, key: bytes) -> None:
        """A node turned out not to hold a block."""
        with self._lock:
            self._remove(node_id, key)

    def stats(self) -> dict[str, int]:
        """Counts for status displays and tests."""
        with self._lock:
            return {
                "remote_nodes": len(self._held),
                "remote_blocks": len(self._known),
                "remote_not_listed": self.not_listed,
            }

    def close(self) -> None:
        """Let go of the slabs' descriptors."""
        with self._lock:
            for table in self._tables.values():
                table.slab.close()

    def _table(self, block_tokens: int) -> _Table:
        table = self._tables.get(block_tokens)
        if table is None:
            slab = Slab.create(SlabGeometry(1, block_tokens, self._max_blocks), self._incarnation)
            table = _Table(slab, IndexWriter(slab), list(range(self._max_blocks - 1, -1, -1)))
            self._tables[block_tokens] = table
            for known in self._known.values():
                self._show(known.block)
            for block, _ in self._encoded.values():
                self._show(block)
        return table

    def _apply(self, batch: Batch) -> None:
        if batch.whole:
            self._forget(batch.node_id)
        if not batch.incarnation:
            return
        readable = bool(batch.transports) == bool(self._transports.get(batch.node_id))
        self._transports[batch.node_id] = batch.transports
        held = self._held.setdefault(batch.node_id, set())
        for key in batch.removed:
            self._remove(batch.node_id, key)
        for block in batch.added:
            if block.key not in held:
                held.add(block.key)
                known = self._known.setdefault(block.key, _Known(block, []))
                known.nodes.append(batch.node_id)
                self._show(block)
        if not readable:
            for key in held:
                self._show(self._known[key].block)

    def _forget(self, node_id: str) -> None:
        for key in list(self._held.get(node_id, ())):
            self._remove(node_id, key)
        self._held.pop(node_id, None)
        self._transports.pop(node_id, None)

    def _remove(self, node_id: str, key: bytes) -> None:
        held = self._held.get(node_id)
        if held is None or key not in held:
            return
        held.discard(key)
        known = self._known[key]
        known.nodes.remove(node_id)
        self._show(known.block)
        if not known.nodes:
            del self._known[key]

    def _show(self, block: PublishedBlock) -> None:
        """Let engines see a block as it can be had now, or not at all."""
        table = self._tables.get(block.block_tokens)
        if table is None:
            return
        checksum = self._checksum(block.key)
        if block.key in table.slots:
            listed = table.slab.read_header(table.slots[block.key])
            if listed is not None and listed.checksum == checksum:
                return
            self._unlist(table, block.key)
        if checksum is not None:
            self._list(table, block, checksum)

    def _checksum(self, key: bytes) -> bytes | None:
        """The checksum that a block is listed with; None if it cannot be had."""
        if key in self._encoded:
            return self._encoded[key][1]
        known = self._known.get(key)
        readable = known is not None and any(self._transports.get(n) for n in known.nodes)
        return ELSEWHERE if readable else None

    def _list(self, table: _Table, block: PublishedBlock, checksum: bytes) -> None:
        num_tokens, rest = divmod(len(block.tokens), TOKEN_BYTES)
        if not table.free or rest or not 0 < num_tokens <= block.block_tokens:
            self.not_listed += 1
            return
        slot = table.free.pop()
        sealed = table.slab.state(slot) | 1
        header = SlotHeader(slot, sealed, block.key, block.parent, checksum, num_tokens)
        table.slab.write_header(header, block.tokens)
        table.slab.set_state(slot, sealed)
        table.index.insert(header)
        table.slots[block.key] = slot

    def _unlist(self, table: _Table, key: bytes) -> None:
        slot = table.slots.pop(key)
        header = table.slab.read_header(slot)
        if header is None:
            raise AssertionError(f"catalog slot {slot} is not sealed")
        table.slab.set_state(slot, ((header.state >> 1) + 1) << 1)
        table.index.remove(header)
        table.free.append(slot)
