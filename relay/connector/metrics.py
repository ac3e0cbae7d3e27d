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
    kvrelay_decisions_total{arm}               requests, by what was decided at look-up
    kvrelay_predicted_seconds_total{arm}       seconds to the first token as predicted for that arm,
    kvrelay_realised_seconds_total{arm}        and as they were; only of requests that have both
    kvrelay_predicted_latency_seconds{arm}, kvrelay_realised_latency_seconds{arm}  histograms
    kvrelay_predictions_total{outcome}         `made`: an agent was expected after a request;
                                               `right`, `wrong`: whether it came
    kvrelay_ahead_tokens_total                 relayed tokens that had come before anybody asked
    kvrelay_log_dropped_total                  records that are missing in the decision log

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

from kvrelay.policies import Arm
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.transports.ucx import UNKNOWN

logger = logging.getLogger(__name__)
REQUESTS = "kvrelay_requests_total"
TRANSFER_BYTES = "kvrelay_transfer_bytes_total"
WIRE_BYTES = "kvrelay_wire_bytes_total"
TRANSFER_SECONDS = "kvrelay_transfer_seconds_total"
TRANSFER_LATENCY = "kvrelay_transfer_latency_seconds"
DECISIONS = "kvrelay_decisions_total"
PREDICTED_SECONDS = "kvrelay_predicted_seconds_total"
REALISED_SECONDS = "kvrelay_realised_seconds_total"
PREDICTED_LATENCY = "kvrelay_predicted_latency_seconds"
REALISED_LATENCY = "kvrelay_realised_latency_seconds"
LOG_DROPPED = "kvrelay_log_dropped_total"
PREDICTIONS = "kvrelay_predictions_total"
AHEAD_TOKENS = "kvrelay_ahead_tokens_total"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
WAY_LABELS = ("transport", "path", "codec")
ARENA = "arena"
MIXED = "mixed"


@dataclass
class RelayStats(KVConnectorStats):
    """What has happened since the last step that told of it, in plain types.

    `data`: `reasons` and `arms`, a count of each; `transfers`, of which each is transport, path,
    codec, KV bytes, wire bytes and seconds, None where they are not this transfer's own;
    `estimates`, each an arm, predicted and realised seconds; `predictions`, a
    count of each outcome; `ahead_tokens` and `log_dropped`, counts.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {
            "reasons": {},
            "arms": {},
            "transfers": [],
            "estimates": [],
            "predictions": {},
            "ahead_tokens": 0,
            "log_dropped": 0,
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a request, see `RelayRecord.to_dict`."""
        reasons, transfers = self.data["reasons"], self.data["transfers"]
        reasons[record["reason"]] = reasons.get(record["reason"], 0) + 1
        decision, arms = record["decision"], self.data["arms"]
        arm = decision["arm"]
        arms[arm] = arms.get(arm, 0) + 1
        predicted_s = decision["relay_s" if arm == Arm.RELAY else "recompute_s"]
        realised_s = record.get("ttft_s")
        if predicted_s is not None and realised_s is not None:
            self.data["estimates"].append([arm, predicted_s, realised_s])
        self._add_predictions(record)
        fetched = record["fetched_bytes"]
        if fetched:
            way = [_one(record["transport"]), path_label(record["path"]), _one(record["codec"])]
            transfers.append([*way, fetched, record["wire_bytes"], record["transfer_s"]])
        if (held := record["num_bytes"] - fetched) > 0:
            seconds = None if fetched else record["copy_s"]
            transfers.append([ARENA, ARENA, RawCodec.name, held, 0, seconds])

    def _add_predictions(self, record: Mapping[str, Any]) -> None:
        self.data["ahead_tokens"] += record["ahead_tokens"]
        outcomes, predictions = [], self.data["predictions"]
        if record["next_agent"] is not None:
            outcomes.append("made")
        if record["foreseen"] is not None:
            outcomes.append("right" if record["foreseen"] else "wrong")
        for outcome in outcomes:
            predictions[outcome] = predictions.get(outcome, 0) + 1

    def add_dropped(self, count: int) -> None:
        """Take in records that the decision log has dropped."""
        self.data["log_dropped"] += count

    def aggregate(self, other: KVConnectorStats) -> "RelayStats":
        """Take in what another one holds."""
        for kind in ("reasons", "arms", "predictions"):
            counts = self.data[kind]
            for name, count in other.data[kind].items():
                counts[name] = counts.get(name, 0) + count
        for kind in ("transfers", "estimates", "ahead_tokens", "log_dropped"):
            self.data[kind] += other.data[kind]
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
        by_arm = [*labelnames, "arm"]
        self._decisions = counter(
            name=DECISIONS,
            documentation="Requests by what was decided for them.",
            labelnames=by_arm,
        )
        self._predicted, self._realised = (
            (
                counter(name=total, documentation=text, labelnames=by_arm),
                histogram(
                    name=latency,
                    documentation=f"{text} By request.",
                    labelnames=by_arm,
                    buckets=list(BUCKETS_S),
                ),
            )
            for total, latency, text in (
                (PREDICTED_SECONDS, PREDICTED_LATENCY, "Predicted seconds to the first token."),
                (REALISED_SECONDS, REALISED_LATENCY, "Seconds that those requests really took."),
            )
        )
        self._predictions = counter(
            name=PREDICTIONS,
            documentation="Which agent comes next: expected, and whether that was right.",
            labelnames=[*labelnames, "outcome"],
        )
        self._ahead_tokens = counter(
            name=AHEAD_TOKENS,
            documentation="Relayed tokens that had come to the node before anybody asked.",
            labelnames=list(labelnames),
        )
        self._log_dropped = counter(
            name=LOG_DROPPED,
            documentation="Records of requests that the decision log has dropped.",
            labelnames=list(labelnames),
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
        for arm, count in data["arms"].items():
            self._decisions.labels(*engine, arm).inc(count)
        for arm, *both in data["estimates"]:
            for (seconds_total, latency), value in zip(
                (self._predicted, self._realised), both, strict=True
            ):
                seconds_total.labels(*engine, arm).inc(value)
                latency.labels(*engine, arm).observe(value)
        for outcome, count in data["predictions"].items():
            self._predictions.labels(*engine, outcome).inc(count)
        if data["ahead_tokens"]:
            self._ahead_tokens.labels(*engine).inc(data["ahead_tokens"])
        if data["log_dropped"]:
            self._log_dropped.labels(*engine).inc(data["log_dropped"])
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
