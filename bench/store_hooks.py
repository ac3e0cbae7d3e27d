"""What `bench faults` does inside a store's process, by Ray's `__ray_call__` on its actor.

The product has no hooks for faults. These functions reach into a running store where a fault
of its node would show, and nowhere else.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kvrelay.bench import shifted_clock
from kvrelay.relay.lending import Ask, Lent
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports.base import Offer, Span

if TYPE_CHECKING:
    from kvrelay.relay.actor import KVStore


def transports(store: KVStore) -> tuple[str, ...]:
    """By which others may read; empty until another node has been seen."""
    return store._ready


def truncate(store: KVStore, truncates: bool) -> None:
    """Let what the store lends from now on be cut off in its last block, or not any more."""
    transfers = store._transfers
    if truncates:
        transfers.__dict__["lend"] = partial(_lend_cut, transfers)
    else:
        transfers.__dict__.pop("lend", None)


def jump(store: KVStore, monotonic_s: float, wall_s: float) -> None:
    """Let the clocks of the store's process jump."""
    shifted_clock.jump(monotonic_s, wall_s)
    store._server._core.now_ns = time.monotonic_ns
    store._transfers._lending._now_s = time.monotonic
    store._transfers.routes._now_s = time.monotonic


def _lend_cut(transfers: Transfers, ask: Ask) -> Lent:
    lent = Transfers.lend(transfers, ask)
    if lent.offer is None:
        return lent
    cut = _cut_objects if lent.offer.transport == "plasma" else _cut_spans
    return replace(lent, offer=cut(lent.offer))


def _cut_spans(offer: Offer) -> Offer:
    """Less memory is offered; the ticket is the mover's own offer."""
    inner: Offer = offer.ticket
    return replace(
        offer,
        spans=_halved(offer.spans),
        ticket=replace(inner, spans=_halved(inner.spans)),
    )


def _halved(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    *whole, last = spans
    return (*whole, last._replace(num_bytes=last.num_bytes // 2))


def _cut_objects(offer: Offer) -> Offer:
    """The offer promises what its last object does not hold."""
    import ray

    *whole, (ref, count) = offer.ticket.batches
    arrays = ray.get(ref)
    arrays[-1] = arrays[-1][: len(arrays[-1]) // 2]
    return replace(offer, ticket=replace(offer.ticket, batches=(*whole, (ray.put(arrays), count))))
