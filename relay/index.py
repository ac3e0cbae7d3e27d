"""Look-up in a slab's tables: by key, and by parent for tails.

Open addressing with linear probing; a bucket holds slot + 1, 0 means empty and `TOMB`
deleted. Only the store writes. Readers take no lock: a bucket is a mere hint, since the
slot's header is compared in full, so a reader that races the writer can only miss.
"""

from collections.abc import Iterator

from kvrelay.relay.arena import NO_KEY, Slab, SlotHeader
from kvrelay.relay.keys import BlockKey

TOMB = 0xFFFFFFFF
MAX_CHILDREN = 8  # candidates a reader compares below one parent


def _probe(table: memoryview, key: bytes) -> Iterator[int]:
    """Bucket positions to visit for a key, ending before an empty one."""
    mask = len(table) - 1
    at = int.from_bytes(key[:8], "little") & mask
    for _ in range(len(table)):
        if table[at] == 0:
            return
        yield at
        at = (at + 1) & mask


def find(slab: Slab, key: BlockKey) -> SlotHeader | None:
    """The sealed slot that holds `key`, or None."""
    table = slab.key_table
    for at in _probe(table, key):
        entry = table[at]
        if entry in (0, TOMB):
            continue
        header = slab.read_header(entry - 1)
        if header is not None and header.key == key:
            return header
    return None


def children(slab: Slab, parent: BlockKey) -> list[SlotHeader]:
    """Up to `MAX_CHILDREN` sealed slots whose block comes right after `parent`."""
    found = []
    table = slab.parent_table
    for at in _probe(table, parent):
        entry = table[at]
        if entry in (0, TOMB):
            continue
        header = slab.read_header(entry - 1)
        if header is not None and header.parent == parent:
            found.append(header)
            if len(found) == MAX_CHILDREN:
                break
    return found


class IndexWriter:
    """The store's side of both tables of one slab."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._tombs = {"key": 0, "parent": 0}

    def insert(self, header: SlotHeader) -> None:
        """Add a slot whose header has been written."""
        self._insert(self._slab.key_table, header.key, header.slot, "key")
        if header.parent != NO_KEY:
            self._insert(self._slab.parent_table, header.parent, header.slot, "parent")

    def remove(self, header: SlotHeader) -> None:
        """Take a slot out of both tables."""
        self._remove(self._slab.key_table, header.key, header.slot, "key")
        if header.parent != NO_KEY:
            self._remove(self._slab.parent_table, header.parent, header.slot, "parent")

    def _insert(self, table: memoryview, key: bytes, slot: int, which: str) -> None:
        mask = len(table) - 1
        at = int.from_bytes(key[:8], "little") & mask
        while table[at] not in (0, TOMB):
            at = (at + 1) & mask
        if table[at] == TOMB:
            self._tombs[which] -= 1
        table[at] = slot + 1

    def _remove(self, table: memoryview, key: bytes, slot: int, which: str) -> None:
        for at in _probe(table, key):
            if table[at] == slot + 1:
                table[at] = TOMB
                self._tombs[which] += 1
                break
        else:
            raise KeyError(f"slot {slot} is not in the {which} table")
        if self._tombs[which] > len(table) // 4:
            self._rebuild(table, which)

    def _rebuild(self, table: memoryview, which: str) -> None:
        """Clear the tombs; a reader that looks meanwhile may miss, never find wrongly."""
        entries = [entry for entry in table if entry not in (0, TOMB)]
        for at in range(len(table)):
            table[at] = 0
        self._tombs[which] = 0
        for entry in entries:
            header = self._slab.read_header(entry - 1)
            if header is not None:
                key = header.key if which == "key" else header.parent
                self._insert(table, key, entry - 1, which)
