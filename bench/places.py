"""The two nodes that a benchmark measures between: their stores, and how it gets there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.errors import BenchError
from kvrelay.bench.settle import ActorWatch, StoreWatch
from kvrelay.bench.testbed.bed import Bed, two_nodes
from kvrelay.bench.testbed.link import UNSHAPED, Link
from kvrelay.bench.wires import BedWire, ClusterWire, Wire, node_ids
from kvrelay.cluster.cli.console import err

_KNOWN_TIMEOUT_S = 30.0
_POLL_S = 0.02
_ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """One end of the cluster as a benchmark needs it: its store.

    Attributes:
        store: counts what is committed there.
        blocks: how many blocks it holds now, and how many it knows of on other nodes.
    """

    store: StoreWatch
    blocks: Callable[[], tuple[int, int]]

    def wait_known(self, source: Place) -> None:
        """Until the store here has heard of all that another one holds.

        Raises:
            BenchError: it has not in time.
        """
        deadline_s = time.monotonic() + _KNOWN_TIMEOUT_S
        while (known := self.blocks()[1]) < (held := source.blocks()[0]):
            if time.monotonic() > deadline_s:
                raise BenchError(
                    f"B's store knows {known} of the {held} blocks on the other node after "
                    f"{_KNOWN_TIMEOUT_S:.0f} s: nothing that follows would be a whole relay"
                )
            time.sleep(_POLL_S)


@contextmanager
def joined_bed(links: Sequence[Link | None]) -> Iterator[Bed]:
    """Two Ray nodes, and this thread at the first; the wire can be all that it will have to."""
    with two_nodes() as bed:
        for link in (*links, UNSHAPED):
            if link is not None:
                bed.set_link(link)
        with err.status("starting two Ray nodes"):
            bed.start_ray()
        with bed.joined():
            yield bed


def labels_of(bed: Bed) -> tuple[str, str]:
    """The labels of its nodes, B's first."""
    return bed.network.first.label, bed.network.second.label


def places(
    labels: tuple[str, str] | None, bed: Bed | None
) -> tuple[Place, Place | None, Wire | None]:
    """The stores of B's node and of the other one, and what connects these.

    Raises:
        BenchError: a node has no store, or there are several where there is to be one.
    """
    from kvrelay.relay.actor import stores

    handles = {handle.node_id: handle.actor for handle in stores()}
    if labels is None:
        if len(handles) != 1:
            raise BenchError(f"expected one KV store, found {len(handles)}")
        return _place(*handles.values()), None, None
    here, there = node_ids(labels)
    if not {here, there} <= set(handles):
        raise BenchError("a node has no KV store: its agents run without relay")
    wire = BedWire(bed) if bed is not None else ClusterWire(here, there)
    return _place(handles[here]), _place(handles[there]), wire


def set_way(transport: str, codec: str) -> None:
    """Have every store read in this way from now on."""
    import ray

    from kvrelay.relay.actor import stores

    ray.get([handle.actor.set_route.remote(transport, codec) for handle in stores()])


def _place(actor: Any) -> Place:
    import ray

    def blocks() -> tuple[int, int]:
        stats = ray.get(actor.stats.remote(), timeout=_ASK_TIMEOUT_S)
        return stats["blocks"], stats["remote_blocks"]

    return Place(ActorWatch(actor), blocks)
