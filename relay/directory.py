"""The directory's core: which node holds which block. Soft state, sans I/O.

Stores publish changes in batches under their incarnation. A store that comes back has a
new incarnation and starts empty, so its first batch replaces all that was known of it; a
directory that comes back knows no incarnation, refuses changes, and is told everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one store.

    Attributes:
        node_id: the store's node.
        incarnation: the store's, 16 bytes.
        whole: the batch lists everything the store holds; else it lists changes.
        added, removed: block keys.
    """

    node_id: str
    incarnation: bytes
    whole: bool
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class DirectoryCore:
    """Key to nodes."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, set[str]] = {}
        self._held: dict[str, set[bytes]] = {}
        self._incarnations: dict[str, bytes] = {}

    def publish(self, batch: Batch) -> bool:
        """Take a batch in; False asks the store to publish everything."""
        known = self._incarnations.get(batch.node_id) == batch.incarnation
        if not batch.whole and not known:
            return False
        if batch.whole:
            self.forget(batch.node_id)
            self._incarnations[batch.node_id] = batch.incarnation
        held = self._held.setdefault(batch.node_id, set())
        for key in batch.removed:
            self._discard(key, batch.node_id)
            held.discard(key)
        for key in batch.added:
            self._nodes.setdefault(key, set()).add(batch.node_id)
            held.add(key)
        return True

    def lookup(self, keys: Sequence[bytes]) -> list[list[str]]:
        """Nodes that hold each key, sorted."""
        return [sorted(self._nodes.get(key, ())) for key in keys]

    def forget(self, node_id: str) -> None:
        """Drop all that is known of a node."""
        for key in self._held.pop(node_id, ()):
            self._discard(key, node_id)
        self._incarnations.pop(node_id, None)

    def stats(self) -> dict[str, int]:
        """Counts for status displays."""
        return {"keys": len(self._nodes), "nodes": len(self._incarnations)}

    def check_integrity(self) -> None:
        """Both maps must say the same.

        Raises:
            AssertionError: they do not.
        """
        forward = {(key, node) for key, nodes in self._nodes.items() for node in nodes}
        backward = {(key, node) for node, keys in self._held.items() for key in keys}
        if forward != backward or not all(self._nodes.values()):
            raise AssertionError("the directory's two maps differ")

    def _discard(self, key: bytes, node_id: str) -> None:
        nodes = self._nodes.get(key)
        if nodes is not None:
            nodes.discard(node_id)
            if not nodes:
                del self._nodes[key]
