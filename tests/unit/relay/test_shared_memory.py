"""Pages of shared memory: mapped ahead where they are, and never made by looking."""

import gc
import mmap
import os
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from kvrelay.relay.arena import Slab, SlabGeometry
from kvrelay.relay.client import StoreLink
from kvrelay.relay.memory import map_present, populate
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore

MIB = 1 << 20


@pytest.fixture
def fd():
    fd = os.memfd_create("kvrelay-test")
    os.ftruncate(fd, 40 * MIB)
    yield fd
    os.close(fd)


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def resident(address: int) -> int:
    """Bytes of the mapping at `address` that this process has in its page table."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) * 1024


def test_pages_that_are_there_are_mapped_and_no_page_is_made(fd: int) -> None:
    page = mmap.PAGESIZE
    # Runs that begin, end, and lie across the steps in which pages are looked at.
    runs = [(0, 3 * page), (15 * MIB, 2 * MIB), (39 * MIB + page, MIB - page)]
    with mmap.mmap(fd, 40 * MIB) as first:
        view = np.frombuffer(first, np.uint8)
        for start, length in runs:
            populate(int(view.ctypes.data) + start, length, write=True)
        del view
    there = sum(length for _, length in runs)
    assert allocated(fd) == there
    second = mmap.mmap(fd, 40 * MIB)
    view = np.frombuffer(second, np.uint8)
    assert resident(int(view.ctypes.data)) == 0
    map_present(int(view.ctypes.data), 40 * MIB)
    assert resident(int(view.ctypes.data)) == there
    assert allocated(fd) == there


def test_slabs_of_other_block_sizes_take_no_memory_before_they_are_used() -> None:
    """They share the capacity: their engines once touched all of it again, each."""
    address = f"kvrelay-test-{uuid.uuid4().hex}"
    server = StoreServer(StoreCore(8 * MIB, time.monotonic_ns), address)
    links = [StoreLink(address, "t", slot_bytes, 2) for slot_bytes in (4096, 8192)]
    try:
        assert all(link.wait(5.0) for link in links)
        first, second = (server.call(lambda core, n=n: core.slab(n)) for n in range(2))
        end = time.monotonic() + 5.0
        data = first.geometry.stride_bytes * first.geometry.num_slots
        while allocated(first.fd) < data and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # time for a wrong touch of the second
        assert allocated(first.fd) >= data
        assert allocated(second.fd) < MIB
    finally:
        for link in links:
            link.close()
        server.close()


def test_a_slab_that_nobody_has_any_more_gives_its_descriptor_back() -> None:
    slab = Slab.create(SlabGeometry(4096, 2, 16), bytes(16))
    fd = slab.fd
    assert os.fstat(fd).st_size == slab.geometry.total_bytes
    del slab
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_closed_slab_closes_nothing_that_came_after_it() -> None:
    slab = Slab.create(SlabGeometry(4096, 2, 16), bytes(16))
    fd = slab.fd
    slab.close()
    other = os.memfd_create("kvrelay-test")
    assert other == fd
    slab.close()
    del slab
    gc.collect()
    os.fstat(other)
    os.close(other)
