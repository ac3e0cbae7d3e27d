"""Which way to read from another node, by what reads have cost so far. Pure but for a clock."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A source that failed is left alone for this long, twice as long each time it fails again.
SUSPECT_S = 1.0
MAX_SUSPECT_S = 30.0
# One read in so many takes a way that is not the best so far, so that a change is noticed.
_EXPLORE_EVERY = 50
_WEIGHT = 0.3  # of the newest measurement


@dataclass(slots=True)
class _Cost:
    seconds_per_byte: float
    reads: int = 1


@dataclass(slots=True)
class _Suspect:
    until_s: float
    times: int = 1


class Routes:
    """Measured cost per (source, transport), and which sources are not to be trusted now."""

    def __init__(
        self, only: str | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`only` names the one transport that may be taken; None leaves the choice."""
        self.only = only
        self._now_s = now_s
        self._costs: dict[tuple[str, str], _Cost] = {}
        self._reads: dict[str, int] = defaultdict(int)
        self._suspects: dict[str, _Suspect] = {}

    def choose(self, node_id: str, offered: Sequence[str], mine: Sequence[str]) -> str | None:
        """A transport that both sides have; None if there is none, or the source is suspect.

        One that has not been measured counts as good until it is, in the order of `mine`.
        """
        common = [name for name in mine if name in offered and self.only in (None, name)]
        if not common or self.is_suspect(node_id):
            return None
        self._reads[node_id] += 1
        first = self._costs.get((node_id, common[0]))
        if first is None:
            return common[0]
        if self._reads[node_id] % _EXPLORE_EVERY == 0:
            return min(common, key=lambda name: self._num_reads(node_id, name))
        known = [name for name in common if (node_id, name) in self._costs]
        return min(known, key=lambda name: self._costs[node_id, name].seconds_per_byte)

    def seconds_per_byte(self, node_id: str, transport: str) -> float | None:
        """What reading has cost lately; None if it was never measured."""
        cost = self._costs.get((node_id, transport))
        return None if cost is None else cost.seconds_per_byte

    def measured(self, node_id: str, transport: str, num_bytes: int, seconds: float) -> None:
        """A read has ended well."""
        self._suspects.pop(node_id, None)
        if num_bytes < 1 or seconds <= 0:
            return
        cost = self._costs.get((node_id, transport))
        if cost is None:
            self._costs[node_id, transport] = _Cost(seconds / num_bytes)
        else:
            cost.seconds_per_byte += _WEIGHT * (seconds / num_bytes - cost.seconds_per_byte)
            cost.reads += 1

    def failed(self, node_id: str) -> None:
        """A source did not answer, or a read from it broke off."""
        before = self._suspects.get(node_id)
        times = 1 if before is None else before.times + 1
        wait_s = min(SUSPECT_S * 2 ** (times - 1), MAX_SUSPECT_S)
        self._suspects[node_id] = _Suspect(self._now_s() + wait_s, times)

    def is_suspect(self, node_id: str) -> bool:
        """Whether a source is left alone now."""
        suspect = self._suspects.get(node_id)
        return suspect is not None and self._now_s() < suspect.until_s

    def _num_reads(self, node_id: str, transport: str) -> int:
        cost = self._costs.get((node_id, transport))
        return 0 if cost is None else cost.reads
