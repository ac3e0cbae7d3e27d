"""What a store holds, as metrics; Ray's classes are stood in for, with their refusals."""

from typing import Any

import pytest

from kvrelay.relay import metric_names as names
from kvrelay.relay.store import StoreCore
from kvrelay.relay.store_metrics import StoreMetrics

Values = dict[tuple[str, str], float]


class Made:
    """Makes metrics, and keeps what they are told, by name and place."""

    def __init__(self) -> None:
        self.values: Values = {}

    def metric(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> Any:
        assert description
        values = self.values

        class Metric:
            def set(self, value: float, tags: dict[str, str] | None = None) -> None:
                assert tuple(tags or ()) == tag_keys
                values[name, (tags or {}).get("place", "")] = value

            def inc(self, value: float, tags: dict[str, str]) -> None:
                assert value > 0 and tuple(tags) == tag_keys
                key = (name, tags["place"])
                values[key] = values.get(key, 0) + value

        return Metric()


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def metrics(made: Made) -> StoreMetrics:
    return StoreMetrics(made.metric, made.metric)


def test_what_a_new_store_holds(core: StoreCore, made: Made, metrics: StoreMetrics) -> None:
    metrics.tell(core.stats())
    assert made.values == {
        (names.STORE_CAPACITY_BYTES, "arena"): 8 * 4096,
        (names.STORE_CAPACITY_BYTES, "encoded"): 0,
        (names.STORE_USED_BYTES, "arena"): 0,
        (names.STORE_USED_BYTES, "encoded"): 0,
        (names.STORE_BLOCKS, "arena"): 0,
        (names.STORE_BLOCKS, "encoded"): 0,
        (names.STORE_LEASES, ""): 0,
    }


def test_evictions_are_counted_once_and_where_they_were(
    core: StoreCore, made: Made, metrics: StoreMetrics
) -> None:
    stats = {**core.stats(), "leases": 3, "used_bytes": 4096, "blocks": 1}
    for evicted, encoded in ((2, 0), (7, 4), (7, 4)):
        metrics.tell({**stats, "evicted": evicted, "evicted_encoded": encoded})
    assert made.values[names.STORE_EVICTIONS, "arena"] == 3
    assert made.values[names.STORE_EVICTIONS, "encoded"] == 4
    assert made.values[names.STORE_LEASES, ""] == 3
    assert made.values[names.STORE_USED_BYTES, "arena"] == 4096
