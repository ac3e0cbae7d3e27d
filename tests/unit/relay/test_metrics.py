"""Records as metrics: what is counted, under which labels, in the form of Prometheus."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from records import made_record

from kvrelay.policies import Reason
from kvrelay.policies.decision import Arm, Decision
from kvrelay.relay import metric_names as metrics
from kvrelay.relay.connector import RelayConnector
from kvrelay.relay.connector.metrics import RelayStats, path_label

ENGINE = ["reader", "0"]  # values of the labels that vLLM gives
OURS = ("reason", "arm", "outcome", metrics.BAND_LABEL, *metrics.WAY_LABELS, "stratum", "le")


def record(**changes: Any) -> dict[str, Any]:
    """A relay of 1,000 bytes from this node, unless told otherwise."""
    reason = changes.pop("reason", Reason.RELAYED)
    relays = reason is Reason.RELAYED
    held = {"num_bytes": 1000, "load_path": "arena", "copy_s": 0.002} if relays else {}
    return made_record(reason, **(held | changes))


FETCHED = {
    "load_path": "nodes",
    "sources": ("other",),
    "transport": "nixl",
    "path": "tcp/eth0",
    "codec": "lz4",
    "fetched_bytes": 1000,
    "wire_bytes": 600,
    "transfer_s": 0.4,
}


def told(stats: RelayStats) -> dict[str, Any]:
    """As it arrives in the other process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(stats.data))


def exported(*all_data: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Samples of our metrics by name and our labels' values, after a scrape."""
    registry = CollectorRegistry()
    types = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    config = SimpleNamespace(kv_transfer_config=None)
    exporter = RelayConnector.build_prom_metrics(
        config, types, ["model_name", "engine"], {0: list(ENGINE)}
    )
    for data in all_data:
        exporter.observe(data, 0)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = sample.labels
            if sample.name.endswith("_created"):
                continue
            assert [labels["model_name"], labels["engine"]] == ENGINE
            values = [labels[name] for name in OURS if name in labels]
            assert len(values) == len(labels) - len(ENGINE)
            found[sample.name, *values] = sample.value
    return found


def test_requests_by_how_they_ended() -> None:
    stats = RelayStats()
    for reason in (Reason.RELAYED, Reason.NO_SOURCE, Reason.NO_SOURCE):
        stats.add(record(reason=reason))
    found = exported(told(stats), told(stats))
    assert found[metrics.REQUESTS, "relayed"] == 2
    assert found[metrics.REQUESTS, "no_source"] == 4
    assert len([name for name, *_ in found if name == metrics.REQUESTS]) == 2


def test_bytes_and_seconds_by_path() -> None:
    stats = RelayStats()
    stats.add(record())
    stats.add(record(**FETCHED))
    stats.add(record(**FETCHED))
    found = exported(told(stats))
    here, there = ("arena", "arena", "raw"), ("nixl", "tcp", "lz4")
    assert found[metrics.TRANSFER_BYTES, *here] == 1000
    assert found[metrics.TRANSFER_BYTES, *there] == 2000
    assert found[metrics.WIRE_BYTES, *there] == 1200
    assert (metrics.WIRE_BYTES, *here) not in found
    for way, seconds, count in ((here, 0.002, 1), (there, 0.8, 2)):
        assert found[f"{metrics.TRANSFER_LATENCY}_count", *way] == count
        assert found[metrics.TRANSFER_SECONDS, *way] == pytest.approx(seconds)
    assert found[f"{metrics.TRANSFER_LATENCY}_bucket", *there, "0.25"] == 0
    assert found[f"{metrics.TRANSFER_LATENCY}_bucket", *there, "0.5"] == 2


def test_what_came_from_both_places() -> None:
    stats = RelayStats()
    stats.add(record(**FETCHED, num_bytes=1500))
    found = exported(told(stats))
    assert found[metrics.TRANSFER_BYTES, "nixl", "tcp", "lz4"] == 1000
    assert found[metrics.TRANSFER_BYTES, "arena", "arena", "raw"] == 500
    # The copy waited for the transfer: its time says nothing about the arena.
    assert (metrics.TRANSFER_SECONDS, "arena", "arena", "raw") not in found


def test_bytes_that_came_for_nothing_are_counted() -> None:
    stats = RelayStats()
    late = {**FETCHED, "load_path": None, "num_bytes": 0}
    stats.add(record(reason=Reason.LOAD_DEADLINE, **late))
    found = exported(told(stats))
    assert found[metrics.REQUESTS, "load_deadline"] == 1
    assert found[metrics.TRANSFER_BYTES, "nixl", "tcp", "lz4"] == 1000


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("tcp", "tcp"),
        ("tcp/eth0", "tcp"),
        ("tcp/eth0+tcp/eth1", "tcp"),
        ("rc_mlx5/mlx5_0:1", "rc_mlx5"),
        ("rc_mlx5/mlx5_0:1+tcp/eth0", "mixed"),
        ("tcp/eth0,plasma/tcp", "mixed"),
        ("plasma/tcp", "plasma/tcp"),
        ("cma/memory", "cma"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ],
)
def test_paths_have_few_labels(path: str, label: str) -> None:
    assert path_label(path) == label


def test_decisions_by_arm_and_reason() -> None:
    stats = RelayStats()
    for reason in (Reason.RELAYED, Reason.NO_SOURCE, Reason.NO_SOURCE):
        stats.add(record(reason=reason))
    decided = Decision(Arm.RELAY, Reason.RELAYED, 9)
    stats.add(record(reason=Reason.LOAD_DEADLINE, decision=decided))
    found = exported(told(RelayStats().aggregate(stats)), told(stats))
    assert found[metrics.DECISIONS, "relayed", "relay"] == 4
    assert found[metrics.DECISIONS, "no_source", "recompute"] == 4
    assert len([name for name, *_ in found if name == metrics.DECISIONS]) == 2
    assert not [name for name, *_ in found if "predicted" in name or "realised" in name]
    assert (metrics.LOG_DROPPED,) not in found or found[metrics.LOG_DROPPED,] == 0


def test_fallbacks_are_relays_that_were_recomputed_after_all() -> None:
    stats = RelayStats()
    decided = Decision(Arm.RELAY, Reason.RELAYED, 9)
    for reason in (
        Reason.LOAD_CORRUPT,
        Reason.LOAD_CORRUPT,
        Reason.SOURCE_LOST,
        Reason.MODE_DISCARD,
        Reason.LOAD_CANCELLED,
    ):
        stats.add(record(reason=reason, decision=decided))
    stats.add(record())
    stats.add(record(reason=Reason.STORE_UNAVAILABLE))  # nothing was to be relayed
    found = exported(told(RelayStats().aggregate(stats)))
    counted = {key: value for key, value in found.items() if key[0] == metrics.FALLBACKS}
    assert counted == {
        (metrics.FALLBACKS, "load_corrupt"): 2,
        (metrics.FALLBACKS, "source_lost"): 1,
    }


def test_hits_by_band_of_similarity() -> None:
    stats, other = RelayStats(), RelayStats()
    stats.add(record(similarity_band="high"))
    stats.add(record(similarity_band="low", reason=Reason.NO_SOURCE))
    other.add(record(similarity_band="high", reason=Reason.NO_SOURCE))
    other.add(record())
    found = exported(told(stats.aggregate(other)))
    for band, requests, hits in (("high", 2, 1), ("low", 1, 0), ("none", 1, 1)):
        assert found[metrics.BAND_REQUESTS, band] == requests
        assert found[metrics.BAND_HITS, band] == hits
        assert found[metrics.BAND_TOKENS, band] == 128 * hits


def test_predicted_and_realised_seconds() -> None:
    stats = RelayStats()
    relay = Decision(Arm.RELAY, Reason.RELAYED, 128, relay_s=0.2, recompute_s=3.0)
    other = Decision(Arm.RECOMPUTE, Reason.NO_SOURCE, relay_s=3.0, recompute_s=0.5)
    stats.add(record(decision=relay, first_token_s=0.3))
    stats.add(record(decision=relay, first_token_s=0.1))
    stats.add(record(reason=Reason.NO_SOURCE, decision=other, first_token_s=0.6))
    stats.add(record(decision=relay))  # it never came to a token
    stats.add(record(first_token_s=0.1))  # nothing was predicted
    found = exported(told(RelayStats().aggregate(stats)))
    assert found[metrics.PREDICTED_SECONDS, "relay"] == pytest.approx(0.4)
    assert found[metrics.REALISED_SECONDS, "relay"] == pytest.approx(0.4)
    assert found[metrics.PREDICTED_SECONDS, "recompute"] == pytest.approx(0.5)
    assert found[metrics.REALISED_SECONDS, "recompute"] == pytest.approx(0.6)
    assert found[f"{metrics.PREDICTED_LATENCY}_bucket", "relay", "0.1"] == 0
    assert found[f"{metrics.REALISED_LATENCY}_bucket", "relay", "0.1"] == 1
    assert found[f"{metrics.REALISED_LATENCY}_count", "relay"] == 2


def test_records_that_the_log_dropped() -> None:
    one, other = RelayStats(), RelayStats()
    for stats, count in ((one, 0), (other, 3)):
        stats.add(record())
        stats.add_dropped(count)
    found = exported(told(one.aggregate(other)), told(other))
    assert found[metrics.LOG_DROPPED,] == 6


def test_what_relay_saves() -> None:
    losing, label = [-0.2, -0.3, -0.1, 70, False], "nodes/512-2k/>=90%"
    one, other = RelayStats(), RelayStats()
    for stats, savings in (
        (one, {"all": [None, None, None, 3, None], label: losing}),
        (other, {label: [None, None, None, 1, True]}),
    ):
        stats.add(record())
        stats.add_savings(savings)
    found = exported(told(one))
    assert found[metrics.SAVING, label] == -0.2
    assert (found[metrics.SAVING_LOWER, label], found[metrics.SAVING_UPPER, label]) == (-0.3, -0.1)
    assert (found[metrics.SAVING_REQUESTS, label], found[metrics.STRATUM_OFF, label]) == (70, 0)
    for name in (metrics.SAVING, metrics.SAVING_UPPER, metrics.STRATUM_OFF):
        assert (name, "all") not in found, "not known"
    later = exported(told(one), told(other))
    assert (later[metrics.STRATUM_OFF, label], later[metrics.SAVING_REQUESTS, label]) == (1, 1)
    assert later[metrics.SAVING, label] == -0.2, "as last known"
    both = exported(told(one.aggregate(other)))
    assert (both[metrics.STRATUM_OFF, label], both[metrics.SAVING_REQUESTS, "all"]) == (1, 3)


def test_predictions_and_what_had_come_ahead() -> None:
    one, other = RelayStats(), RelayStats()
    one.add(record(next_agent="b", next_probability=0.9))
    one.add(record(next_agent="b", next_probability=0.9, foreseen=False))
    other.add(record(foreseen=True, ahead_tokens=96))
    found = exported(told(one.aggregate(other)))
    outcomes = {"made": 2, "right": 1, "wrong": 1}
    assert {name: found[metrics.PREDICTIONS, name] for name in outcomes} == outcomes
    assert found[metrics.AHEAD_TOKENS,] == 96


def test_several_ways_at_once_are_one_label() -> None:
    stats = RelayStats()
    mixed = {"transport": "nixl,plasma", "path": "tcp,plasma/tcp", "codec": "lz4,raw"}
    stats.add(record(**{**FETCHED, **mixed}))
    assert (metrics.TRANSFER_BYTES, "mixed", "mixed", "mixed") in exported(told(stats))


def test_for_the_log() -> None:
    one, other = RelayStats(), RelayConnector.build_kv_connector_stats(None)
    assert one.is_empty() and other.is_empty()
    one.add(record(num_bytes=1_500_000))
    other.add(record(num_bytes=500_000))
    other.add(record(reason=Reason.NO_SOURCE))
    both = one.aggregate(RelayConnector.build_kv_connector_stats(told(other)))
    assert both.reduce() == {"relayed": 2, "no_source": 1, "KV MB": 2.0}
    both.reset()
    assert both.is_empty()


def test_a_fault_stays_here(caplog: pytest.LogCaptureFixture) -> None:
    assert exported({"reasons": None}) == {}
    assert "relay metrics fault" in caplog.text
