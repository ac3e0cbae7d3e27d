"""Metrics through a real Ray: what a scrape of the node's metrics port brings."""

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from kvrelay.relay.connector import metrics

WAIT_S = 60.0
DATA = {
    "reasons": {"relayed": 2, "no_source": 1},
    "arms": {"relay": 2, "recompute": 1},
    "transfers": [
        ["nixl", "tcp", "lz4", 1000, 600, 0.3],
        ["arena", "arena", "raw", 500, 0, 0.002],
    ],
    "estimates": [["relay", 0.25, 0.5]],
    "predictions": {"made": 4, "right": 2},
    "ahead_tokens": 256,
    "log_dropped": 3,
}
NIXL = {"transport": "nixl", "path": "tcp", "codec": "lz4"}


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
        ray.get(replica.observe.remote(DATA), timeout=WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while value(found := scraped(metrics_url), metrics.TRANSFER_BYTES, **NIXL) != 2000:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
    agent = {"model_name": "reader", "engine": "0"}
    assert value(found, metrics.REQUESTS, reason="relayed", **agent) == 4
    assert value(found, metrics.REQUESTS, reason="no_source", **agent) == 2
    assert value(found, metrics.DECISIONS, arm="relay", **agent) == 4
    assert value(found, metrics.DECISIONS, arm="recompute", **agent) == 2
    assert value(found, metrics.PREDICTED_SECONDS, arm="relay", **agent) == 0.5
    assert value(found, metrics.REALISED_SECONDS, arm="relay", **agent) == 1.0
    assert value(found, f"{metrics.REALISED_LATENCY}_count", arm="relay", **agent) == 2
    assert value(found, metrics.PREDICTIONS, outcome="right", **agent) == 4
    assert value(found, metrics.AHEAD_TOKENS, **agent) == 512
    assert value(found, metrics.LOG_DROPPED, **agent) == 6
    assert value(found, metrics.WIRE_BYTES, **NIXL, **agent) == 1200
    assert (
        value(found, metrics.TRANSFER_BYTES, transport="arena", path="arena", codec="raw") == 1000
    )
    assert value(found, metrics.TRANSFER_SECONDS, **NIXL) == pytest.approx(0.6)
    assert value(found, f"{metrics.TRANSFER_LATENCY}_count", **NIXL) == 2
    assert value(found, f"{metrics.TRANSFER_LATENCY}_bucket", **NIXL, le="0.25") == 0
    assert value(found, f"{metrics.TRANSFER_LATENCY}_bucket", **NIXL, le="0.5") == 2
    ray.kill(replica)
