"""Requests of traces: prompts share the blocks that the ids say, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.workload.quality import common_prefix
from kvrelay.bench.audit.workload.traffic import BlockText, requests
from kvrelay.bench.errors import BenchError
from kvrelay.bench.trace_profiles import BAILIAN_A
from kvrelay.bench.tracegen import generate
from kvrelay.bench.traces import Trace, read_jsonl

STREAM = [(n * n * 7919 + n) % 3001 for n in range(20_000)]


def trace_of(folder: Path, rows: list[dict[str, Any]]) -> Trace:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_jsonl(file)


def mooncake(time_ms: int, tokens: int, hashes: list[int]) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": tokens,
        "output_length": 64,
        "hash_ids": hashes,
    }


def test_mooncake_rows_share_what_their_ids_say(tmp_path: Path) -> None:
    rows = [
        mooncake(1000, 1500, [46, 47, 2353]),
        mooncake(1500, 1400, [46, 47, 9]),
        mooncake(2000, 1536, [5, 47, 9]),
    ]
    made = list(requests(trace_of(tmp_path, rows), BlockText(STREAM, 128), max_tokens=4096))
    assert [each.time_s for each in made] == [0.0, 0.5, 1.0]
    # A quarter of the trace's tokens, as blocks have 128 instead of 512.
    assert [len(each.prompt) for each in made] == [375, 350, 384]
    assert [each.output_tokens for each in made] == [16, 16, 16]
    prompts = [each.prompt for each in made]
    assert common_prefix(prompts[0], prompts[1]) == 256
    # Equal ids behind different beginnings are different KV, and different tokens.
    assert common_prefix(prompts[1], prompts[2]) == 0
    assert prompts[1][128:256] != prompts[2][128:256]


def test_bailian_rows_are_sessions_that_grow(tmp_path: Path) -> None:
    def row(chat: int, parent: int, time_s: float, hashes: list[int]) -> dict[str, Any]:
        lengths = {"input_length": 16 * len(hashes), "output_length": 9}
        ids = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time_s, "turn": 1}
        return {**ids, **lengths, "type": "text", "hash_ids": hashes}

    trace = trace_of(tmp_path, [row(1, -1, 0.0, [3, 4]), row(2, 1, 8.0, [3, 4, 5])])
    first, second = requests(trace, BlockText(STREAM, 16), max_tokens=4096)
    assert (first.session, first.turn) == (second.session, 0)
    assert second.turn == 1
    assert second.prompt[:32] == first.prompt


def test_prompts_of_a_generated_trace_share_exactly_their_common_blocks() -> None:
    trace = generate(replace(BAILIAN_A, num_requests=120), seed=1)
    size = 8
    made = list(requests(trace, BlockText(STREAM, size), max_tokens=1 << 20))
    rng = np.random.default_rng(1)
    some_shared = 0
    for a, b in rng.integers(0, len(trace), (3000, 2)).tolist():
        if a == b:
            continue
        blocks = common_prefix(trace.request_blocks(a).tolist(), trace.request_blocks(b).tolist())
        tokens = common_prefix(made[a].prompt, made[b].prompt)
        # What is left of a block that only one of both fills may begin alike by its length.
        assert blocks * size <= tokens < (blocks + 1) * size
        some_shared += blocks > 0
    assert some_shared


def test_equal_traces_make_equal_prompts_and_long_ones_are_cut() -> None:
    trace = generate(replace(BAILIAN_A, num_requests=40), seed=2)
    made = list(requests(trace, BlockText(STREAM, 16), max_tokens=1 << 20))
    assert made == list(requests(trace, BlockText(STREAM, 16), max_tokens=1 << 20))
    assert [len(each.prompt) for each in made] == trace.input_tokens.tolist()
    cut = list(requests(trace, BlockText(STREAM, 16), max_tokens=500))
    for whole, short in zip(made, cut, strict=True):
        assert short.prompt == whole.prompt[:500]


def test_blocks_of_different_ids_differ() -> None:
    text = BlockText([*range(64)] * 4, 8)  # the dullest text there may be
    blocks = {text.block(number) for number in range(20_000)}
    assert len(blocks) == 20_000
    assert {len(block) for block in blocks} == {8}
    with pytest.raises(BenchError, match="past the largest id"):
        text.block(64**4)


@pytest.mark.parametrize(
    ("stream", "size", "message"),
    [
        (STREAM[:40], 8, "make no blocks"),
        (STREAM[:100], 100, "make no blocks"),
        (STREAM, 4, "needs more than 4"),
    ],
)
def test_what_makes_no_blocks_is_an_error(stream: list[int], size: int, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        BlockText(stream, size)
