"""Traces: requests as sequences of block ids; readers of the public formats; statistics.

A block's id stands for its tokens *and all before them*, so equal ids are reusable KV, and the
block before an id is always the same one. Both public formats are JSON lines with `hash_ids`:

    Mooncake   {"timestamp": ms, "input_length", "output_length", "hash_ids"}       512 tokens
    Bailian    {"chat_id", "parent_chat_id", "timestamp": s, ..., "turn", "hash_ids"}   16 tokens

Sources: github.com/kvcache-ai/Mooncake, FAST25-release; alibaba-edu/qwen-bailian-usagetraces-anon.
Bailian's ids name a block's own tokens only, so both are folded into prefix ids here.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.errors import BenchError

Ints = NDArray[np.int64]
MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival; request i has blocks[starts[i] : starts[i + 1]].

    Attributes:
        name: what it is called in reports.
        block_tokens: tokens of a full block.
        times_s: arrival of each request, from the first one on.
        input_tokens: length of each prompt.
        output_tokens: length of each answer.
        sessions: which requests belong together; a number of its own for each if unknown.
        turns: 0 for a session's first request.
        starts: where each request's blocks begin; one more than there are requests.
        blocks: prefix ids, dense from 0.
    """

    name: str
    block_tokens: int
    times_s: NDArray[np.float64]
    input_tokens: Ints
    output_tokens: Ints
    sessions: Ints
    turns: Ints
    starts: Ints
    blocks: Ints

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def num_blocks(self) -> int:
        """Different blocks: the footprint that capacities are fractions of."""
        return int(self.blocks.max()) + 1 if len(self.blocks) else 0

    def request_blocks(self, number: int) -> Ints:
        """Block ids of one request, in prefix order."""
        return self.blocks[self.starts[number] : self.starts[number + 1]]

    def first_seen(self) -> NDArray[np.bool_]:
        """For each block of each request, whether no request before had it."""
        new = np.zeros(len(self.blocks), np.bool_)
        new[np.unique(self.blocks, return_index=True)[1]] = True
        return new


def regrouped(trace: Trace, block_tokens: int) -> Trace:
    """The same requests in larger blocks.

    Raises:
        BenchError: larger blocks are no whole number of the trace's.
    """
    factor, rest = divmod(block_tokens, trace.block_tokens)
    if rest or not factor:
        raise BenchError(f"{trace.name} has blocks of {trace.block_tokens} tokens")
    lengths = np.diff(trace.starts) // factor
    starts = np.concatenate([[0], np.cumsum(lengths)])
    # The last of the small blocks stands for all before it, so for the large block too.
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    last = np.repeat(trace.starts[:-1], lengths) + (places + 1) * factor - 1
    blocks = np.unique(trace.blocks[last], return_inverse=True)[1]
    return replace(trace, block_tokens=block_tokens, starts=starts, blocks=blocks)


def read_jsonl(file: Path) -> Trace:
    """A trace in Mooncake's or Bailian's format; which, its first line tells.

    Raises:
        BenchError: the file cannot be read as one of them; the message names the line.
    """
    records: list[tuple[float, int, int, int, int, list[int]]] = []
    chats: dict[int, tuple[int, int]] = {}  # chat: its session, its turn
    bailian = False
    for number, line in enumerate(_lines(file), 1):
        try:
            record: dict[str, Any] = json.loads(line)
            bailian = "chat_id" in record
            session, turn = number, 0
            if bailian:
                parent = chats.get(record["parent_chat_id"])
                session, turn = (number, 0) if parent is None else (parent[0], parent[1] + 1)
                chats[record["chat_id"]] = session, turn
            time_s = record["timestamp"] if bailian else record["timestamp"] / 1000
            lengths = int(record["input_length"]), int(record["output_length"])
            records.append((float(time_s), *lengths, session, turn, list(record["hash_ids"])))
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(f"{file}, line {number}: not a request: {error!r}") from error
    if not records:
        raise BenchError(f"{file} holds no requests")
    records.sort(key=lambda record: record[0])  # stable: equal times stay in the file's order
    blocks, starts = array("q"), array("q", [0])
    ids: dict[tuple[int, int], int] = {}
    for *_, hashes in records:
        block = -1
        for content in hashes:
            block = ids.setdefault((block, content), len(ids))
            blocks.append(block)
        starts.append(len(blocks))
    columns = list(zip(*(record[:5] for record in records), strict=True))
    times_s = np.array(columns[0], np.float64)
    size = BAILIAN_BLOCK_TOKENS if bailian else MOONCAKE_BLOCK_TOKENS
    integers = [np.array(column, np.int64) for column in columns[1:]]
    places = [np.array(each, np.int64) for each in (starts, blocks)]
    return Trace(file.stem, size, times_s - times_s[0], *integers, *places)


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            yield from (line for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{file} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """What the published descriptions of traces tell.

    Ratios of hits are of full blocks with an unlimited cache. A hit is of the same session if
    that session computed the block first.
    """

    requests: int
    duration_s: float
    input_mean_tokens: float
    input_p50_tokens: float
    input_p99_tokens: float
    output_mean_tokens: float
    output_p50_tokens: float
    follow_up_share: float
    gap_p50_s: float
    gap_p90_s: float
    ideal_hit_ratio: float
    same_session_share: float
    first_blocks: int
    top3_first_block_share: float
    reused_block_share: float
    first_reuse_p50_s: float


def describe(trace: Trace) -> TraceStatistics:
    """The statistics of a trace."""
    new = trace.first_seen()
    lengths = np.diff(trace.starts)
    owner = np.repeat(np.arange(len(trace)), lengths)  # request of each block
    creator = np.empty(trace.num_blocks, np.int64)
    creator[trace.blocks[new]] = trace.sessions[owner[new]]
    same = creator[trace.blocks[~new]] == trace.sessions[owner[~new]]
    firsts = np.bincount(trace.blocks[trace.starts[:-1][lengths > 0]])
    firsts = np.sort(firsts[firsts > 0])[::-1]
    again_s = _first_reuse_s(trace, new, trace.times_s[owner])
    order = np.lexsort((trace.turns, trace.sessions))
    follows = np.diff(trace.sessions[order]) == 0
    gaps_s = np.diff(trace.times_s[order])[follows]
    return TraceStatistics(
        requests=len(trace),
        duration_s=float(trace.times_s[-1]),
        input_mean_tokens=float(trace.input_tokens.mean()),
        input_p50_tokens=float(np.median(trace.input_tokens)),
        input_p99_tokens=float(np.percentile(trace.input_tokens, 99)),
        output_mean_tokens=float(trace.output_tokens.mean()),
        output_p50_tokens=float(np.median(trace.output_tokens)),
        follow_up_share=float((trace.turns > 0).mean()),
        gap_p50_s=float(np.median(gaps_s)) if len(gaps_s) else float("nan"),
        gap_p90_s=float(np.percentile(gaps_s, 90)) if len(gaps_s) else float("nan"),
        ideal_hit_ratio=float(1 - new.mean()),
        same_session_share=float(same.mean()) if len(same) else float("nan"),
        first_blocks=len(firsts),
        top3_first_block_share=float(firsts[:3].sum() / firsts.sum()),
        reused_block_share=len(again_s) / trace.num_blocks,
        first_reuse_p50_s=float(np.median(again_s)) if len(again_s) else float("nan"),
    )


def _first_reuse_s(
    trace: Trace, new: NDArray[np.bool_], times_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds between a block's first and second use, of the blocks that have one."""
    created_s = np.empty(trace.num_blocks)
    created_s[trace.blocks[new]] = times_s[new]
    later, first = np.unique(trace.blocks[~new], return_index=True)
    return times_s[~new][first] - created_s[later]
