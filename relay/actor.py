"""The Ray actors: one KVStore per node, one KVDirectory per cluster.

They give the store a lifetime of its own, longer than any engine's, and a name. Engines do
not talk to them: what an engine needs is the store's address, and goes over its socket.
"""

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvrelay.relay import memory
from kvrelay.relay.directory import Batch, DirectoryCore
from kvrelay.relay.errors import RelayError, StoreUnavailable
from kvrelay.relay.server import StoreServer
from kvrelay.relay.settings import RelaySettings
from kvrelay.relay.store import StoreCore

logger = logging.getLogger(__name__)
NAMESPACE = "kvrelay"
PUBLISH_EVERY_S = 0.2
# Changes or not, so that a directory that came back is told everything soon.
HEARTBEAT_S = 1.0
START_TIMEOUT_S = 60.0


class KVDirectory:
    """Which node holds which block; see `DirectoryCore`."""

    def __init__(self) -> None:
        self._core = DirectoryCore()

    def publish(self, batch: Batch) -> bool:
        """See `DirectoryCore.publish`."""
        return self._core.publish(batch)

    def lookup(self, keys: list[bytes]) -> list[list[str]]:
        """See `DirectoryCore.lookup`."""
        return self._core.lookup(keys)

    def stats(self) -> dict[str, int]:
        """See `DirectoryCore.stats`."""
        self._core.check_integrity()
        return self._core.stats()


class KVStore:
    """Owner of a node's arena; serves engines on its socket, publishes to the directory."""

    def __init__(self, address: str, capacity_bytes: int, node_id: str) -> None:
        memory.require_capacity(capacity_bytes, memory.available_bytes())
        self._node_id = node_id
        self._server = StoreServer(StoreCore(capacity_bytes, time.monotonic_ns), address)
        threading.Thread(target=self._publish, name="kvrelay-publish", daemon=True).start()

    def ready(self) -> int:
        """The store's process, once it serves."""
        return os.getpid()

    def stats(self) -> dict[str, int]:
        """Counts of the store, after a check of its integrity."""

        def checked(core: StoreCore) -> dict[str, int]:
            core.check_integrity()
            return core.stats()

        return self._server.call(checked)

    def clear(self) -> int:
        """Drop all blocks; how many there were."""
        return self._server.call(StoreCore.clear)

    def _publish(self) -> None:
        whole, last_s = True, float("-inf")
        while True:
            time.sleep(PUBLISH_EVERY_S)
            try:
                batch = self._server.call(self._whole if whole else self._changes)
                due = time.monotonic() - last_s >= HEARTBEAT_S
                if batch.added or batch.removed or whole or due:
                    last_s = time.monotonic()
                    directory = ray.get_actor(_directory_name(), namespace=NAMESPACE)
                    whole = not ray.get(directory.publish.remote(batch), timeout=5)
            except (ray.exceptions.RayError, ValueError, TimeoutError):
                whole = True  # something was lost on the way: say everything next time

    def _whole(self, core: StoreCore) -> Batch:
        core.take_events()
        return Batch(self._node_id, core.incarnation, True, tuple(core.keys()), ())

    def _changes(self, core: StoreCore) -> Batch:
        events = core.take_events()
        return Batch(self._node_id, core.incarnation, False, events.added, events.removed)


@dataclass(frozen=True, slots=True)
class StoreHandle:
    """A running store: its node, the address engines use, and its actor."""

    node_id: str
    address: str
    actor: Any


def _version() -> str:
    return version("kvrelay")


def _directory_name() -> str:
    return f"directory-{_version()}"


def _store_name(node_id: str) -> str:
    return f"store-{_version()}-{node_id}"


def ensure_store(settings: RelaySettings) -> StoreHandle:
    """Get or create the store of the Ray node this process runs on, and the directory.

    Raises:
        RelayError: it does not start; the message says why and what to do.
    """
    node_id = ray.get_runtime_context().get_node_id()
    address = f"kvrelay-{_version()}-{node_id}"
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
    }
    ray.remote(KVDirectory).options(name=_directory_name(), **common).remote()
    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = (
        ray.remote(KVStore)
        .options(name=_store_name(node_id), scheduling_strategy=here, max_concurrency=4, **common)
        .remote(address, settings.capacity_bytes, node_id)
    )
    try:
        ray.get(actor.ready.remote(), timeout=START_TIMEOUT_S)
    except ray.exceptions.RayActorError as error:
        with contextlib.suppress(ValueError):
            ray.kill(actor)
        raise RelayError(_reason(error)) from error
    except ray.exceptions.GetTimeoutError as error:
        raise StoreUnavailable(f"the KV store did not start in {START_TIMEOUT_S:.0f} s") from error
    return StoreHandle(node_id, address, actor)


def stores() -> list[StoreHandle]:
    """All stores of the cluster, of this version."""
    found = []
    for entry in ray.util.list_named_actors(all_namespaces=True):
        prefix = f"store-{_version()}-"
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix):
            node_id = entry["name"].removeprefix(prefix)
            with contextlib.suppress(ValueError):  # it ended meanwhile
                actor = ray.get_actor(entry["name"], namespace=NAMESPACE)
                found.append(StoreHandle(node_id, f"kvrelay-{_version()}-{node_id}", actor))
    return found


def shutdown_stores() -> int:
    """End all stores and the directory; how many stores there were."""
    handles = stores()
    for handle in handles:
        ray.kill(handle.actor)
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(_directory_name(), namespace=NAMESPACE))
    return len(handles)


def _reason(error: BaseException) -> str:
    """The remedy that the store's own error holds, out of Ray's report of it."""
    for line in reversed(str(error).splitlines()):
        head, _, message = line.strip().partition(": ")
        if head.startswith("kvrelay.relay.errors.") and message:
            return message
    return f"the KV store did not start: {error}"
