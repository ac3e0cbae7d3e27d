"""Memory in which encoded blocks wait: for their reader, or to be decoded."""

import mmap
import os
import threading

import numpy as np

from kvrelay.relay.codecs.base import max_encoded_bytes
from kvrelay.relay.transports.base import Span

SCRATCH_BYTES = 64 << 20
_PAGE = 4096
_MIN_CELLS = 5  # see lending.py


class Scratch:
    """Equal cells, each of which holds any encoding of one block. Safe for several threads.

    One memfd, like a slab: a transport's own process can map it, and it leaves no file behind.
    """

    def __init__(self, slot_bytes: int, num_bytes: int = SCRATCH_BYTES) -> None:
        """Cells for blocks of `slot_bytes`, as many as fit `num_bytes`, at least one loan's."""
        self._stride = -(-max_encoded_bytes(slot_bytes) // _PAGE) * _PAGE
        total_bytes = self._stride * max(_MIN_CELLS, num_bytes // self._stride)
        fd = os.memfd_create("kvrelay-scratch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, total_bytes)
            self._map = mmap.mmap(fd, total_bytes)  # with a descriptor of its own
        finally:
            os.close(fd)
        self._view = memoryview(self._map)
        self._base = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self._free = list(range(len(self._map) // self._stride))
        self._freed = threading.Condition()

    @property
    def region(self) -> Span:
        """All of it, to be registered with transports."""
        return Span(self._base, len(self._map))

    @property
    def num_free(self) -> int:
        """Cells that nobody has."""
        return len(self._free)

    def take(self, count: int, timeout_s: float = 0.0) -> list[int] | None:
        """That many cells; None if they do not become free in time."""
        with self._freed:
            if not self._freed.wait_for(lambda: len(self._free) >= count, timeout_s):
                return None
            return [self._free.pop() for _ in range(count)]

    def give_back(self, cells: list[int]) -> None:
        """Let others have these cells."""
        with self._freed:
            self._free += cells
            self._freed.notify_all()

    def view(self, cell: int) -> memoryview:
        """A cell's bytes."""
        return self._view[cell * self._stride : (cell + 1) * self._stride]

    def span(self, cell: int, num_bytes: int) -> Span:
        """The first bytes of a cell, for a transport."""
        return Span(self._base + cell * self._stride, num_bytes)
