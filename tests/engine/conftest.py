"""Two real engines and a real store, shared by the tests of this folder."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Engine, tiny_llama

from kvrelay.relay.client import StoreClient
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def address() -> str:
    return f"kvrelay-test-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def server(address: str) -> Iterator[StoreServer]:
    server = StoreServer(StoreCore(64 << 20, time.monotonic_ns), address)
    yield server
    server.close()


@pytest.fixture(scope="session")
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
def pair(
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
