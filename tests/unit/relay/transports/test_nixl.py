"""NIXL's surroundings: the environment it starts in, the memory that can be shared with it."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transfer_hosts import ProcessHost
from transfer_ways import REGION_BYTES

from kvrelay.relay.arena import Slab, SlabGeometry
from kvrelay.relay.transports.base import Span, TransferError
from kvrelay.relay.transports.isolated import IsolatedTransport, shared_file

PARTS = [(0, 1 << 20)]
MakeHost = Callable[..., ProcessHost]


@pytest.fixture
def host() -> Iterator[MakeHost]:
    made = []

    def make(kind: str, **env: str) -> ProcessHost:
        made.append(ProcessHost(kind, REGION_BYTES, {"UCX_TLS": "tcp", **env}))
        return made[-1]

    yield make
    for each in made:
        assert each.close() == 0


def ucx_settings(host: ProcessHost) -> Any:
    return host.call(
        "execute", "import os; result = {k: v for k, v in os.environ.items() if k[:4] == 'UCX_'}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nixl", "isolated"])
def test_the_users_settings_stand(kind: str, host: MakeHost, tmp_path: Path) -> None:
    own = {"UCX_LOG_FILE": str(tmp_path / "%p.log"), "UCX_LOG_LEVEL": "info"}
    source, reader = host(kind), host(kind, **own)
    offer = source.call("offer", PARTS)
    reader.call("fetch", offer, PARTS)
    assert ucx_settings(source) == {"UCX_TLS": "tcp"}  # nothing of ours is left for children
    assert ucx_settings(reader) == {"UCX_TLS": "tcp", **own}
    assert reader.call("path", offer) == "unknown"
    (log,) = tmp_path.iterdir()
    reader.close()
    assert "INFO" in log.read_text()
    assert "DEBUG" not in log.read_text()


@pytest.mark.slow
def test_torch_is_not_loaded(host: MakeHost) -> None:
    party = host("nixl")
    party.call("warm_up")
    loaded = party.call("execute", "import sys; result = sorted(sys.modules)")
    assert "nixl_cu12._bindings" in loaded
    assert not {"torch", "ray", "vllm"} & set(loaded)


def test_shared_memory_is_found_by_its_address() -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, 1 << 20)
    mapping = mmap.mmap(fd, (1 << 20) - 8192, offset=8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    found, offset = shared_file(Span(address + 4096, 4096))
    try:
        assert os.fstat(found).st_ino == os.fstat(fd).st_ino
        assert offset == 8192 + 4096
    finally:
        os.close(found)
    os.close(fd)


def test_private_memory_cannot_be_isolated() -> None:
    buffer = ctypes.create_string_buffer(1 << 20)
    with pytest.raises(TransferError, match="shared memory"):
        IsolatedTransport().register(Span(ctypes.addressof(buffer), 1 << 20))


@pytest.mark.slow
def test_memory_can_be_registered_long_after_the_start() -> None:
    slabs = [Slab.create(SlabGeometry(4096, 2, 4), bytes(16)) for _ in range(2)]
    transport = IsolatedTransport()
    try:
        transport.warm_up()
        transport._ready_by_s = time.monotonic()  # the time that a start may take is over
        for slab in slabs:
            transport.register(Span(slab.address(0), 4 * 4096))
            offer = transport.offer([Span(slab.address(1), 4096)])
            transport.withdraw(offer)
    finally:
        transport.close()
        for slab in slabs:
            slab.close()


@pytest.mark.slow
def test_memory_can_be_registered_when_the_mover_has_just_died() -> None:
    """The next mover must not be sent a descriptor that it does not expect."""
    slabs = [Slab.create(SlabGeometry(4096, 2, 4), bytes(16)) for _ in range(3)]
    source, reader = IsolatedTransport(), IsolatedTransport()
    try:
        for transport, slab in ((source, slabs[0]), (reader, slabs[1])):
            transport.warm_up()
            transport.register(Span(slab.address(0), 4 * 4096))
        slabs[0].data(1)[:] = bytes([7]) * 4096
        offer = source.offer([Span(slabs[0].address(1), 4096)])
        assert reader._process is not None
        reader._process.kill()
        reader._process.wait()
        reader.register(Span(slabs[2].address(0), 4 * 4096))
        end = time.monotonic() + 20
        for slab in (slabs[1], slabs[2]):
            while True:
                try:
                    read = reader.read(offer, [Span(slab.address(2), 4096)])
                    break
                except TransferError:  # it has not started yet
                    assert time.monotonic() < end
                    time.sleep(0.05)
            while read.poll() < 1:
                source.progress()
                assert time.monotonic() < end, "the new mover does not obey"
                time.sleep(0.002)
            assert bytes(slab.data(2)) == bytes([7]) * 4096
    finally:
        for transport in (source, reader):
            transport.close()
        for slab in slabs:
            slab.close()
