"""Two real engines and a real store, shared by the tests of this folder."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Engine, Settled, tiny_llama
from nodes import Node, Wire, no_peer

from kvrelay.relay import demotion
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.client import StoreClient
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports.isolated import IsolatedTransport


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def address() -> str:
    return f"kvrelay-test-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def server(address: str) -> Iterator[StoreServer]:
    core = StoreCore(64 << 20, time.monotonic_ns, encoded_bytes=64 << 20)
    catalog = Catalog(core.incarnation)
    server = StoreServer(core, address, catalog)
    transfers = Transfers(server, catalog=catalog, node_id="n0", peer=no_peer, make_transports=dict)
    yield server
    transfers.close()
    server.close()


@pytest.fixture(scope="module")
def engines(model: Path, server: StoreServer, address: str) -> Iterator[tuple[Engine, Engine]]:
    pair = (Engine(model, address, {"agent": "a"}), Engine(model, address, {"agent": "b"}))
    for engine in pair:
        engine.wait_ready()
    yield pair
    for engine in pair:
        engine.close()


@pytest.fixture
def store(server: StoreServer, address: str) -> Iterator[StoreClient]:
    client = StoreClient(address, "test")
    yield client
    client.close()


@pytest.fixture
def near_pair(
    engines: tuple[Engine, Engine], server: StoreServer, store: StoreClient
) -> Iterator[tuple[Engine, Engine]]:
    """Both engines with empty caches; afterwards nothing may be left over in them."""
    for engine in engines:
        engine.run()
        assert engine.reset()
    store.drop(None)
    yield engines
    server.call(StoreCore.check_integrity)
    for engine in engines:
        engine.run()
        state = engine.state()
        assert state == dict.fromkeys(state, 0), state
    stats = store.stats()
    assert (stats["reserved"], stats["leases"]) == (0, 0)


@pytest.fixture
def pair(near_pair: tuple[Engine, Engine]) -> tuple[Engine, Engine]:
    return near_pair


@pytest.fixture
def demoting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores demote whatever nobody has leased, at once."""
    monkeypatch.setattr(demotion, "HIGH_MARK", 0.0)
    monkeypatch.setattr(demotion, "LOW_MARK", 0.0)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    wire = Wire()
    for name in ("n1", "n2"):
        wire.add(name, more={"nixl": IsolatedTransport()}, encoded_bytes=64 << 20)
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def distant_engines(model: Path, wire: Wire) -> Iterator[tuple[Engine, Engine]]:
    addresses = [node.address for node in wire.nodes.values()]
    pair = tuple(
        Engine(model, address, {"agent": name})
        for address, name in zip(addresses, "ab", strict=True)
    )
    for engine in pair:
        engine.wait_ready()
    yield pair
    for engine in pair:
        engine.close()


@pytest.fixture
def distant_pair(
    distant_engines: tuple[Engine, Engine], wire: Wire
) -> Iterator[tuple[Settled, Settled]]:
    """Two engines on two nodes; afterwards nothing may be left over in them or their stores."""
    for engine in distant_engines:
        engine.run()
        assert engine.reset()
    for node in wire.nodes.values():
        node.server.call(StoreCore.clear)
    wire.settle()
    yield tuple(Settled(engine, wire.settle) for engine in distant_engines)
    for engine in distant_engines:
        engine.run()
        state = engine.state()
        assert state == dict.fromkeys(state, 0), state
    end = time.monotonic() + 5
    while any(_left_over(node) for node in wire.nodes.values()):
        assert time.monotonic() < end, [_left_over(node) for node in wire.nodes.values()]
        time.sleep(0.02)


def _left_over(node: Node) -> dict[str, int]:
    node.server.call(StoreCore.check_integrity)
    stats = node.server.call(StoreCore.stats) | node.transfers.run(node.transfers.stats)
    names = ("reserved", "leases", "fetches", "loans", "quarantined", "faults")
    return {name: stats[name] for name in names if stats.get(name)}
