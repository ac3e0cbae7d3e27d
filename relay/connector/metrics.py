"""What records become as metrics: how requests ended, and by which path their KV came.

    RelayConnector.request_finished -> RelayStats -> vLLM's scheduler stats -> RelayMetrics.observe
               EngineCore process                                                Serve replica

vLLM carries a connector's statistics to the process that exports its own, so every request
counts, streamed ones too, and they are whatever vLLM's are there: Ray's metrics under Ray Serve
(with `ray_` in front), else prometheus_client's. Labels: vLLM's `model_name`, which is the agent,
and `engine`; then those below. All have few values: a path is told without its interfaces.

    kvrelay_requests_total{reason}                       requests, by how they ended
    kvrelay_transfer_bytes_total{transport,path,codec}   KV bytes that came
    kvrelay_wire_bytes_total{transport,path,codec}       bytes that went between nodes for them
    kvrelay_transfer_seconds_total{transport,path,codec}    seconds that requests waited for them
    kvrelay_transfer_latency_seconds{transport,path,codec}  the same as a histogram

The seconds stand there twice since Ray 2.60 makes a histogram anew of the middles of its buckets,
so that its `_sum` is no sum. Interface: vllm.distributed.kv_transfer.kv_connector.v1.metrics.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.transports.ucx import UNKNOWN

logger = logging.getLogger(__name__)
REQUESTS = "kvrelay_requests_total"
TRANSFER_BYTES = "kvrelay_transfer_bytes_total"
WIRE_BYTES = "kvrelay_wire_bytes_total"
TRANSFER_SECONDS = "kvrelay_transfer_seconds_total"
TRANSFER_LATENCY = "kvrelay_transfer_latency_seconds"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
WAY_LABELS = ("transport", "path", "codec")
ARENA = "arena"
MIXED = "mixed"


@dataclass
class RelayStats(KVConnectorStats):
    """What has happened since the last step that told of it, in plain types.

    `data`: `reasons`, a count of each, and `transfers`, of which each is transport, path, codec,
    KV bytes, wire bytes and seconds. Seconds are None where they are not this transfer's own.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {"reasons": {}, "transfers": []}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a request, see `RelayRecord.to_dict`."""
        reasons, transfers = self.data["reasons"], self.data["transfers"]
        reasons[record["reason"]] = reasons.get(record["reason"], 0) + 1
        fetched = record["fetched_bytes"]
        if fetched:
            way = [_one(record["transport"]), path_label(record["path"]), _one(record["codec"])]
            transfers.append([*way, fetched, record["wire_bytes"], record["transfer_s"]])
        if (held := record["num_bytes"] - fetched) > 0:
            seconds = None if fetched else record["copy_s"]
            transfers.append([ARENA, ARENA, RawCodec.name, held, 0, seconds])

    def aggregate(self, other: KVConnectorStats) -> "RelayStats":
        """Take in what another one holds."""
        for reason, count in other.data["reasons"].items():
            self.data["reasons"][reason] = self.data["reasons"].get(reason, 0) + count
        self.data["transfers"] += other.data["transfers"]
        return self

    def reduce(self) -> dict[str, int | float]:
        """A line for vLLM's log."""
        moved = sum(transfer[3] for transfer in self.data["transfers"])
        return {**self.data["reasons"], "KV MB": round(moved / 1e6, 1)}

    def is_empty(self) -> bool:
        """Whether nothing has happened; there is no transfer without a request."""
        return not self.data["reasons"]


class RelayMetrics(KVConnectorPromMetrics):
    """The metrics, in the process that exports vLLM's; see the module's head."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, histogram = metric_types[Counter], metric_types[Histogram]
        way = [*labelnames, *WAY_LABELS]
        self._requests = counter(
            name=REQUESTS,
            documentation="Requests by how relay ended: relayed, or why not.",
            labelnames=[*labelnames, "reason"],
        )
        self._bytes = counter(
            name=TRANSFER_BYTES,
            documentation="Bytes of KV that requests took over from other engines.",
            labelnames=way,
        )
        self._wire_bytes = counter(
            name=WIRE_BYTES,
            documentation="Bytes that were moved between nodes for that KV, encoded as they went.",
            labelnames=way,
        )
        self._seconds = counter(
            name=TRANSFER_SECONDS,
            documentation="Seconds until all KV that a request took over was there, verified.",
            labelnames=way,
        )
        self._latency = histogram(
            name=TRANSFER_LATENCY,
            documentation="The same seconds, by request.",
            labelnames=way,
            buckets=list(BUCKETS_S),
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count what `RelayStats.data` holds. Never raises: it would end the engine's output."""
        try:
            self._observe(transfer_stats_data, self.per_engine_labelvalues[engine_idx])
        except Exception:
            logger.exception("relay metrics fault")

    def _observe(self, data: Mapping[str, Any], engine: list[object]) -> None:
        for reason, count in data["reasons"].items():
            self._requests.labels(*engine, reason).inc(count)
        for *way, num_bytes, wire_bytes, seconds in data["transfers"]:
            self._bytes.labels(*engine, *way).inc(num_bytes)
            if wire_bytes:
                self._wire_bytes.labels(*engine, *way).inc(wire_bytes)
            if seconds is not None:
                self._seconds.labels(*engine, *way).inc(seconds)
                self._latency.labels(*engine, *way).observe(seconds)


def path_label(path: str) -> str:
    """A record's path without interfaces: `tcp/eth0` is `tcp`, `rc_mlx5/mlx5_0:1` is `rc_mlx5`.

    Several of one kind are one, of several kinds `mixed`. What Ray's object store did stays as it
    is, `plasma/tcp`: there the second word is no interface.
    """
    kinds = {
        part if part.startswith("plasma/") else part.partition("/")[0] or UNKNOWN
        for part in re.split("[,+]", path)
    }
    return kinds.pop() if len(kinds) == 1 else MIXED


def _one(names: str) -> str:
    """The one transport or codec of a transfer."""
    return MIXED if "," in names else names
