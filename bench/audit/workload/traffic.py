"""Requests of a trace as prompts: equal block ids, equal tokens, on every machine.

A trace (bench/traces.py: Mooncake's and Bailian's files, or generated) has lengths and ids of
blocks, no text. Here every id is spelt out in the first tokens of its block and the rest of the
block is real text, chosen by the id. So two prompts share exactly the blocks that their ids say,
and texts that happen to be alike add none. A block may be made smaller than the trace's, to fit
traces of long prompts into a small model's context: every length shrinks alike and which blocks
are shared stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvrelay.bench.errors import BenchError
from kvrelay.bench.traces import Trace

# Digits of an id: 64 ** 4 is more than any trace's blocks.
_BASE = 64
_ID_TOKENS = 4
# Neighbouring ids begin far apart in the text; prime.
_STRIDE = 7919


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        time_s: its arrival, from the trace's beginning on.
        session: number of its session.
        turn: 0 for a session's first request.
        prompt: token ids.
        output_tokens: length of the answer.
    """

    time_s: float
    session: int
    turn: int
    prompt: tuple[int, ...]
    output_tokens: int


class BlockText:
    """The tokens of blocks by their ids."""

    def __init__(self, stream: Sequence[int], block_tokens: int) -> None:
        """Take real text in token ids, and the size of a block.

        Raises:
            BenchError: the text has too few different tokens or is too short, or a block has no
                room for its id.
        """
        self.block_tokens = block_tokens
        self._stream = tuple(stream)
        self._digits = tuple(dict.fromkeys(self._stream))[:_BASE]
        if len(self._digits) < _BASE or len(self._stream) <= block_tokens:
            raise BenchError(f"{len(self._stream)} tokens of text make no blocks")
        if block_tokens <= _ID_TOKENS:
            raise BenchError(f"a block needs more than {_ID_TOKENS} tokens, got {block_tokens}")

    def block(self, number: int) -> tuple[int, ...]:
        """The tokens of a block; different ids have different ones.

        Raises:
            BenchError: the id is too large.
        """
        rest, spelt = number, []
        for _ in range(_ID_TOKENS):
            rest, digit = divmod(rest, _BASE)
            spelt.append(self._digits[digit])
        if rest:
            raise BenchError(f"block {number} is past the largest id, {_BASE**_ID_TOKENS - 1}")
        return (*spelt, *self._text(number, self.block_tokens - _ID_TOKENS))

    def tail(self, request: int, num_tokens: int) -> tuple[int, ...]:
        """Tokens after the last block of a request: under one block, and nobody else's."""
        # Ids from the end of their range, which traces do not reach.
        return self.block(_BASE**_ID_TOKENS - 1 - request)[:num_tokens]

    def _text(self, number: int, count: int) -> tuple[int, ...]:
        start = number * _STRIDE % (len(self._stream) - count)
        return self._stream[start : start + count]


def requests(trace: Trace, text: BlockText, max_tokens: int) -> Iterator[TraceRequest]:
    """The requests of a trace, in the order of their arrival.

    Args:
        trace: lengths and block ids.
        text: what blocks consist of; lengths shrink as its blocks are smaller than the trace's.
        max_tokens: longer prompts are cut to their first so many tokens.
    """
    scale = text.block_tokens / trace.block_tokens
    for number in range(len(trace)):
        wanted = max(1, min(max_tokens, round(int(trace.input_tokens[number]) * scale)))
        prompt: list[int] = []
        for block in trace.request_blocks(number).tolist():
            if len(prompt) >= wanted:
                break
            prompt += text.block(block)
        if len(prompt) < wanted:  # the trace names full blocks only
            prompt += text.tail(number, wanted - len(prompt))
        yield TraceRequest(
            float(trace.times_s[number]),
            int(trace.sessions[number]),
            int(trace.turns[number]),
            tuple(prompt[:wanted]),
            max(1, round(int(trace.output_tokens[number]) * scale)),
        )
