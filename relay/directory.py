"""The directory's core: which node holds which block. Soft state, sans I/O.

Stores publish changes in batches under their incarnation, and watch what others publish. A
store that comes back has a new incarnation and starts empty, so its first batch replaces
all that was known of it; a directory that comes back knows no incarnation, refuses changes,
and is told everything. A store that has been silent for `silence_s` is gone until it speaks.

Watchers hold a cursor into the log of batches. A cursor that the log does not reach back
to, or that another directory gave out, is answered with everything.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SILENCE_S = 3.0
_LOG_BLOCKS = 2_000  # whoever is further behind is told everything


@dataclass(frozen=True, slots=True)
class PublishedBlock:
    """What others must know of a block to match it against a prompt.

    Attributes:
        key: its identity.
        parent: key of the block before; `NO_KEY` if it may only match as a whole.
        tokens: packed ids.
        block_tokens: tokens of a full block.
    """

    key: bytes
    parent: bytes
    tokens: bytes
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Blocks that an agent is expected to need next, wherever its engine is.

    Attributes:
        agent: its name.
        probability: that it comes for them.
        prefill_s: seconds that computing all of them takes; None if nobody has measured it.
        slot_bytes, block_tokens: sizes of the slab that they belong into.
        keys: the blocks, in order from the first one of their sequence.
    """

    agent: str
    probability: float
    prefill_s: float | None
    slot_bytes: int
    block_tokens: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one store.

    Attributes:
        node_id: the store's node.
        incarnation: the store's, 16 bytes; empty says that the node is gone.
        whole: the batch lists everything the store holds; else it lists changes.
        added: blocks that can be had there now.
        removed: keys that cannot any more.
        transports: ways of reading from this store, by name.
        expected: who is expected to need which blocks next. A hint: it is told to those who watch
            now, and forgotten.
    """

    node_id: str
    incarnation: bytes
    whole: bool
    added: tuple[PublishedBlock, ...] = ()
    removed: tuple[bytes, ...] = ()
    transports: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()

    @property
    def num_keys(self) -> int:
        """How many blocks it tells of."""
        expected = sum(len(each.keys) for each in self.expected)
        return len(self.added) + len(self.removed) + expected


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in one directory's log."""

    directory: str
    number: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watcher has to take in, in order.

    Attributes:
        cursor: where to go on from.
        everything: forget all that is known first.
        batches: a batch without incarnation removes its node.
    """

    cursor: Cursor
    everything: bool
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class _Node:
    incarnation: bytes
    transports: tuple[str, ...]
    heard_s: float
    blocks: dict[bytes, PublishedBlock] = field(default_factory=dict)


class DirectoryCore:
    """Nodes, what they hold, and the log that watchers follow."""

    def __init__(self, now_s: Callable[[], float], silence_s: float = SILENCE_S) -> None:
        """`now_s` is a monotonic clock."""
        self._name = secrets.token_hex(8)
        self._now_s = now_s
        self._silence_s = silence_s
        self._nodes: dict[str, _Node] = {}
        self._places: dict[bytes, set[str]] = {}
        self._log: deque[tuple[int, Batch]] = deque()
        self._logged_blocks = 0
        self._number = 0

    @property
    def cursor(self) -> Cursor:
        """The end of the log."""
        return Cursor(self._name, self._number)

    def publish(self, batch: Batch) -> bool:
        """Take a batch in; False asks the store to publish everything."""
        node = self._nodes.get(batch.node_id)
        known = node is not None and node.incarnation == batch.incarnation
        if batch.whole:
            self._drop(batch.node_id)
            node = _Node(batch.incarnation, batch.transports, self._now_s())
            self._nodes[batch.node_id] = node
        elif node is None or not known:
            return False
        node.heard_s = self._now_s()
        for key in batch.removed:
            if node.blocks.pop(key, None) is not None:
                self._unplace(key, batch.node_id)
        for block in batch.added:
            node.blocks[block.key] = block
            self._places.setdefault(block.key, set()).add(batch.node_id)
        if batch.whole or batch.num_keys or batch.transports != node.transports:
            node.transports = batch.transports
            self._append(batch)
        return True

    def expire(self) -> list[str]:
        """Forget nodes that have been silent for too long; which."""
        late = self._now_s() - self._silence_s
        gone = [node_id for node_id, node in self._nodes.items() if node.heard_s < late]
        for node_id in gone:
            self._drop(node_id)
            self._append(Batch(node_id, b"", True))
        return gone

    def changes(self, cursor: Cursor | None, watcher: str) -> Changes:
        """What happened since `cursor`, without the watcher's own batches."""
        reached = self._log[0][0] if self._log else self._number + 1
        if cursor is None or cursor.directory != self._name or cursor.number + 1 < reached:
            batches = tuple(
                Batch(
                    node_id,
                    node.incarnation,
                    True,
                    tuple(node.blocks.values()),
                    transports=node.transports,
                )
                for node_id, node in self._nodes.items()
                if node_id != watcher
            )
            return Changes(self.cursor, True, batches)
        batches = tuple(
            batch
            for number, batch in self._log
            if number > cursor.number and batch.node_id != watcher
        )
        return Changes(self.cursor, False, batches)

    def lookup(self, keys: Sequence[bytes]) -> list[list[str]]:
        """Nodes that hold each key, sorted."""
        return [sorted(self._places.get(key, ())) for key in keys]

    def stats(self) -> dict[str, int]:
        """Counts for status displays."""
        return {"keys": len(self._places), "nodes": len(self._nodes)}

    def check_integrity(self) -> None:
        """Both maps must say the same.

        Raises:
            AssertionError: they do not.
        """
        forward = {(key, node) for key, nodes in self._places.items() for node in nodes}
        backward = {(key, name) for name, node in self._nodes.items() for key in node.blocks}
        if forward != backward or not all(self._places.values()):
            raise AssertionError("the directory's two maps differ")

    def _append(self, batch: Batch) -> None:
        self._number += 1
        self._log.append((self._number, batch))
        self._logged_blocks += batch.num_keys
        while self._logged_blocks > _LOG_BLOCKS and len(self._log) > 1:
            _, old = self._log.popleft()
            self._logged_blocks -= old.num_keys

    def _drop(self, node_id: str) -> None:
        node = self._nodes.pop(node_id, None)
        for key in node.blocks if node is not None else ():
            self._unplace(key, node_id)

    def _unplace(self, key: bytes, node_id: str) -> None:
        places = self._places.get(key)
        if places is not None:
            places.discard(node_id)
            if not places:
                del self._places[key]
