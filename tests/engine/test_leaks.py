"""Many reads between two stores by NIXL leave nothing behind."""

import os
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from nodes import Reader, Wire, idle, share, wait_for

from kvrelay.relay.transports.isolated import IsolatedTransport

LOADS = int(os.environ.get("KVRELAY_TEST_LOADS", "10000"))
SETTLED = LOADS // 5
SAMPLE_EVERY = LOADS // 100
MAX_BYTES_PER_LOAD = 200


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    for name in ("n1", "n2"):
        node = wire.add(name, more={"nixl": IsolatedTransport()})
        node.transfers.routes.transport = "nixl"
    yield wire
    wire.close()


def resident_bytes() -> int:
    """Of this process, which is both stores, and of the processes that move their bytes."""
    me = psutil.Process()
    return sum(process.memory_info().rss for process in [me, *me.children(recursive=True)])


def num_descriptors() -> int:
    me = psutil.Process()
    return sum(process.num_fds() for process in [me, *me.children(recursive=True)])


def upper_slope(loads: list[int], sizes: list[int]) -> float:
    """The 95 % upper bound of bytes per load, by least squares."""
    x, y = np.array(loads, float), np.array(sizes, float)
    x -= x.mean()
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
    return slope + 1.661 * error  # one-sided, 80 to 100 samples


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_ten_thousand_reads_leak_nothing(wire: Wire) -> None:
    source, sink = wire.nodes["n1"], wire.nodes["n2"]
    reader = Reader(sink)
    keys = share(source, reader, 1, 50)
    loads, sizes, descriptors = [], [], []
    for number in range(LOADS):
        key = keys[number % len(keys)]
        ended = reader.fetch([key])
        assert ended.failure == "", (number, ended)
        assert reader.good(ended.number) == [key]
        reader.landed.clear()
        reader.ended.clear()
        reader.fetches.end(ended.number)
        sink.server.call(lambda core, key=key: core.drop([key]))
        if number % SAMPLE_EVERY == 0 and number >= SETTLED:
            loads.append(number)
            sizes.append(resident_bytes())
            descriptors.append(num_descriptors())
    assert max(descriptors) - min(descriptors) <= 2
    slope = upper_slope(loads, sizes)
    print(f"{LOADS} loads: resident memory grows by at most {slope:.0f} B a load")
    assert slope < MAX_BYTES_PER_LOAD
    wait_for(lambda: idle(source) and idle(sink))
    reader.close()
