"""How each fault of `faults.FAULTS` is made to happen, and how it ends."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psutil

from kvrelay.bench import store_hooks
from kvrelay.bench.errors import BenchError
from kvrelay.bench.faults import Injection
from kvrelay.bench.faults_lab import LINK, Lab
from kvrelay.bench.faults_sites import Prompt, Replica, Site, View
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.link import parse_link
from kvrelay.relay import index, protocol
from kvrelay.relay.client import StoreClient
from kvrelay.relay.keys import KEY_BYTES, BlockKey
from kvrelay.relay.names import NAMESPACE, directory_name

_CRAWL = parse_link("500kbit")


@dataclass(slots=True)
class Strike:
    """One injection under way; what a fault does not need does nothing.

    Attributes:
        prompt: what is computed at the source, and then asked of B.
        kills: the fault is over as soon as it has struck; the cluster has to mend itself.
        kills_a: A is among what is killed.
    """

    kills: ClassVar[bool] = False
    kills_a: ClassVar[bool] = False
    lab: Lab
    injection: Injection
    prompt: Prompt
    rng: random.Random

    @property
    def source(self) -> Replica:
        """Who computes the prompt."""
        return self.lab.a

    @property
    def keys(self) -> list[BlockKey]:
        """The prompt's blocks, as B looks for them."""
        return self.lab.b.keys(self.prompt)

    def compute(self) -> None:
        """Have the prompt computed at the source, and heard of at B.

        Raises:
            BenchError: B's store does not hear of it, so nothing would be relayed anyway.
        """
        source = self.source
        source.engine.one(self.prompt.tokens, salt=self.prompt.salt)
        if not self.lab.await_known(source, self.prompt):
            raise BenchError("B's store has not heard of what A has computed")

    def aim(self) -> None:
        """Find what is to be struck, before B is asked: that may take longer than a transfer."""

    def strike(self) -> None:
        """Let it happen."""

    def lift(self) -> None:
        """End it, after B has answered; what was killed is there again."""

    def _site(self) -> Site:
        return self.lab.near if self.injection.variant.name == "sink" else self.lab.far


class LinkDown(Strike):
    """The wire is cut."""

    def strike(self) -> None:
        self.lab.bed.set_up(False)

    def lift(self) -> None:
        self.lab.bed.set_up(True)


class SlowPeer(Strike):
    """The wire carries next to nothing."""

    def strike(self) -> None:
        self.lab.bed.set_link(_CRAWL)

    def lift(self) -> None:
        self.lab.bed.set_link(LINK)


class NodeLost(Strike):
    """A's node fails: its Ray, on which the rest hangs, or all of it at once."""

    kills = True
    kills_a = True
    _raylet: psutil.Process
    _rest: Sequence[psutil.Process] = ()

    def aim(self) -> None:
        node = self.lab.far.node
        self._raylet = self.lab.bed.raylet(node)
        if self.injection.variant.name == "machine":
            self._rest = self.lab.bed.processes(node)

    def strike(self) -> None:
        for process in (self._raylet, *self._rest):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.lab.kill_far_engines()

    def lift(self) -> None:
        self.lab.restart_far()


class StoreKilled(Strike):
    """A store's process is killed; Ray starts it again."""

    kills = True

    _pid: int

    def aim(self) -> None:
        self._pid = self._site().pid()

    def strike(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def lift(self) -> None:
        self.lab.reattach(self._site())
        self.lab.set_way(self.injection.way)


class EngineKilled(Strike):
    """A's process is killed."""

    kills = True
    kills_a = True

    def strike(self) -> None:
        self.lab.a.engine.kill()

    def lift(self) -> None:
        self.lab.restart_a()


class DirectoryKilled(Strike):
    """The directory is killed; Ray starts it again, empty."""

    kills = True

    _directory: Any

    def aim(self) -> None:
        import ray

        self._directory = ray.get_actor(directory_name(), namespace=NAMESPACE)

    def strike(self) -> None:
        import ray

        ray.kill(self._directory, no_restart=False)


class SourceStopped(Strike):
    """The source's store, or only what moves its bytes, stands still and then goes on."""

    _processes: Sequence[psutil.Process]

    def aim(self) -> None:
        self._processes = self.lab.far.movers()
        if self.injection.variant.name == "store":
            self._processes = [psutil.Process(self.lab.far.pid()), *self._processes]

    def strike(self) -> None:
        for process in self._processes:
            process.suspend()

    def lift(self) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


class CorruptBytes(Strike):
    """A byte of a block differs from what its checksum says."""

    def strike(self) -> None:
        slab = self.lab.far.sight().slab
        header = index.find(slab, self.rng.choice(self.keys))
        if header is None:
            raise BenchError("a block to be corrupted is not there")
        data = slab.data(header.slot)
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)


class TruncatedPayload(Strike):
    """What the source lends is cut off."""

    def strike(self) -> None:
        self.lab.far.call(store_hooks.truncate, True)

    def lift(self) -> None:
        self.lab.far.call(store_hooks.truncate, False)


class WrongFingerprint(Strike):
    """The prompt is there, computed with other weights."""

    @property
    def source(self) -> Replica:
        return self.lab.other()


class EvictionRace(Strike):
    """Blocks go while they are read, and others are written into their slots."""

    def strike(self) -> None:
        view = self._site().sight()
        keys = self.keys
        view.client.drop(keys[self.rng.randrange(len(keys)) :])
        slots = _reserve(view.client, view, len(keys))
        for slot in slots:
            view.slab.data(slot)[:] = self.rng.randbytes(view.slab.geometry.slot_bytes)
        view.client.abort(view.slab_id, slots)


class OutOfCapacity(Strike):
    """The source's store has no room for what A computes, or B's only for a few blocks."""

    _taker: StoreClient | None = None

    def compute(self) -> None:
        if self.injection.variant.name == "sink":
            super().compute()
            return
        self._take_all_but(0)
        self.lab.a.engine.one(self.prompt.tokens, salt=self.prompt.salt)

    def strike(self) -> None:
        if self.injection.variant.name == "sink":
            self._take_all_but(self.rng.choice((0, 1, 10)))

    def lift(self) -> None:
        if self._taker is not None:
            self._taker.close()

    def _take_all_but(self, spare: int) -> None:
        site = self._site()
        view = site.sight()
        with system.entered(site.node):
            self._taker = StoreClient(site.handle.address, "bench")
        _reserve(self._taker, view, view.slab.geometry.num_slots - spare)


class ClockJump(Strike):
    """The clocks of a node jump: its monotonic one ahead, its wall clock back."""

    def strike(self) -> None:
        self.lab.jump(self._site())


def _reserve(client: StoreClient, view: View, count: int) -> list[int]:
    """Reserve slots for keys that nobody else has; which they are, fewer if there is no room."""
    slots = []
    for start in range(0, count, protocol.MAX_KEYS):
        keys = [
            secrets.token_bytes(KEY_BYTES) for _ in range(min(protocol.MAX_KEYS, count - start))
        ]
        slots += [slot for _, slot in client.reserve(view.slab_id, keys).granted]
    return slots


STRIKES: Mapping[str, type[Strike]] = {
    "link_down": LinkDown,
    "node_lost": NodeLost,
    "store_killed": StoreKilled,
    "engine_killed": EngineKilled,
    "directory_killed": DirectoryKilled,
    "source_stopped": SourceStopped,
    "corrupt_bytes": CorruptBytes,
    "truncated_payload": TruncatedPayload,
    "wrong_fingerprint": WrongFingerprint,
    "eviction_race": EvictionRace,
    "out_of_capacity": OutOfCapacity,
    "slow_peer": SlowPeer,
    "clock_jump": ClockJump,
}
