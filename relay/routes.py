"""Which way to read from another node, by what reads have cost so far. Pure but for a clock."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A source that failed is left alone for this long, twice as long each time it fails again.
SUSPECT_S = 1.0
MAX_SUSPECT_S = 30.0
# So is, for longer, the transport by which it failed, if there is another one.
SUSPECT_TRANSPORT_S = 5.0
MAX_SUSPECT_TRANSPORT_S = 600.0
# One read in so many takes a way that is not the best so far, so that a change is noticed.
_EXPLORE_EVERY = 50
_WEIGHT = 0.3  # of the newest measurement


class Way(NamedTuple):
    """How a block comes over; names."""

    transport: str
    codec: str


@dataclass(slots=True)
class _Cost:
    seconds_per_byte: float
    reads: int = 1


@dataclass(slots=True)
class _Suspect:
    until_s: float
    wait_s: float


class Routes:
    """Measured cost per source and way, and which sources are not to be trusted now."""

    def __init__(
        self,
        transport: str | None = None,
        codec: str | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`transport` and `codec` name the only ones to take; None leaves the choice."""
        self.transport, self.codec = transport, codec
        self._now_s = now_s
        self._costs: dict[tuple[str, Way], _Cost] = {}
        self._reads: dict[str, int] = defaultdict(int)
        self._suspects: dict[tuple[str, ...], _Suspect] = {}  # sources; and by a transport

    def choose(
        self, node_id: str, offered: Sequence[str], mine: Sequence[str], codecs: Sequence[str]
    ) -> Way | None:
        """The way that has cost least; None if there is none, or the source is suspect.

        Each is tried once first, then one read in `_EXPLORE_EVERY` measures the one that has
        been measured least. A transport that failed lately is taken only if all have.

        Args:
            node_id: the source.
            offered: its transports.
            mine: this node's transports.
            codecs: to choose from.
        """
        ways = [
            Way(transport, codec)
            for transport in mine
            if transport in offered and self.transport in (None, transport)
            for codec in codecs
            if self.codec in (None, codec)
        ]
        if not ways or self.is_suspect(node_id):
            return None
        # One that never works here would else be tried for ever, as never measured.
        ways = [way for way in ways if not self._rests((node_id, way.transport))] or ways
        self._reads[node_id] += 1
        costs = {way: self._costs.get((node_id, way)) for way in ways}
        least = min(ways, key=lambda way: cost.reads if (cost := costs[way]) else 0)
        if costs[least] is None or self._reads[node_id] % _EXPLORE_EVERY == 0:
            return least
        known = {way: cost.seconds_per_byte for way, cost in costs.items() if cost is not None}
        return min(known, key=lambda way: known[way])

    def measured(self, node_id: str, way: Way, num_bytes: int, seconds: float) -> None:
        """A read of so many bytes of KV has ended well."""
        for what in ((node_id,), (node_id, way.transport)):
            self._suspects.pop(what, None)
        if num_bytes < 1 or seconds <= 0:
            return
        cost = self._costs.get((node_id, way))
        if cost is None:
            self._costs[node_id, way] = _Cost(seconds / num_bytes)
        else:
            cost.seconds_per_byte += _WEIGHT * (seconds / num_bytes - cost.seconds_per_byte)
            cost.reads += 1

    def costs(self) -> dict[tuple[str, Way], float]:
        """Seconds per byte of KV by source and way, as measured lately."""
        return {place: cost.seconds_per_byte for place, cost in self._costs.items()}

    def failed(self, node_id: str, transport: str | None = None) -> None:
        """A source did not answer, or a read from it broke off.

        Args:
            node_id: the source.
            transport: by which, if the source did answer.
        """
        self._suspect((node_id,), SUSPECT_S, MAX_SUSPECT_S)
        if transport is not None:
            what = (node_id, transport)
            self._suspect(what, SUSPECT_TRANSPORT_S, MAX_SUSPECT_TRANSPORT_S)

    def is_suspect(self, node_id: str) -> bool:
        """Whether a source is left alone now."""
        return self._rests((node_id,))

    def _suspect(self, what: tuple[str, ...], first_s: float, longest_s: float) -> None:
        if self._rests(what):
            return  # what fails now was under way when the first one failed
        before = self._suspects.get(what)
        wait_s = first_s if before is None else min(2 * before.wait_s, longest_s)
        self._suspects[what] = _Suspect(self._now_s() + wait_s, wait_s)

    def _rests(self, what: tuple[str, ...]) -> bool:
        suspect = self._suspects.get(what)
        return suspect is not None and self._now_s() < suspect.until_s
