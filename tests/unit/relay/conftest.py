import itertools
from collections.abc import Iterator

import pytest
from nodes import Node, Reader, Wire, idle, wait_for

from kvrelay.relay.store import StoreCore


class FakeClock:
    """A monotonic clock that moves only when told to, but never stands still when read."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self._tick = itertools.count()

    def __call__(self) -> int:
        return self.now_ns + next(self._tick)

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def core(clock: FakeClock) -> Iterator[StoreCore]:
    core = StoreCore(capacity_bytes=8 * 4096, now_ns=clock)
    yield core
    core.check_integrity()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """Several nodes of one process, which hold and owe nothing afterwards."""
    wire = Wire()
    yield wire
    for node in wire.nodes.values():
        node.transport.faults.stall_after = None
    wait_for(lambda: all(idle(node) for node in wire.nodes.values()), 15.0)
    for node in wire.nodes.values():
        node.check()
    wire.close()


@pytest.fixture(params=["raw", "split"])
def nodes(request: pytest.FixtureRequest, wire: Wire) -> tuple[Node, Node]:
    return wire.add("n1", codec=request.param), wire.add("n2", codec=request.param)


@pytest.fixture
def reader(nodes: tuple[Node, Node]) -> Iterator[Reader]:
    """An engine of the second node."""
    reader = Reader(nodes[1])
    yield reader
    reader.close()
