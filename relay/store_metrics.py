"""What a store holds, as metrics at the Prometheus port of its Ray node; see metric_names.py."""

from collections import Counter as Counts
from collections.abc import Callable, Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

from kvrelay.relay.metric_names import (
    STORE_BLOCKS,
    STORE_CAPACITY_BYTES,
    STORE_EVICTIONS,
    STORE_LEASES,
    STORE_USED_BYTES,
)

ARENA, ENCODED = {"place": "arena"}, {"place": "encoded"}


class StoreMetrics:
    """Tells Ray's exporter; to be told of the store's counts again and again."""

    def __init__(
        self, gauge: Callable[..., Any] = Gauge, counter: Callable[..., Any] = Counter
    ) -> None:
        """Make the metrics, of these classes: Ray's, or others with their methods."""
        place = ("place",)
        self._capacity = gauge(STORE_CAPACITY_BYTES, "Room for blocks, in bytes.", place)
        self._used = gauge(STORE_USED_BYTES, "Bytes of that room that are taken.", place)
        self._blocks = gauge(STORE_BLOCKS, "Blocks that can be found.", place)
        self._leases = gauge(STORE_LEASES, "Slots that somebody reads, so that they must stay.")
        self._evictions = counter(STORE_EVICTIONS, "Blocks that went for good.", place)
        self._evicted: Counts[str] = Counts()

    def tell(self, stats: Mapping[str, int]) -> None:
        """Take in `StoreCore.stats`."""
        for place, prefix in ((ARENA, ""), (ENCODED, "encoded_")):
            self._capacity.set(stats[f"{prefix}capacity_bytes"], place)
            self._used.set(stats[f"{prefix}used_bytes"], place)
            self._blocks.set(stats[f"{prefix}blocks"], place)
        self._leases.set(stats["leases"])
        encoded = stats.get("evicted_encoded", 0)
        self._count_evictions(ARENA, stats.get("evicted", 0) - encoded)
        self._count_evictions(ENCODED, encoded)

    def _count_evictions(self, place: dict[str, str], so_far: int) -> None:
        new = so_far - self._evicted[place["place"]]
        if new > 0:  # Ray's counter refuses 0
            self._evictions.inc(new, place)
            self._evicted[place["place"]] = so_far
