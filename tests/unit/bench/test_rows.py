"""Rows: the shape of the JSON, and what is computed from the samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench import hit, hit_rows, miss_rows
from kvrelay.bench.engines import check_alike
from kvrelay.bench.errors import BenchError, UnequalEngines
from kvrelay.bench.itl import gaps_s
from kvrelay.bench.options import parse_lengths
from kvrelay.bench.overhead import between
from kvrelay.bench.report import Report, kept, new_meta, without_paths
from kvrelay.bench.roles import ROLES, cast, share
from kvrelay.cluster.errors import ConfigError

FIGURE = {"min", "median", "max", "n"}


def hit_samples(repeats: int = 3) -> list[dict[str, Any]]:
    """Samples of one length in which relay takes 0.1 s, recompute 4 s, a local hit 0.08 s."""
    times = {"save_s": 4.1, "relay_s": 0.1, "recompute_s": 4.0, "local_hit_s": 0.08}
    times |= {"plain_miss_s": 3.9, "miss_s": 4.0}
    samples: list[dict[str, Any]] = []
    for repeat in range(repeats):
        factors = {"tokens": 4096, "repeat": repeat, "arm": "any"}
        for measure, value in times.items():
            more = {"cached_tokens": 4096, "others_cores": 0.0, "steal_cores": 0.0}
            samples.append({**factors, "measure": measure, "value": value * (1 + repeat), **more})
        for measure, value in (("bytes", 94_371_840), ("copy_s", 0.01), ("load_path", "arena")):
            samples.append({**factors, "measure": measure, "value": value})
    return samples


def test_a_hit_row() -> None:
    (row,) = hit_rows.summarize(hit_samples())
    for name in ("recompute_s", "relay_s", "local_hit_s", "miss_s", "plain_miss_s", "save_s"):
        assert set(row[name]) == FIGURE and row[name]["n"] == 3
    assert row["tokens"] == 4096
    assert row["bytes"] == 94_371_840
    assert row["load_path"] == "arena"
    assert row["recompute_over_relay"] == 40.0
    assert row["relay_over_local_hit"] == 1.25
    assert row["recompute_over_relay_paired"] == {"min": 40, "median": 40, "max": 40, "n": 3}
    assert "peer_s" not in row


def test_interrupted_samples_still_make_a_row() -> None:
    for count in range(1, len(hit_samples(1))):
        (row,) = hit_rows.summarize(hit_samples(1)[:count])
        json.dumps(row)


@pytest.mark.parametrize(
    ("tokens", "saved", "hit_tokens"),
    [(512, 4, 512), (513, 5, 512), (639, 5, 512), (7900, 62, 7808)],
)
def test_what_an_arm_expects(tokens: int, saved: int, hit_tokens: int) -> None:
    assert hit.blocks_saved(tokens) == saved
    assert hit.local_hit_tokens(tokens) == hit_tokens


def test_blocks_added_to_a_known_prefix() -> None:
    assert hit.blocks_saved(544, 512) == 1
    assert hit.blocks_saved(512, 480) == 1
    assert hit.blocks_saved(7932, 7900) == 1
    assert hit.blocks_saved(650, 618) == 2


def test_the_peer_loads_what_it_was_given() -> None:
    # It keeps whole blocks of all but the last token, and looks for those of all but two.
    assert hit.peer_hit_tokens(512 + 32) == 512
    assert hit.peer_hit_tokens(7900 + 32) == 7808


def miss_samples(restarts: int = 2) -> list[dict[str, Any]]:
    """Starts of two repeats: the connector 1 % slower; alternations; idle CPU."""
    samples: list[dict[str, Any]] = []
    for restart in range(restarts):
        for repeat in range(2):
            for role, value in (("connector", 1.01), ("plain", 1.0), ("control", 1.0)):
                factors = {"restart": restart, "repeat": repeat, "tokens": 512, "role": role}
                more = {"quiet": True, "others_cores": 0.1, "steal_cores": 0.0}
                samples.append({**factors, **more, "measure": "ttft_s", "value": value})
        for role in ("connector", "plain", "control", "store"):
            factors = {"restart": restart, "role": role}
            samples.append({**factors, "measure": "idle_cores", "value": 0.01})
    for number in range(3):
        for saving in (True, False):
            for measure in ("itl_s", "itl_worst_after_s", "itl_worst_s"):
                factors = {"alternation": number, "saving": saving}
                samples.append({**factors, "measure": measure, "value": 0.02})
    return samples


def test_miss_rows() -> None:
    ttft, itl, idle = miss_rows.summarize(miss_samples())
    assert ttft["miss_ratio"]["estimate"] == pytest.approx(1.01)
    assert set(ttft["miss_ratio"]) == {"estimate", "low", "high", "n"}
    assert ttft["aa_ratio"]["estimate"] == pytest.approx(1.0)
    assert ttft["miss_ratio_by_restart"] == [1.01, 1.01]
    assert "miss_ratio_over_starts" not in ttft  # of two starts nothing can be said
    assert ttft["aim_met"] is True
    assert itl["alternations"] == 3 and itl["itl_ratio"]["estimate"] == pytest.approx(1.0)
    assert idle["connector_extra_cores"]["median"] == pytest.approx(0.0)
    for count in range(len(miss_samples())):
        json.dumps(miss_rows.summarize(miss_samples()[:count]))


def test_miss_rows_of_many_starts_speak_of_any_start() -> None:
    ttft = miss_rows.summarize(miss_samples(4))[0]
    assert ttft["miss_ratio_over_starts"]["n"] == ttft["aa_ratio_over_starts"]["n"] == 4
    assert ttft["miss_ratio_over_starts"]["estimate"] == ttft["miss_ratio"]["estimate"]


def test_parts_rotate_over_the_engines() -> None:
    starts = [cast(i) for i in range(3)]
    for name in starts[0].agents:
        assert {start.agents[name] for start in starts} == set(ROLES)
    for start in starts:
        assert sorted(start.who(role) for role in ROLES) == sorted(start.agents)
    assert [share(40, 3, i) for i in range(3)] == [14, 13, 13]


def record(seconds: float, step_s: float = 0.001) -> dict[str, Any]:
    names = ("scheduler_s", "worker_s", "copy_cpu_s", "saved_blocks", "dropped_blocks")
    worst = {"scheduler_p99_step_s": step_s, "worker_p99_step_s": 0.0005}
    return {"overhead": {**dict.fromkeys(names, seconds), **worst}}


def test_overhead_is_what_grew() -> None:
    cost = between(record(1.0), record(2.0), ttft_s=600.0)
    assert cost.cpu_share == pytest.approx(3 / 600)
    assert cost.passes()
    assert not between(record(1.0), record(2.0), ttft_s=100.0).passes()
    assert not between(record(1.0), record(2.0, step_s=0.003), ttft_s=600.0).passes()
    # Slow steps may lie before: one in between is no longer than all in between.
    assert between(record(1.0, 9.0), record(1.0002, 9.0), ttft_s=1.0).passes()
    with pytest.raises(ValueError, match="positive"):
        between(record(1.0), record(2.0), ttft_s=0.0)


def test_gaps_between_tokens() -> None:
    times = [0.0, 0.1, 0.3, 0.6, 1.0]
    assert gaps_s(times, 0.1, 0.6) == pytest.approx([0.2, 0.3])
    assert gaps_s(times, -1.0, 0.1) == pytest.approx([0.1])
    assert gaps_s(times, 2.0, 3.0) == []


def test_engines_must_be_bound_alike() -> None:
    check_alike({1: ("0,1", (0, 1)), 2: ("0,1", (0, 1))}, 2)
    with pytest.raises(UnequalEngines, match="differently"):
        check_alike({1: ("0,1", (0, 1)), 2: ("0", (0,))}, 2)
    with pytest.raises(BenchError, match="1 engines, expected 2"):
        check_alike({1: ("0,1", (0, 1))}, 2)


def test_lengths() -> None:
    assert parse_lengths("1024,512,512") == [512, 1024]
    for wrong in ("", "a", "0,512", "512;1024"):
        with pytest.raises(ConfigError, match="--tokens"):
            parse_lengths(wrong)
    for wrong_length in (127, hit.longest_tokens() + 1):
        with pytest.raises(ConfigError, match="tokens"):
            hit.check_lengths([wrong_length])


def test_commands_are_told_without_paths() -> None:
    told = without_paths("kvrelay bench hit --json /a/b/c.json --samples=/x/y.jsonl --tokens 512")
    assert told == "kvrelay bench hit --json c.json --samples=y.jsonl --tokens 512"


def test_the_report_is_written_whatever_ends_the_run(tmp_path: Path) -> None:
    file, raw = tmp_path / "hit.json", tmp_path / "hit.jsonl"
    report = Report(new_meta("demo", 3), hit_rows.summarize)
    with pytest.raises(KeyboardInterrupt), kept(report, file, raw):
        report.samples += hit_samples(1)
        raise KeyboardInterrupt
    content = json.loads(file.read_text())
    assert content["meta"]["complete"] is False
    assert content["meta"]["ended_by"] == "KeyboardInterrupt"
    assert {"command", "commit", "versions", "cpu", "cores", "model", "started", "seed"} <= set(
        content["meta"]
    )
    assert content["rows"][0]["tokens"] == 4096
    assert len(raw.read_text().splitlines()) == len(hit_samples(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hit.json", "hit.jsonl"]


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    report = Report({}, hit_rows.summarize)
    with (
        pytest.raises(ConfigError, match="--json"),
        kept(report, tmp_path / "no" / "hit.json", None),
    ):
        pytest.fail("it should not have begun")
