"""The Ray actors: one KVStore per node, one KVDirectory per cluster.

They give the store a lifetime of its own, longer than any engine's, and a name. Engines do
not talk to them: what an engine needs is the store's address, and goes over its socket.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvrelay.relay import health, memory, probe
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.directory import SILENCE_S, Batch, Changes, Cursor, DirectoryCore
from kvrelay.relay.errors import RelayError, StoreUnavailable
from kvrelay.relay.lending import Ask, Lent
from kvrelay.relay.names import NAMESPACE, directory_name, store_address, store_name, store_prefix
from kvrelay.relay.peers import Peers
from kvrelay.relay.routes import Routes
from kvrelay.relay.server import StoreServer
from kvrelay.relay.settings import RelaySettings
from kvrelay.relay.store import StoreCore
from kvrelay.relay.store_metrics import StoreMetrics
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports import make_transports

logger = logging.getLogger(__name__)
COALESCE_S = 0.005  # between a change and its publication
# Changes or not, so that a directory that came back is told everything soon.
HEARTBEAT_S = 1.0
WATCH_S = 1.0
METRICS_S = 5.0  # Ray hands metrics on every 10 s
START_TIMEOUT_S = 60.0
# Its calls have a thread of their own: they free what calls of `lend` may be waiting for.
_TAKE_BACK = "take_back"


class KVDirectory:
    """Which node holds which block; see `DirectoryCore`. Stores publish and watch."""

    def __init__(self) -> None:
        self._core = DirectoryCore(time.monotonic)
        self._changed = asyncio.Event()

    async def publish(self, batch: Batch) -> bool:
        """See `DirectoryCore.publish`."""
        before = self._core.cursor
        taken = self._core.publish(batch)
        if self._core.cursor != before:
            self._tell()
        return taken

    async def watch(self, cursor: Cursor | None, node_id: str) -> Changes:
        """What happened since `cursor`; waits up to `WATCH_S` for something to happen."""
        if self._core.expire():
            self._tell()
        if cursor == self._core.cursor:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), WATCH_S)
        return self._core.changes(cursor, node_id)

    async def lookup(self, keys: list[bytes]) -> list[list[str]]:
        """See `DirectoryCore.lookup`."""
        return self._core.lookup(keys)

    async def stats(self) -> dict[str, int]:
        """See `DirectoryCore.stats`."""
        self._core.check_integrity()
        return self._core.stats()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class KVStore:
    """Owner of a node's blocks; serves engines on its socket, and other nodes' stores."""

    def __init__(
        self, address: str, capacity_bytes: int, encoded_bytes: int, node_id: str, routes: Routes
    ) -> None:
        memory.require_capacity(capacity_bytes, encoded_bytes, memory.available_bytes())
        self._node_id = node_id
        self._changed = threading.Event()
        core = StoreCore(capacity_bytes, time.monotonic_ns, encoded_bytes)
        self._catalog = Catalog(core.incarnation)
        self._server = StoreServer(core, address, self._catalog, self._changed.set)
        self._transfers = Transfers(
            self._server,
            catalog=self._catalog,
            node_id=node_id,
            peer=Peers(),
            make_transports=make_transports,
            routes=routes,
        )
        self._ready: tuple[str, ...] = ()  # transports that others may read by
        for run, name in (
            (self._publish, "kvrelay-publish"),
            (self._watch, "kvrelay-watch"),
            (self._tell_metrics, "kvrelay-metrics"),
        ):
            threading.Thread(target=run, name=name, daemon=True).start()

    def ready(self) -> int:
        """The store's process, once it serves."""
        return os.getpid()

    def stats(self) -> dict[str, int]:
        """Counts of the store, after a check of its integrity."""

        def checked(core: StoreCore) -> dict[str, int]:
            core.check_integrity()
            return core.stats()

        return {
            **self._server.call(checked),
            **self._catalog.stats(),
            **self._transfers.run(self._transfers.stats),
        }

    def clear(self) -> int:
        """Drop all blocks; how many there were."""
        return self._server.call(StoreCore.clear)

    def lend(self, ask: Ask) -> Lent:
        """Answer another node's store that wants to read blocks."""
        return self._transfers.lend(ask)

    @ray.method(concurrency_group=_TAKE_BACK)
    def take_back(self, transport: str, number: int) -> None:
        """Another node's store has read what it was lent."""
        self._transfers.take_back(transport, number)

    def lend_probe(self, transport: str, count: int, num_bytes: int) -> Lent:
        """See `probe.lend_probe`."""
        return probe.lend_probe(self._transfers, transport, count, num_bytes)

    def probe(self, source: str) -> list[probe.Probed]:
        """Measure reading from another node by every transport that both have."""
        actor = ray.get_actor(store_name(source), namespace=NAMESPACE)
        offered = self._catalog.nodes().get(source, ())
        return [
            probe.probe(
                self._transfers,
                source,
                transport,
                lambda count, size, way=transport: ray.get(  # type: ignore[misc]
                    actor.lend_probe.remote(way, count, size), timeout=probe.TIMEOUT_S
                ),
                lambda lent, way=transport: actor.take_back.remote(way, lent.offer.number),  # type: ignore[misc]
            )
            for transport in self._ready
            if transport in offered
        ]

    def health(self) -> dict[str, str | int]:
        """What about this process and its node decides how well it can relay."""
        return health.look()

    def set_route(self, transport: str | None, codec: str | None) -> None:
        """Read in this way from now on, None: in the best; for operators and benchmarks."""
        self._transfers.routes.transport, self._transfers.routes.codec = transport, codec

    def _publish(self) -> None:
        whole = True
        while True:
            self._changed.wait(HEARTBEAT_S)
            self._changed.clear()
            time.sleep(COALESCE_S)
            try:
                batch = self._server.call(self._whole if whole else self._changes)
                directory = ray.get_actor(directory_name(), namespace=NAMESPACE)
                whole = not ray.get(directory.publish.remote(batch), timeout=5)
                if whole:
                    self._changed.set()
            except Exception as error:
                _log_unforeseen(error)
                whole = True  # something was lost on the way: say everything next time

    def _whole(self, core: StoreCore) -> Batch:
        events = core.take_events()
        blocks = tuple(core.published(core.keys()))
        ready = self._ready
        return Batch(self._node_id, core.incarnation, True, blocks, (), ready, events.expected)

    def _changes(self, core: StoreCore) -> Batch:
        events = core.take_events()
        added = tuple(core.published(events.added))
        return Batch(
            self._node_id,
            core.incarnation,
            False,
            added,
            events.removed,
            self._ready,
            events.expected,
        )

    def _watch(self) -> None:
        """Follow the directory; make the transports when another node is first seen."""
        cursor: Cursor | None = None
        heard_s = time.monotonic()
        while True:
            try:
                directory = ray.get_actor(directory_name(), namespace=NAMESPACE)
                changes = ray.get(
                    directory.watch.remote(cursor, self._node_id), timeout=WATCH_S + SILENCE_S
                )
                self._catalog.apply(changes)
                self._transfers.hear(changes)
                cursor, heard_s = changes.cursor, time.monotonic()
                if self._catalog.nodes() and not self._ready:
                    self._ready = self._transfers.warm_up()
                    self._changed.set()
            except Exception as error:
                _log_unforeseen(error)
                if time.monotonic() - heard_s > SILENCE_S and cursor is not None:
                    # Whoever is out of reach is no source; all is told again afterwards.
                    self._catalog.clear()
                    cursor = None
                time.sleep(COALESCE_S + 0.2)

    def _tell_metrics(self) -> None:
        """Tell Ray what the store holds, again and again."""
        metrics = StoreMetrics()
        while True:
            try:
                metrics.tell(self._server.call(StoreCore.stats))
            except TimeoutError:
                pass  # the store is busy: the next time tells
            except Exception:
                logger.exception("the metrics of the store could not be told")
            time.sleep(METRICS_S)


@dataclass(frozen=True, slots=True)
class StoreHandle:
    """A running store: its node, the address engines use, and its actor."""

    node_id: str
    address: str
    actor: Any


def ensure_store(settings: RelaySettings) -> StoreHandle:
    """Get or create the store of the Ray node this process runs on, and the directory.

    Raises:
        RelayError: it does not start; the message says why and what to do.
    """
    node_id = ray.get_runtime_context().get_node_id()
    address = store_address(node_id)
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
    }
    ray.remote(KVDirectory).options(name=directory_name(), **common).remote()
    routes = Routes(settings.transport, settings.codec)
    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = (
        ray.remote(concurrency_groups={_TAKE_BACK: 1})(KVStore)
        .options(name=store_name(node_id), scheduling_strategy=here, max_concurrency=8, **common)
        .remote(address, settings.capacity_bytes, settings.encoded_bytes, node_id, routes)
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
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(store_prefix()):
            node_id = entry["name"].removeprefix(store_prefix())
            with contextlib.suppress(ValueError):  # it ended meanwhile
                actor = ray.get_actor(entry["name"], namespace=NAMESPACE)
                found.append(StoreHandle(node_id, store_address(node_id), actor))
    return found


def shutdown_stores() -> int:
    """End all stores and the directory; how many stores there were."""
    handles = stores()
    for handle in handles:
        ray.kill(handle.actor)
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(directory_name(), namespace=NAMESPACE))
    return len(handles)


def _log_unforeseen(error: Exception) -> None:
    """A thread that talks to the directory goes on whatever happens; its end would be silent."""
    if not isinstance(error, ray.exceptions.RayError | ValueError | TimeoutError):
        logger.exception("the directory could not be talked to", exc_info=error)


def _reason(error: BaseException) -> str:
    """The remedy that the store's own error holds, out of Ray's report of it."""
    for line in reversed(str(error).splitlines()):
        head, _, message = line.strip().partition(": ")
        if head.startswith("kvrelay.relay.errors.") and message:
            return message
    return f"the KV store did not start: {error}"
