"""The two ends of a `faults_lab.Lab`: nodes with their stores, replicas with their engines."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from kvrelay.bench.driven import BLOCK_TOKENS, DrivenEngine
from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.network import Node
from kvrelay.relay import index
from kvrelay.relay.arena import Slab
from kvrelay.relay.blocks import BlockChain
from kvrelay.relay.client import StoreClient
from kvrelay.relay.keys import BlockKey, child_key, pack_tokens, root_key

_CALL_TIMEOUT_S = 30.0
_AGAIN_S = 0.1


class View:
    """A node's arena and catalog as its engines see them."""

    def __init__(self, node: Node, address: str, slot_bytes: int) -> None:
        """Connect.

        Raises:
            RelayError: the store does not answer.
        """
        with system.entered(node):
            self.client = StoreClient(address, "bench")
        try:
            opened = self.client.open_slab(slot_bytes, BLOCK_TOKENS)
        except BaseException:
            self.client.close()
            raise
        self.slab_id, self.slab, self.catalog = opened

    def landed(self, keys: Sequence[BlockKey]) -> int:
        """How many of these blocks the node holds."""
        return _count(self.slab, keys)

    def known(self, keys: Sequence[BlockKey]) -> int:
        """How many of these blocks the node knows to be on others."""
        return _count(self.catalog, keys)

    def close(self) -> None:
        """Disconnect."""
        self.client.close()
        self.slab.close()
        self.catalog.close()


@dataclass(slots=True)
class Site:
    """One node: its store, and how often its clocks have jumped."""

    node: Node
    handle: Any
    view: View | None = None
    jumps: int = 0

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the store's actor.

        Raises:
            BenchError: it does not answer, or its integrity is broken.
        """
        import ray

        end_s = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            answer = getattr(self.handle.actor, method).remote(*args)
            try:
                return ray.get(answer, timeout=_CALL_TIMEOUT_S)
            except ray.exceptions.RayError as error:
                # Ray goes on calling a process that was killed until it learns of the next one.
                passing = isinstance(error, ray.exceptions.ActorUnavailableError)
                if not passing or time.monotonic() > end_s:
                    reason = str(error).strip().splitlines()[-1]
                    raise BenchError(f"the store of {self.node.label}: {reason}") from error
                time.sleep(_AGAIN_S)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run one of `store_hooks` in the store's process."""
        return self.ask("__ray_call__", function, *args)

    def stats(self) -> dict[str, int]:
        """The store's counts."""
        counts: dict[str, int] = self.ask("stats")
        return counts

    def pid(self) -> int:
        """The store's process."""
        return int(self.ask("ready"))

    def movers(self) -> list[psutil.Process]:
        """The processes that move the store's bytes."""
        return psutil.Process(self.pid()).children(recursive=True)

    def sight(self) -> View:
        """The view; there is one whenever no fault is under way."""
        if self.view is None:
            raise BenchError(f"the store of {self.node.label} is gone")
        return self.view


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, and a salt of their own: no two prompts have a block in common."""

    tokens: list[int]
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine, and what the keys of its blocks begin with."""

    engine: DrivenEngine
    site: Site
    fingerprint: bytes

    def keys(self, prompt: Prompt) -> list[BlockKey]:
        """Keys of all blocks of a prompt, the started one included."""
        tokens = prompt.tokens
        chain = BlockChain(root_key(self.fingerprint, prompt.salt), BLOCK_TOKENS)
        full, rest = divmod(len(tokens), BLOCK_TOKENS)
        chain.extend(tokens, full)
        keys = [chain.key(number) for number in range(full)]
        if rest:
            keys.append(child_key(chain.parent(full), pack_tokens(tokens[-rest:])))
        return keys


def _count(slab: Slab, keys: Sequence[BlockKey]) -> int:
    return sum(index.find(slab, key) is not None for key in keys)
