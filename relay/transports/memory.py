"""A transport within one process, for tests: real memory, real disorder, faults at will.

Bytes move in the source's `progress`, as a network card or a remote process would move them:
the reader only sees what has landed, and its cancelling does not stop what is on its way.
"""

import ctypes
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvrelay.relay.transports.base import (
    Offer,
    Span,
    Transfer,
    TransferError,
    Transport,
    offer_numbers,
    require_same_sizes,
)

_numbers = itertools.count()
_sources: "weakref.WeakValueDictionary[int, MemoryTransport]" = weakref.WeakValueDictionary()


@dataclass(slots=True)
class Faults:
    """What goes wrong with reads of a source; may be changed at any time.

    Attributes:
        steps_per_span: calls of the source's `progress` that one span takes.
        stall_after: spans of a read after which the source stands still, as one that was
            stopped; None lets it go on where it stood.
        fail_after: spans of a read after which it breaks off, within the next span.
        corrupt: places, in their offer, of spans that arrive with a wrong byte.
    """

    steps_per_span: int = 1
    stall_after: int | None = None
    fail_after: int | None = None
    corrupt: set[int] = field(default_factory=set)


class _Read(Transfer):
    """One read; its source moves it."""

    def __init__(self, spans: Sequence[Span], targets: Sequence[Span]) -> None:
        self._pairs = list(zip(spans, targets, strict=True))
        self._landed = 0
        self._told = 0
        self._steps = 0
        self._cancelled = False
        self._failure: str | None = None
        self.ended = self._quiet = not self._pairs

    def step(self, faults: Faults) -> None:
        """The source's part."""
        if faults.stall_after is not None and self._landed >= faults.stall_after:
            return
        self._steps += 1
        if self._steps < faults.steps_per_span:
            return
        self._steps = 0
        span, target = self._pairs[self._landed]
        if faults.fail_after is not None and self._landed >= faults.fail_after:
            ctypes.memmove(target.address, span.address, target.num_bytes // 2)
            self.end("the source broke off")
            return
        ctypes.memmove(target.address, span.address, target.num_bytes)
        if self._landed in faults.corrupt:
            ctypes.c_uint8.from_address(target.address).value ^= 0xFF
        if self._cancelled:  # ends with the span that was on its way, which counts no more
            self.ended = True
            return
        self._landed += 1
        self.ended = self._landed == len(self._pairs)

    def end(self, failure: str) -> None:
        """Break off; nothing more is written."""
        self._failure = self._failure or failure
        self.ended = True

    def poll(self) -> int:
        self._quiet = self.ended
        if self._failure is not None and self._told == self._landed:
            raise TransferError(self._failure)
        self._told = self._landed
        return self._landed

    def cancel(self) -> None:
        if not self.ended:
            self._cancelled = True
            self._failure = "cancelled"

    @property
    def quiet(self) -> bool:
        return self._quiet


class MemoryTransport(Transport):
    """One party; all parties of a process can read each other."""

    name = "memory"

    def __init__(self) -> None:
        self.faults = Faults()
        self._number = next(_numbers)
        self._regions: list[Span] = []
        self._offers: set[int] = set()
        self._offer_numbers = offer_numbers()
        self._reads: list[_Read] = []
        _sources[self._number] = self

    def register(self, region: Span) -> None:
        self._regions.append(region)

    def offer(self, spans: Sequence[Span]) -> Offer:
        self._require_registered(spans)
        number = next(self._offer_numbers)
        self._offers.add(number)
        return Offer(self.name, number, tuple(spans), self._number)

    def withdraw(self, offer: Offer) -> None:
        self._offers.discard(offer.number)

    def read(self, offer: Offer, targets: Sequence[Span]) -> Transfer:
        require_same_sizes(offer, targets)
        self._require_registered(targets)
        source = _sources.get(offer.ticket)
        if source is None or offer.number not in source._offers:
            raise TransferError("the source is gone, or its offer has ended")
        read = _Read(offer.spans, targets)
        if not read.ended:
            source._reads.append(read)
        return read

    def progress(self) -> None:
        for read in self._reads:
            read.step(self.faults)
        self._reads = [read for read in self._reads if not read.ended]

    def path(self, offer: Offer) -> str:
        return self.name

    def close(self) -> None:
        """Let go of everything; to readers this is the source's death."""
        _sources.pop(self._number, None)
        for read in self._reads:
            read.end("the source died")
        self._reads.clear()
        self._offers.clear()

    def _require_registered(self, spans: Sequence[Span]) -> None:
        for span in spans:
            if not any(
                region.address <= span.address
                and span.address + span.num_bytes <= region.address + region.num_bytes
                for region in self._regions
            ):
                raise TransferError(f"{span} is not in registered memory")
