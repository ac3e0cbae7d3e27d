"""What the machine's memory allows, and hints to the kernel about it."""

import contextlib
import ctypes
import mmap
from pathlib import Path

import numpy as np

from kvrelay.relay.errors import OutOfMemory

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # <linux/mman.h>, since Linux 5.14
_HEADROOM = 0.9
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_STEP_BYTES = 16 << 20


def advise_huge(mapping: mmap.mmap) -> None:
    """Ask for huge pages; a kernel without them for shared memory goes on without."""
    with contextlib.suppress(OSError, ValueError):
        mapping.madvise(mmap.MADV_HUGEPAGE)


def populate(address: int, num_bytes: int, write: bool) -> None:
    """Fault pages in ahead of use. Releases the GIL; an older kernel does nothing here."""
    page = mmap.PAGESIZE
    start = address // page * page
    _libc.madvise(start, address + num_bytes - start, _POPULATE_WRITE if write else _POPULATE_READ)


def map_present(address: int, num_bytes: int) -> None:
    """Map those pages of shared memory that exist already, and make none. Releases the GIL.

    Another process's pages fault where they are first used: 94 MB take 34 ms to write then, and
    4 ms once they are mapped (measured).
    """
    page = mmap.PAGESIZE
    for start in range(address // page * page, address + num_bytes, _STEP_BYTES):
        length = min(_STEP_BYTES, address + num_bytes - start)
        there = np.zeros(-(-length // page), np.uint8)
        if _libc.mincore(start, length, there.ctypes.data):
            return
        edges = np.flatnonzero(np.diff(there & 1, prepend=0, append=0))
        for first, end in edges.reshape(-1, 2).tolist():
            populate(start + first * page, (end - first) * page, write=False)


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can still be had: the smaller of the machine's and the cgroup's."""
    limits = []
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    for limit_file, used_file in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((root / limit_file).read_text())
            limits.append(limit - int((root / used_file).read_text()))
    return max(0, min(limits))


def require_capacity(capacity_bytes: int, encoded_bytes: int, available: int) -> None:
    """Refuse an arena and encoded blocks that this machine cannot hold together.

    Raises:
        OutOfMemory: with what is there and what to do.
    """
    if capacity_bytes + encoded_bytes > available * _HEADROOM:
        asked = f"relay.capacity_bytes asks for {capacity_bytes / 2**30:.2f} GiB"
        if encoded_bytes:
            asked += f" and relay.encoded_bytes for {encoded_bytes / 2**30:.2f} GiB"
        raise OutOfMemory(
            f"{asked}, but only {available / 2**30:.2f} GiB of memory are free here (a tenth of "
            "it is left alone); lower relay.capacity_bytes or relay.encoded_bytes, or raise the "
            "machine's or container's memory limit"
        )
