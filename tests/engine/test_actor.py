"""The store and the directory as Ray actors, on a Ray of this test's own."""

import time
from collections.abc import Iterator

import pytest
import ray
import xxhash

from kvrelay.relay import actor
from kvrelay.relay.client import StoreClient
from kvrelay.relay.errors import RelayError
from kvrelay.relay.keys import child_key, pack_tokens, root_key
from kvrelay.relay.names import NAMESPACE, directory_name
from kvrelay.relay.settings import RelaySettings
from kvrelay.relay.store import Entry

ROOT = root_key(bytes(32))
TOKENS = pack_tokens([1, 2])
KEY = child_key(ROOT, TOKENS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("cwd"))  # STYLE: never start Ray in the checkout
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 << 20,
        namespace="test",
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    patch.undo()


def wait_for(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.05)


def connected(address: str) -> StoreClient | None:
    try:
        return StoreClient(address, "test")
    except RelayError:
        return None


def write(client: StoreClient) -> None:
    slab_id, slab, catalog = client.open_slab(4096, 2)
    catalog.close()
    ((key, slot),) = client.reserve(slab_id, [KEY]).granted
    client.commit(
        slab_id, [Entry(slot, key, ROOT, TOKENS, xxhash.xxh3_128_digest(slab.data(slot)))]
    )
    slab.close()


def places() -> list[list[str]]:
    directory = ray.get_actor(directory_name(), namespace=NAMESPACE)
    return ray.get(directory.lookup.remote([KEY]))


def test_too_large_a_capacity_is_a_clear_error(cluster: None) -> None:
    with pytest.raises(RelayError, match=r"relay\.capacity_bytes asks for .* lower"):
        actor.ensure_store(RelaySettings(capacity_bytes=1 << 50))
    actor.shutdown_stores()
    wait_for(lambda: not actor.stores())


def test_store_and_directory_come_back_after_a_kill(cluster: None) -> None:
    settings = RelaySettings(capacity_bytes=1 << 20)
    handle = actor.ensure_store(settings)
    assert actor.ensure_store(settings).address == handle.address
    assert [store.node_id for store in actor.stores()] == [handle.node_id]
    client = StoreClient(handle.address, "test")
    write(client)
    wait_for(lambda: places() == [[handle.node_id]])
    # The directory is rebuilt by what the store publishes again.
    directory = ray.get_actor(directory_name(), namespace=NAMESPACE)
    ray.kill(directory, no_restart=False)
    wait_for(lambda: _quietly(places) == [[handle.node_id]])
    # The store comes back at the same address, empty, and the directory forgets.
    ray.kill(handle.actor, no_restart=False)
    client.close()
    wait_for(lambda: connected(handle.address) is not None)
    wait_for(lambda: _quietly(places) == [[]])
    assert ray.get(handle.actor.stats.remote())["blocks"] == 0
    assert actor.shutdown_stores() == 1


def _quietly(function):
    try:
        return function()
    except ray.exceptions.RayError:
        return None
