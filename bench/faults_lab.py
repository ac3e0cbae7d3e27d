"""Where `bench faults` injects: real Ray, stores and engines on the two nodes of a test bed.

Only Serve and HTTP are left out: the engines are driven (driven.py), so that a request can be
watched while it runs and a lost engine is back in seconds. Their model is small and random;
what is relayed is as exact or wrong as with any other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kvrelay.bench import store_hooks
from kvrelay.bench.driven import DrivenEngine, tiny_llama
from kvrelay.bench.engines import BINDING, forget_ray_token
from kvrelay.bench.errors import BenchError
from kvrelay.bench.faults_sites import Prompt, Replica, Site, View
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.bed import Bed, two_nodes
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.testbed.network import Node
from kvrelay.cluster import joined
from kvrelay.cluster.cli.console import err
from kvrelay.cluster.config import NODE_LABEL
from kvrelay.cluster.session import sessions_dir
from kvrelay.relay.errors import RelayError
from kvrelay.relay.routes import Way
from kvrelay.relay.settings import RelaySettings

# 128 KiB of KV a block: a prompt is most of a second on this wire, and the deadline is late
# enough for a slow machine, where a relay behind a clock jump has taken 2.7 s.
LINK = parse_link("40mbit")
DEADLINE_S = 5.0
CAPACITY_BYTES = 64 << 20
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "head_dim": 64,
}
# A relayed prompt is computed in other pieces than a recomputed one. In bfloat16 the difference
# may tip the scales between two tokens.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 48 << 20,
}
JUMP_S, WALL_JUMP_S = 60.0, -3600.0
_START_TIMEOUT_S = 90.0
_POLL_S = 0.02
_JUMP_ON_SIGNAL = """
import signal, time
from kvrelay.bench import shifted_clock
def jump(*_):
    shifted_clock.jump(monotonic_s, wall_s)
    driver.worker_half._loads._clock_ns = time.monotonic_ns
for _ in range(jumps):
    jump()
signal.signal(signal.SIGUSR1, jump)
"""


@dataclass(slots=True)
class Lab:
    """Everything that runs; `opened` makes one.

    Attributes:
        near: the site of B and of this process.
        far: the site of A.
    """

    bed: Bed
    near: Site = field(init=False)
    far: Site = field(init=False)
    a: Replica = field(init=False)
    b: Replica = field(init=False)
    _other: Replica | None = None
    _slot_bytes: int = 0
    _ray_nodes: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Start stores and engines, and wait until each node can read from the other."""
        for seed in (0, 1):
            tiny_llama(self._model(seed), seed, **SHAPE)
        self.near, self.far = (self._site(node) for node in self.bed.network.nodes)
        started = [self._started(self.near, "b"), self._started(self.far, "a")]
        sites = (self.near, self.far)
        self.b, self.a = map(self._ready, sites, started)
        if self.a.fingerprint != self.b.fingerprint:
            raise BenchError("two engines of one model have different fingerprints")
        wait_until(self._transports_ready, _START_TIMEOUT_S, "the stores have no transports")

    def close(self) -> None:
        """End the engines; the rest is the bed's."""
        for replica in (self._other, getattr(self, "a", None), getattr(self, "b", None)):
            if replica is not None:
                replica.engine.kill()

    # What an injection needs

    def set_way(self, way: Way) -> None:
        """Let B's store read in this way."""
        self.near.ask("set_route", *way)

    def other(self) -> Replica:
        """An engine on A's node whose weights are others; started when it is first needed."""
        if self._other is None:
            engine = self._started(self.far, "other", seed=1)
            self._other = self._ready(self.far, engine)
        return self._other

    def await_known(self, replica: Replica, prompt: Prompt, timeout_s: float = 10.0) -> bool:
        """Wait until B's store has heard of all that a replica has saved of a prompt."""
        keys = replica.keys(prompt)
        end_s = time.monotonic() + timeout_s
        while self.near.sight().known(keys) < len(keys):
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def jump(self, site: Site) -> None:
        """Let the clocks of a node jump, in its store and its engines."""
        site.jumps += 1
        site.call(store_hooks.jump, JUMP_S, WALL_JUMP_S)
        for replica in (self.a, self.b, self._other):
            if replica is not None and replica.site is site:
                replica.engine.process.send_signal(signal.SIGUSR1)

    def reattach(self, site: Site) -> None:
        """Wait until a store that was killed serves again.

        Raises:
            BenchError: it does not.
        """
        if site.view is not None:
            site.view.close()
            site.view = None
        wait_until(
            lambda: self._try_attach(site),
            _START_TIMEOUT_S,
            f"the store of {site.node.label} has not come back",
        )
        for _ in range(site.jumps):
            site.call(store_hooks.jump, JUMP_S, WALL_JUMP_S)

    def restart_a(self) -> None:
        """Start A anew, in place of one that was killed."""
        self.a = self._ready(self.far, self._started(self.far, "a"))

    def kill_far_engines(self) -> None:
        """Let the engines of A's node go with it."""
        for replica in (self.a, self._other):
            if replica is not None:
                replica.engine.kill()
        self._other = None

    def restart_far(self) -> None:
        """Bring A's node back, as a new one to Ray."""
        if self.far.view is not None:
            self.far.view.close()
        self.bed.end_node(self.far.node)
        self.bed.start_node(self.far.node, num_cpus=1)
        self.far = self._site(self.far.node)
        self.restart_a()

    # Making

    def _model(self, seed: int) -> Path:
        return self.bed.temp_dir / f"weights-{seed}"

    def _site(self, node: Node) -> Site:
        """The store of a node that Ray has just taken in."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from kvrelay.relay.actor import ensure_store

        def fresh() -> set[str]:
            """Ray may take the node that was there before for alive yet."""
            labelled = [n for n in ray.nodes() if n["Labels"].get(NODE_LABEL) == node.label]
            return {n["NodeID"] for n in labelled if n["Alive"]} - self._ray_nodes

        wait_until(lambda: bool(fresh()), _START_TIMEOUT_S, f"Ray does not know {node.label}")
        (ray_node,) = fresh()
        self._ray_nodes.add(ray_node)
        there = NodeAffinitySchedulingStrategy(ray_node, soft=False)
        task = ray.remote(ensure_store).options(num_cpus=0, scheduling_strategy=there)
        settings = RelaySettings(capacity_bytes=CAPACITY_BYTES)
        return Site(node, ray.get(task.remote(settings), timeout=_START_TIMEOUT_S))

    def _started(self, site: Site, name: str, seed: int = 0) -> DrivenEngine:
        settings = {"agent": name, "load_deadline_s": DEADLINE_S}
        # One thread each: several would wait for each other whenever a core is taken.
        core = min(os.sched_getaffinity(0)) if site is self.far else max(os.sched_getaffinity(0))
        environment = self.bed.node_environment(site.node) | {BINDING: str(core)}
        address = site.handle.address
        # What an engine says of its faults is expected; what it cannot handle, it answers.
        with system.entered(site.node), (self.bed.temp_dir / "engines.log").open("ab") as log:
            model = self._model(seed)
            engine = DrivenEngine(model, address, settings, environment, log, **ENGINE)
        # Like Ray's workers, or a store, which is one, gets no time beside engines that spin.
        psutil.Process(engine.process.pid).nice(psutil.Process(site.pid()).nice())
        return engine

    def _ready(self, site: Site, engine: DrivenEngine) -> Replica:
        try:
            identity = engine.wait_ready().identity()
        except RuntimeError as error:
            raise BenchError(f"an engine did not start: {error}") from error
        engine.execute(_JUMP_ON_SIGNAL, monotonic_s=JUMP_S, wall_s=WALL_JUMP_S, jumps=site.jumps)
        self._slot_bytes = identity["slot_bytes"]
        if site.view is None:
            self._attach(site)
        return Replica(engine, site, identity["fingerprint"])

    def _attach(self, site: Site) -> None:
        site.view = View(site.node, site.handle.address, self._slot_bytes)

    def _try_attach(self, site: Site) -> bool:
        try:
            site.pid()
            self._attach(site)
        except (BenchError, RelayError):
            return False
        return True

    def _transports_ready(self) -> bool:
        return all(site.call(store_hooks.transports) for site in (self.near, self.far))


@contextlib.contextmanager
def opened() -> Iterator[Lab]:
    """A lab for the time of the block; nothing of it remains.

    Raises:
        BenchError: it cannot be made here; with the remedy.
    """
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(two_nodes(LINK))
        with err.status("starting two Ray nodes"):
            bed.start_ray(num_cpus=1)
        stack.enter_context(bed.joined())
        # Where the driver is, workers start: not in a checkout, where a bare `agents` lies.
        stack.enter_context(contextlib.chdir(sessions_dir()))
        # Ray would tell there, in many lines, that a node is lost.
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(_ray())
        lab = Lab(bed)
        stack.callback(lab.close)
        with err.status("starting stores and engines"):
            lab.start()
        yield lab


def wait_until(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    """Wait for a condition.

    Raises:
        BenchError: it did not come true; `otherwise` says what that means.
    """
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise BenchError(f"{otherwise} after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _ray() -> Iterator[None]:
    """This process as a driver of the Ray that its environment names."""
    import ray

    forget_ray_token()
    joined.use_token()
    handlers: dict[signal.Signals, Any] = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        ray.init(
            address=os.environ["RAY_ADDRESS"],
            namespace="kvrelay-bench",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)  # ray.init puts its own there
    try:
        yield
    finally:
        ray.shutdown()
