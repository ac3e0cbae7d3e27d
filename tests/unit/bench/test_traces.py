"""Traces: the public formats, larger blocks, statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.errors import BenchError
from kvrelay.bench.traces import Trace, describe, read_jsonl, regrouped


def write(file: Path, records: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def mooncake(time_ms: int, hashes: list[int]) -> dict[str, Any]:
    tokens = 512 * len(hashes) - 100
    return {
        "timestamp": time_ms,
        "input_length": tokens,
        "output_length": 7,
        "hash_ids": hashes,
    }


def bailian(chat: int, parent: int, time_s: float, hashes: list[int]) -> dict[str, Any]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": time_s,
        "input_length": 16 * len(hashes),
        "output_length": 9,
        "type": "text",
        "turn": 1,
        "hash_ids": hashes,
    }


def blocks(trace: Trace) -> list[list[int]]:
    return [trace.request_blocks(i).tolist() for i in range(len(trace))]


def test_mooncake(tmp_path: Path) -> None:
    hashes = [[46, 47, 2353], [46, 47, 2366, 9], [1]]
    records = [mooncake(*each) for each in zip((2000, 5500, 5500), hashes, strict=True)]
    trace = read_jsonl(write(tmp_path / "toolagent.jsonl", records))
    assert (trace.name, trace.block_tokens, len(trace)) == ("toolagent", 512, 3)
    assert trace.times_s.tolist() == [0.0, 3.5, 3.5]
    assert trace.input_tokens.tolist() == [1436, 1948, 412]
    assert blocks(trace) == [[0, 1, 2], [0, 1, 3, 4], [5]]
    assert trace.num_blocks == 6
    assert trace.turns.tolist() == [0, 0, 0]


def test_bailian(tmp_path: Path) -> None:
    records = [
        bailian(10, -1, 0.5, [1, 2]),
        bailian(11, -1, 1.0, [3, 2]),  # the same tokens behind others: another block
        bailian(12, 10, 4.0, [1, 2, 5]),
        bailian(13, 12, 9.0, [1, 2, 5, 6]),
        bailian(14, 999, 9.5, [1, 2]),  # its parent was before the trace
    ]
    trace = read_jsonl(write(tmp_path / "a.jsonl", records))
    assert trace.block_tokens == 16
    assert blocks(trace) == [[0, 1], [2, 3], [0, 1, 4], [0, 1, 4, 5], [0, 1]]
    assert trace.turns.tolist() == [0, 0, 1, 2, 0]
    assert trace.sessions[0] == trace.sessions[2] == trace.sessions[3]
    assert len(set(trace.sessions.tolist())) == 3
    statistics = describe(trace)
    assert statistics.requests == 5
    assert statistics.follow_up_share == pytest.approx(0.4)
    assert statistics.gap_p50_s == pytest.approx(4.25)
    assert statistics.ideal_hit_ratio == pytest.approx(7 / 13)
    assert statistics.same_session_share == pytest.approx(5 / 7)
    assert statistics.first_blocks == 2
    assert statistics.reused_block_share == pytest.approx(3 / 6)
    assert statistics.first_reuse_p50_s == pytest.approx(3.5)


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    records = [mooncake(3000, [1]), mooncake(1000, [2]), mooncake(3000, [3])]
    trace = read_jsonl(write(tmp_path / "t.jsonl", records))
    assert trace.times_s.tolist() == [0.0, 2.0, 2.0]
    assert blocks(trace) == [[0], [1], [2]]


@pytest.mark.parametrize("line", ["{", "[]", '{"timestamp": 1}', '{"timestamp": "x"}'])
def test_what_is_no_request_is_told_by_its_line(tmp_path: Path, line: str) -> None:
    file = write(tmp_path / "t.jsonl", [mooncake(0, [1])])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(BenchError, match="line 2: not a request"):
        read_jsonl(file)


def test_files_without_requests(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BenchError, match="holds no requests"):
        read_jsonl(tmp_path / "empty.jsonl")
    with pytest.raises(BenchError, match="cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")


def test_larger_blocks_hold_the_same_prefixes(tmp_path: Path) -> None:
    records = [
        bailian(1, -1, 0, [1, 2, 3, 4, 5]),
        bailian(2, -1, 1, [1, 2, 3, 9]),
        bailian(3, -1, 2, [1]),
        bailian(4, -1, 3, [1, 2, 3, 4, 6, 7]),
    ]
    trace = regrouped(read_jsonl(write(tmp_path / "t.jsonl", records)), 32)
    assert trace.block_tokens == 32
    got = blocks(trace)
    assert [len(each) for each in got] == [2, 2, 0, 3]
    assert got[0][0] == got[1][0] and got[0][1] != got[1][1]
    assert got[3][:2] == got[0]
    assert trace.num_blocks == len(np.unique(trace.blocks)) == 4
    with pytest.raises(BenchError, match="blocks of 32 tokens"):
        regrouped(trace, 48)
