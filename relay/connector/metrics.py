"""What records become as metrics: how requests ended, and by which path their KV came.

    RelayConnector.request_finished -> RelayStats -> vLLM's scheduler stats -> RelayMetrics.observe
               EngineCore process                                                Serve replica

vLLM carries a connector's statistics to the process that exports its own, so every request
counts, streamed ones too, and they are whatever vLLM's are there: Ray's metrics under Ray Serve,
else prometheus_client's. Their names and labels are in metric_names.py.

Interface: vllm.distributed.kv_transfer.kv_connector.v1.metrics.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvrelay.policies import Arm, Reason
from kvrelay.relay.codecs.raw import RawCodec
from kvrelay.relay.connector.audit import Savings
from kvrelay.relay.metric_names import (
    AHEAD_TOKENS,
    BAND_HITS,
    BAND_LABEL,
    BAND_REQUESTS,
    BAND_TOKENS,
    DECISIONS,
    FALLBACKS,
    LOG_DROPPED,
    PREDICTED_LATENCY,
    PREDICTED_SECONDS,
    PREDICTIONS,
    REALISED_LATENCY,
    REALISED_SECONDS,
    REQUESTS,
    SAVING,
    SAVING_LOWER,
    SAVING_REQUESTS,
    SAVING_UPPER,
    STRATUM_OFF,
    TRANSFER_BYTES,
    TRANSFER_LATENCY,
    TRANSFER_SECONDS,
    WAY_LABELS,
    WIRE_BYTES,
)
from kvrelay.relay.transports.ucx import UNKNOWN

logger = logging.getLogger(__name__)
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
ARENA = "arena"
MIXED = "mixed"
NO_BAND = "none"
_COUNTS = ("reasons", "decisions", "fallbacks", "bands", "predictions")
# A load that did what it was to do, or that nobody waited for any more.
_NO_FALLBACKS = frozenset({Reason.RELAYED, Reason.MODE_DISCARD, Reason.LOAD_CANCELLED})
_BANDS = {
    "requests": (BAND_REQUESTS, "Requests by how like a recent one their prompt is."),
    "hits": (BAND_HITS, "Those of them that something was relayed for."),
    "tokens": (BAND_TOKENS, "Tokens that were relayed for them."),
}
# In the order of `Savings`.
_SAVINGS = {
    SAVING: "Seconds of TTFT that relay saves per request where the policy prefers it.",
    SAVING_LOWER: "The lower end of that estimate's interval.",
    SAVING_UPPER: "The upper end of that estimate's interval.",
    SAVING_REQUESTS: "Requests that the estimate under way rests on.",
    STRATUM_OFF: "1 where relay was seen to lose, and is off or on trial.",
}


@dataclass
class RelayStats(KVConnectorStats):
    """What has happened since the last step that told of it, in plain types.

    `data`: requests by `reasons`, by arm and reason of their `decisions`, and by reasons of their
    `fallbacks`; by `bands` of similarity `requests`, `hits` and relayed `tokens`; `transfers`, of
    which each is transport, path, codec, KV bytes, wire bytes and seconds, None where they are not
    this transfer's own; `estimates`, each an arm, predicted and realised seconds; `predictions`, a
    count of each outcome; `ahead_tokens` and `log_dropped`, counts; `savings`, see `Savings`, of
    the strata of which there is news.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {
            **{kind: {} for kind in _COUNTS},
            "transfers": [],
            "estimates": [],
            "ahead_tokens": 0,
            "log_dropped": 0,
            "savings": {},
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a request, see `RelayRecord.to_dict`."""
        transfers = self.data["transfers"]
        reason, decision = record["reason"], record["decision"]
        arm, relayed = decision["arm"], record["relayed_tokens"]
        band = {"requests": 1, "hits": int(relayed > 0), "tokens": relayed}
        _add_up(self.data["reasons"], {reason: 1})
        _add_up(self.data["decisions"], {arm: {decision["reason"]: 1}})
        _add_up(self.data["bands"], {record["similarity_band"] or NO_BAND: band})
        if arm == Arm.RELAY and reason not in _NO_FALLBACKS:
            _add_up(self.data["fallbacks"], {reason: 1})
        predicted_s = decision["relay_s" if arm == Arm.RELAY else "recompute_s"]
        realised_s = record["first_token_s"]
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
        if record["next_agent"] is not None:
            _add_up(self.data["predictions"], {"made": 1})
        if record["foreseen"] is not None:
            outcome = "right" if record["foreseen"] else "wrong"
            _add_up(self.data["predictions"], {outcome: 1})

    def add_dropped(self, count: int) -> None:
        """Take in records that the decision log has dropped."""
        self.data["log_dropped"] += count

    def add_savings(self, savings: Savings) -> None:
        """Take in what relay saves; it replaces what was told of the same strata."""
        self.data["savings"].update(savings)

    def aggregate(self, other: KVConnectorStats) -> "RelayStats":
        """Take in what another one holds."""
        for kind in _COUNTS:
            _add_up(self.data[kind], other.data[kind])
        for kind in ("transfers", "estimates", "ahead_tokens", "log_dropped"):
            self.data[kind] += other.data[kind]
        self.data["savings"].update(other.data["savings"])
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
            documentation="Requests by what was decided for them, and why.",
            labelnames=[*by_arm, "reason"],
        )
        self._fallbacks = counter(
            name=FALLBACKS,
            documentation="Requests that were to be relayed and were recomputed after all.",
            labelnames=[*labelnames, "reason"],
        )
        self._bands = {
            kind: counter(name=name, documentation=text, labelnames=[*labelnames, BAND_LABEL])
            for kind, (name, text) in _BANDS.items()
        }
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
        self._savings = [
            metric_types[Gauge](
                name=name,
                documentation=text,
                labelnames=[*labelnames, "stratum"],
                multiprocess_mode="mostrecent",
            )
            for name, text in _SAVINGS.items()
        ]

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count what `RelayStats.data` holds. Never raises: it would end the engine's output."""
        try:
            self._observe(transfer_stats_data, self.per_engine_labelvalues[engine_idx])
        except Exception:
            logger.exception("relay metrics fault")

    def _observe(self, data: Mapping[str, Any], engine: list[object]) -> None:
        self._observe_requests(data, engine)
        self._observe_transfers(data["transfers"], engine)
        for stratum, values in data["savings"].items():
            for gauge, value in zip(self._savings, values, strict=True):
                if value is not None:  # Ray drops NaN: without an interval the last one stays
                    gauge.labels(*engine, stratum).set(float(value))

    def _observe_requests(self, data: Mapping[str, Any], engine: list[object]) -> None:
        for kind, counter in (
            ("reasons", self._requests),
            ("fallbacks", self._fallbacks),
            ("predictions", self._predictions),
        ):
            for name, count in data[kind].items():
                counter.labels(*engine, name).inc(count)
        for arm, reasons in data["decisions"].items():
            for reason, count in reasons.items():
                self._decisions.labels(*engine, arm, reason).inc(count)
        for band, counts in data["bands"].items():
            for kind, count in counts.items():
                self._bands[kind].labels(*engine, band).inc(count)
        for arm, *both in data["estimates"]:
            for (seconds_total, latency), value in zip(
                (self._predicted, self._realised), both, strict=True
            ):
                seconds_total.labels(*engine, arm).inc(value)
                latency.labels(*engine, arm).observe(value)
        for kind, counter in (
            ("ahead_tokens", self._ahead_tokens),
            ("log_dropped", self._log_dropped),
        ):
            if data[kind]:
                counter.labels(*engine).inc(data[kind])

    def _observe_transfers(self, transfers: Iterable[Sequence[Any]], engine: list[object]) -> None:
        for *way, num_bytes, wire_bytes, seconds in transfers:
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


def _add_up(counts: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add to counts those of the same names; they may be counts by name in turn."""
    for name, count in more.items():
        if isinstance(count, Mapping):
            _add_up(counts.setdefault(name, {}), count)
        else:
            counts[name] = counts.get(name, 0) + count


def _one(names: str) -> str:
    """The one transport or codec of a transfer."""
    return MIXED if "," in names else names
