"""The baseline: spans travel as objects of Ray's object store, over Ray's own TCP.

The source copies its spans into a few objects, in growing batches; the reader waits without
blocking for each to come and copies it out. Over its spilling threshold Ray's store stalls
(1.4 s, measured), so what is offered at one time is bounded well below that.
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from kvrelay.relay.transports.base import (
    Offer,
    Span,
    Transfer,
    TransferError,
    Transport,
    offer_numbers,
    require_same_sizes,
)
from kvrelay.relay.transports.batches import growing_batches
from kvrelay.relay.transports.ucx import UNKNOWN

_BATCH_BYTES = 32 << 20
# Of this node's object store. Ray spills at 0.8 (`object_spilling_threshold`); what has been
# withdrawn is freed a little later, and applications use the store too.
_OFFERED_FRACTION = 0.4


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a reader needs to read an offer.

    Attributes:
        node_id: the source's Ray node.
        batches: an object each, and how many spans it holds.
    """

    node_id: str
    batches: tuple[tuple[Any, int], ...]


class _Read(Transfer):
    """One read: objects that have not come, the spans that were copied out."""

    def __init__(self, batches: Sequence[tuple[Any, int]], targets: Sequence[Span]) -> None:
        self._batches = deque(batches)
        self._targets = targets
        self._landed = 0
        self._told = 0
        self._failure: str | None = None
        self._pull()

    def poll(self) -> int:
        if self._batches and self._pull():
            self._copy_next()
        if self._failure is not None and self._told == self._landed:
            raise TransferError(self._failure)
        self._told = self._landed
        return self._landed

    def cancel(self) -> None:
        if self._batches:
            self._fail("cancelled")

    @property
    def quiet(self) -> bool:
        """Only `poll` writes, so a read that has ended is quiet."""
        return not self._batches

    def _pull(self) -> bool:
        """Have Ray bring all objects; whether the next is here, or lost."""
        if not self._batches:
            return False
        refs = [ref for ref, _ in self._batches]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=True)
        return refs[0] in ready

    def _copy_next(self) -> None:
        ref, count = self._batches[0]
        try:
            arrays = ray.get(ref, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return
        except ray.exceptions.RayError as error:
            self._fail(f"the source's objects are lost: {type(error).__name__}")
            return
        targets = self._targets[self._landed : self._landed + count]
        if [len(array) for array in arrays] != [target.num_bytes for target in targets]:
            self._fail("the source's objects do not hold what it offers")
            return
        for array, target in zip(arrays, targets, strict=True):
            _view(target)[:] = array
        self._landed += count
        self._batches.popleft()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._batches.clear()


class PlasmaTransport(Transport):
    """Source and reader by `ray.put` and `ray.get`; needs a Ray worker or driver process."""

    name = "plasma"

    def __init__(self) -> None:
        """Raises TransferError outside of Ray."""
        if not ray.is_initialized():
            raise TransferError("plasma needs Ray")
        self._node_id = ray.get_runtime_context().get_node_id()
        self._limit_bytes = int(_OFFERED_FRACTION * _object_store_bytes(self._node_id))
        self._offered_bytes: dict[int, int] = {}
        self._numbers = offer_numbers()

    def warm_up(self) -> None:
        ray.get(ray.put(np.zeros(1 << 20, np.uint8)))

    def register(self, region: Span) -> None:
        """Nothing to do: bytes are copied."""

    def offer(self, spans: Sequence[Span]) -> Offer:
        sizes = [span.num_bytes for span in spans]
        offered = sum(self._offered_bytes.values())
        if offered + sum(sizes) > self._limit_bytes:
            raise TransferError(
                f"{offered} bytes are offered by plasma already, of {self._limit_bytes} that may be"
            )
        number = next(self._numbers)
        batches, at = [], 0
        for count in growing_batches(sizes, _BATCH_BYTES):
            views = [_view(span) for span in spans[at : at + count]]
            batches.append((ray.put(views), count))
            at += count
        self._offered_bytes[number] = sum(sizes)
        return Offer(self.name, number, tuple(spans), Ticket(self._node_id, tuple(batches)))

    def withdraw(self, offer: Offer) -> None:
        """Ray frees the objects once nobody holds the offer any more."""
        self._offered_bytes.pop(offer.number, None)

    def read(self, offer: Offer, targets: Sequence[Span]) -> Transfer:
        require_same_sizes(offer, targets)
        return _Read(offer.ticket.batches, targets)

    def progress(self) -> None:
        """Nothing to do: Ray moves the bytes."""

    def path(self, offer: Offer) -> str:
        """Within a node Ray maps the object; between nodes its object manager sends it by gRPC."""
        if not isinstance(offer.ticket, Ticket):
            return UNKNOWN
        return "plasma/shm" if offer.ticket.node_id == self._node_id else "plasma/tcp"

    def close(self) -> None:
        self._offered_bytes.clear()


def _view(span: Span) -> npt.NDArray[np.uint8]:
    memory = (ctypes.c_uint8 * span.num_bytes).from_address(span.address)
    return np.ctypeslib.as_array(memory)


def _object_store_bytes(node_id: str) -> float:
    for node in ray.nodes():
        if node["NodeID"] == node_id:
            return float(node["Resources"].get("object_store_memory", 0.0))
    return 0.0
