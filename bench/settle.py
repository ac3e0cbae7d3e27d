"""Waiting until what an engine computed can be relayed."""

from __future__ import annotations

import time
from typing import Any

from kvrelay.bench.errors import BenchError
from kvrelay.relay.client import StoreClient

POLL_S = 0.02
TIMEOUT_S = 30.0


class StoreWatch:
    """Follows the counts of the node's store."""

    def __init__(self, address: str) -> None:
        """Connect to a store.

        Raises:
            StoreUnavailable: it does not answer.
        """
        self._client = StoreClient(address, "bench")

    @classmethod
    def of_this_node(cls) -> StoreWatch:
        """The one store of the Ray cluster that this process has joined.

        Raises:
            BenchError: there is not exactly one.
        """
        from kvrelay.relay.actor import stores

        handles = stores()
        if len(handles) != 1:
            raise BenchError(f"expected one KV store, found {len(handles)}; run on a single node")
        return cls(handles[0].address)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def committed(self) -> int:
        """Blocks committed so far."""
        return self._client.stats().get("committed", 0)

    def wait(self, since: int, num_blocks: int) -> float:
        """Wait until that many blocks have been committed since a count; seconds waited.

        Raises:
            BenchError: they were not in time.
        """
        start_s = time.monotonic()
        while (num_new := self.committed() - since) < num_blocks:
            if time.monotonic() - start_s > TIMEOUT_S:
                raise BenchError(
                    f"the store has {num_new} of {num_blocks} blocks after {TIMEOUT_S:.0f} s: "
                    "blocks were not saved, so nothing that follows would be a whole relay"
                )
            time.sleep(POLL_S)
        return time.monotonic() - start_s


class ActorWatch(StoreWatch):
    """The same by way of the store's Ray actor: for a store on any node of the cluster."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def close(self) -> None:
        """There is no connection of our own."""

    def committed(self) -> int:
        import ray

        counts = ray.get(self._actor.stats.remote(), timeout=TIMEOUT_S)
        return int(counts.get("committed", 0))
