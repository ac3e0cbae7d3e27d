"""Metrics through a real Ray: what a scrape of the node's metrics port brings."""

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from kvrelay.policies import Arm, Decision, Reason
from kvrelay.policies.decision import recompute
from kvrelay.relay import metric_names as metrics
from kvrelay.relay.connector.metrics import RelayStats
from kvrelay.relay.record import RelayRecord
from kvrelay.relay.store import StoreCore

WAIT_S = 60.0
RELAY = Decision(Arm.RELAY, Reason.RELAYED, 128, relay_s=0.25)
HERE: dict[str, Any] = {"num_bytes": 500, "load_path": "arena", "copy_s": 0.002}
THERE: dict[str, Any] = {
    "load_path": "nodes",
    "transport": "nixl",
    "path": "tcp/eth0",
    "codec": "lz4",
    "num_bytes": 1000,
    "fetched_bytes": 1000,
    "wire_bytes": 600,
    "transfer_s": 0.3,
}
STORE = {
    **StoreCore(1 << 20, time.monotonic_ns).stats(),
    "used_bytes": 4096,
    "leases": 3,
    "evicted": 7,
    "evicted_encoded": 5,
}
STRATUM = "nodes/512-2k/>=90%"
SAVINGS: dict[str, Any] = {
    "all": [0.2, 0.1, 0.3, 40, None],
    STRATUM: [None, None, None, 0, True],
}
NIXL = {"transport": "nixl", "path": "tcp", "codec": "lz4"}


def record(decision: Decision, reason: Reason, relayed: int, **changes: Any) -> dict[str, Any]:
    return RelayRecord(
        agent="reader",
        policy="cost",
        mode="auto",
        decision=decision,
        reason=reason,
        prompt_tokens=200,
        local_tokens=0,
        recomputed_tokens=200 - relayed,
        relayed_tokens=relayed,
        **changes,
    ).to_dict()


def statistics() -> dict[str, Any]:
    """What an engine tells after four requests, of which two are relayed."""
    stats = RelayStats()
    high = {"similarity_band": "high", "foreseen": True, "ahead_tokens": 128}
    stats.add(record(RELAY, Reason.RELAYED, 128, first_token_s=0.5, **high, **THERE))
    stats.add(record(RELAY, Reason.RELAYED, 128, **high, **HERE))
    stats.add(record(RELAY, Reason.LOAD_DEADLINE, 0))
    stats.add(record(recompute(Reason.NO_SOURCE), Reason.NO_SOURCE, 0))
    stats.add_dropped(3)
    stats.add_savings(SAVINGS)
    return stats.data


@pytest.fixture
def metrics_url(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)  # never start Ray in the checkout
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 500},
    )
    (node,) = ray.nodes()
    yield f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    ray.shutdown()


def scraped(url: str) -> dict[str, list[Any]]:
    """Our samples by name; empty if the port does not answer yet."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=5
        ) as page:
            text = page.read().decode()
    except OSError:
        return {}
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("ray_kvrelay_"):
                found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list[Any]], name: str, **labels: str) -> float | None:
    """The one sample with these labels."""
    values = [s.value for s in found.get(f"ray_{name}", ()) if labels.items() <= s.labels.items()]
    assert len(values) <= 1
    return values[0] if values else None


def wait_for(url: str, wanted: float, name: str, **labels: str) -> dict[str, list[Any]]:
    """What a scrape finds once a metric has come to a value."""
    deadline_s = time.monotonic() + WAIT_S
    while value(found := scraped(url), name, **labels) != wanted:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
    return found


def test_a_scrape(metrics_url: str) -> None:
    class Replica:
        """What vLLM does with a connector's statistics in a Serve replica."""

        def __init__(self) -> None:
            from types import SimpleNamespace

            from prometheus_client import Counter, Gauge, Histogram
            from vllm.v1.metrics.ray_wrappers import RayKVConnectorProm

            from kvrelay.relay.connector import RelayConnector

            prom = RayKVConnectorProm
            types = {
                Gauge: prom._gauge_cls,
                Counter: prom._counter_cls,
                Histogram: prom._histogram_cls,
            }
            self.metrics = RelayConnector.build_prom_metrics(
                SimpleNamespace(kv_transfer_config=None),
                types,
                ["model_name", "engine"],
                {0: ["reader", 0]},
            )

        def observe(self, data: dict[str, Any]) -> None:
            self.metrics.observe(data, 0)

    replica = ray.remote(Replica).options(num_cpus=0).remote()
    for _ in range(2):
        ray.get(replica.observe.remote(statistics()), timeout=WAIT_S)
    found = wait_for(metrics_url, 2000, metrics.TRANSFER_BYTES, **NIXL)
    agent = {"model_name": "reader", "engine": "0"}
    assert value(found, metrics.REQUESTS, reason="relayed", **agent) == 4
    assert value(found, metrics.REQUESTS, reason="no_source", **agent) == 2
    assert value(found, metrics.DECISIONS, arm="relay", reason="relayed", **agent) == 6
    assert value(found, metrics.DECISIONS, arm="recompute", reason="no_source", **agent) == 2
    assert value(found, metrics.FALLBACKS, reason="load_deadline", **agent) == 2
    for name, high, none in (
        (metrics.BAND_REQUESTS, 4, 4),
        (metrics.BAND_HITS, 4, None),
        (metrics.BAND_TOKENS, 512, None),
    ):
        assert value(found, name, similarity_band="high", **agent) == high
        assert value(found, name, similarity_band="none", **agent) == none
    assert value(found, metrics.PREDICTED_SECONDS, arm="relay", **agent) == 0.5
    assert value(found, metrics.REALISED_SECONDS, arm="relay", **agent) == 1.0
    assert value(found, f"{metrics.REALISED_LATENCY}_count", arm="relay", **agent) == 2
    assert value(found, metrics.PREDICTIONS, outcome="right", **agent) == 4
    assert value(found, metrics.AHEAD_TOKENS, **agent) == 512
    assert value(found, metrics.LOG_DROPPED, **agent) == 6
    assert value(found, metrics.SAVING, stratum="all", **agent) == 0.2
    assert value(found, metrics.SAVING_LOWER, stratum="all", **agent) == 0.1
    assert value(found, metrics.SAVING_UPPER, stratum="all", **agent) == 0.3
    assert value(found, metrics.SAVING_REQUESTS, stratum="all", **agent) == 40
    assert value(found, metrics.STRATUM_OFF, stratum=STRATUM, **agent) == 1
    assert value(found, metrics.SAVING, stratum=STRATUM, **agent) is None
    assert value(found, metrics.WIRE_BYTES, **NIXL, **agent) == 1200
    assert (
        value(found, metrics.TRANSFER_BYTES, transport="arena", path="arena", codec="raw") == 1000
    )
    assert value(found, metrics.TRANSFER_SECONDS, **NIXL) == pytest.approx(0.6)
    assert value(found, f"{metrics.TRANSFER_LATENCY}_count", **NIXL) == 2
    assert value(found, f"{metrics.TRANSFER_LATENCY}_bucket", **NIXL, le="0.25") == 0
    assert value(found, f"{metrics.TRANSFER_LATENCY}_bucket", **NIXL, le="0.5") == 2
    ray.kill(replica)


def test_a_scrape_of_a_store(metrics_url: str) -> None:
    class Store:
        """The part of the actor that tells of its store."""

        def __init__(self) -> None:
            from kvrelay.relay.store_metrics import StoreMetrics

            self.metrics = StoreMetrics()

        def tell(self, stats: dict[str, int]) -> None:
            self.metrics.tell(stats)

    store = ray.remote(Store).options(num_cpus=0).remote()
    ray.get(store.tell.remote(STORE), timeout=WAIT_S)
    found = wait_for(metrics_url, 5, metrics.STORE_EVICTIONS, place="encoded")
    assert value(found, metrics.STORE_EVICTIONS, place="arena") == 2
    assert value(found, metrics.STORE_CAPACITY_BYTES, place="arena") == 1 << 20
    assert value(found, metrics.STORE_CAPACITY_BYTES, place="encoded") == 0
    assert value(found, metrics.STORE_USED_BYTES, place="arena") == 4096
    assert value(found, metrics.STORE_BLOCKS, place="arena") == 0
    assert value(found, metrics.STORE_LEASES) == 3
    ray.kill(store)
