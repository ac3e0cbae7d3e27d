"""Blocks that this node holds encoded: shorter than in the arena, slower to load.

The memory is cut into pages and an encoding takes any that are free, since encodings differ in
length: no gap is left that nothing fits into. So an encoding is put together again before it is
decoded or offered, which takes half the time of decoding it (0.2 ms for a block of 2.9 MB).

Everything here is called in the store's thread but for the moving of bytes: an encoding is
written by whoever took its pages, before anybody can find it, and read by whoever has pinned it,
which keeps its pages from use. Engines do not map this memory and neither do transports.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from kvrelay.relay import memory
from kvrelay.relay.codecs.base import Bytes, CodecError, Octets, codec
from kvrelay.relay.errors import ArenaError

PAGE_BYTES = 4096
Pages = NDArray[np.int32]


class EncodedMemory:
    """Pages, and which of them are free."""

    def __init__(self, capacity_bytes: int) -> None:
        """Room for `capacity_bytes`, down to whole pages; the system gives it as it is used.

        Raises:
            ArenaError: the kernel refuses the memory.
        """
        self.num_pages = capacity_bytes // PAGE_BYTES
        try:
            self._map = mmap.mmap(-1, max(1, self.num_pages) * PAGE_BYTES, mmap.MAP_PRIVATE)
        except OSError as error:
            raise ArenaError(
                f"cannot map {capacity_bytes >> 20} MiB for encoded blocks: {error}; "
                "lower relay.encoded_bytes or raise the memory limit"
            ) from error
        memory.advise_huge(self._map)
        self._pages = np.frombuffer(self._map, np.uint8).reshape(-1, PAGE_BYTES)
        self._free: Pages = np.arange(self.num_pages - 1, -1, -1, dtype=np.int32)
        self.num_free = self.num_pages
        self._taken: dict[int, Pages] = {}  # by the first of them

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * PAGE_BYTES

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that somebody has."""
        return (self.num_pages - self.num_free) * PAGE_BYTES

    def take(self, count: int) -> Pages | None:
        """That many pages, one or more; None if there are not that many."""
        if count > self.num_free:
            return None
        self.num_free -= count
        pages = self._free[self.num_free : self.num_free + count].copy()
        self._taken[int(pages[0])] = pages
        return pages

    def give_back(self, pages: Pages) -> None:
        """Let others have what was taken.

        Raises:
            KeyError: it was not.
        """
        del self._taken[int(pages[0])]
        self._free[self.num_free : self.num_free + len(pages)] = pages
        self.num_free += len(pages)

    def write(self, pages: Pages, source: Octets) -> None:
        """Write bytes to the first of these pages. Any thread."""
        whole, rest = divmod(source.size, PAGE_BYTES)
        self._pages[pages[:whole]] = source[: whole * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        if rest:
            self._pages[pages[whole], :rest] = source[whole * PAGE_BYTES :]

    def read(self, pages: Pages, target: Octets) -> None:
        """Undo `write`. Any thread."""
        whole, rest = divmod(target.size, PAGE_BYTES)
        rows = target[: whole * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        self._pages.take(pages[:whole], axis=0, out=rows, mode="clip")
        if rest:
            target[whole * PAGE_BYTES :] = self._pages[pages[whole], :rest]

    def check_integrity(self, held: Sequence[Pages]) -> None:
        """Every page must be free or taken, and the held ones be taken by whoever holds them.

        Raises:
            AssertionError: it is not so.
        """
        pages = np.concatenate([self._free[: self.num_free], *self._taken.values()])
        if not np.array_equal(np.sort(pages), np.arange(self.num_pages)):
            raise AssertionError("a page of the encoded blocks is lost, or has two owners")
        if not {id(each) for each in held} <= {id(each) for each in self._taken.values()}:
            raise AssertionError("an encoded block has pages that were given back")


@dataclass(eq=False, slots=True)
class EncodedBlock:
    """One block: what its slot's header held, and where its encoding is.

    Attributes:
        key, parent, tokens, checksum: as `store.Entry` has them; of the raw bytes.
        codec: name of the codec.
        num_bytes: length of the encoding.
        pages: where that is.
        pins: readers that its pages must not be taken from.
        held: False once it cannot be found any more; its pages are free after the last reader.
    """

    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes
    codec: str
    num_bytes: int
    pages: Pages
    memory: EncodedMemory
    pins: int = 0
    held: bool = True

    def copy_to(self, room: Bytes) -> Octets:
        """Put the encoding together at the beginning of `room`. Any thread that has pinned it."""
        encoding = np.frombuffer(room, np.uint8)[: self.num_bytes]
        self.memory.read(self.pages, encoding)
        return encoding

    def decode_to(self, target: memoryview, room: Bytes) -> bool:
        """Write the raw bytes to `target`, by way of `room`; whether they are the right ones.

        Any thread that has pinned it. False says that the encoding is damaged.
        """
        try:
            codec(self.codec).decode(self.copy_to(room), target)
        except CodecError:
            return False
        return xxhash.xxh3_128_digest(target) == self.checksum

    def unpin(self) -> None:
        """A reader is done."""
        self.pins -= 1
        self._free_unused()

    def discard(self) -> None:
        """It cannot be found any more."""
        self.held = False
        self._free_unused()

    def _free_unused(self) -> None:
        if not self.held and not self.pins:
            self.memory.give_back(self.pages)


def num_pages(num_bytes: int, slot_bytes: int) -> int:
    """Pages that an encoding takes.

    Never less than half of its slot's: so it is known beforehand how many there can be.
    """
    return -(-max(num_bytes, slot_bytes // 2) // PAGE_BYTES)
