"""What Ray's metrics ports say of relay, read as Prometheus would read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvrelay.relay import metric_names as names

PREFIX = "ray_"  # Ray puts it in front of every name
TIMEOUT_S = 5.0
# What `kvrelay status` tells, the metric that it comes from, and the label by which it is told.
FIGURES = {
    "requests": (names.REQUESTS, "reason"),
    "decisions": (names.DECISIONS, "arm"),
    "fallbacks": (names.FALLBACKS, "reason"),
    "band_requests": (names.BAND_REQUESTS, names.BAND_LABEL),
    "band_hits": (names.BAND_HITS, names.BAND_LABEL),
    "band_relayed_tokens": (names.BAND_TOKENS, names.BAND_LABEL),
    "transfer_bytes": (names.TRANSFER_BYTES, "path"),
    "transfer_seconds": (names.TRANSFER_SECONDS, "path"),
    "predicted_seconds": (names.PREDICTED_SECONDS, "arm"),
    "realised_seconds": (names.REALISED_SECONDS, "arm"),
    "store_capacity_bytes": (names.STORE_CAPACITY_BYTES, "place"),
    "store_used_bytes": (names.STORE_USED_BYTES, "place"),
    "store_evictions": (names.STORE_EVICTIONS, "place"),
}
TOTALS = {"store_leases": names.STORE_LEASES, "log_dropped": names.LOG_DROPPED}

Figures = dict[str, Any]


def metrics_urls() -> tuple[str, ...]:
    """Where the nodes of the Ray that this process has joined tell their metrics."""
    import ray

    return tuple(
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for node in ray.nodes()
        if node["Alive"]
    )


def scrape(urls: Sequence[str]) -> tuple[Figures, list[str]]:
    """Figures of all nodes together, and the nodes that did not answer.

    Counts are since the processes that tell them began; processes hand them on every 10 s.
    """
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(_read, urls))
    silent = [url for url, page in zip(urls, pages, strict=True) if page is None]
    return figures(family for page in pages for family in page or ()), silent


def figures(families: Iterable[Metric]) -> Figures:
    """`FIGURES` by their labels' values, and `TOTALS`; what nobody has told of yet is absent."""
    by_label = {PREFIX + name: (key, label) for key, (name, label) in FIGURES.items()}
    totals = {PREFIX + name: key for key, name in TOTALS.items()}
    found: Figures = {**{key: {} for key in FIGURES}, **dict.fromkeys(TOTALS, 0)}
    for family in families:
        for sample in family.samples:
            if sample.name in by_label:
                key, label = by_label[sample.name]
                told = found[key]
                value = sample.labels.get(label, "")
                told[value] = told.get(value, 0) + sample.value
            elif sample.name in totals:
                found[totals[sample.name]] += sample.value
    return found


def _read(url: str) -> list[Metric] | None:
    """A node's page; None if it does not answer, or something else does."""
    try:
        page = httpx.get(url, timeout=TIMEOUT_S, trust_env=False).raise_for_status()
        return list(text_string_to_metric_families(page.text))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
