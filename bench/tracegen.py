"""Generates request streams from a profile: a radix tree of prompts, and sessions that grow it.

A session picks an application's system prompt, perhaps goes on with a document that other
sessions read too, and then with text of its own; every later turn appends the last answer and
new text. A stretch of tokens below a given beginning is a node, and a block belongs to the node
in which its last token lies, so that a node's blocks have consecutive ids.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.trace_profiles import Application, Profile
from kvrelay.bench.traces import Trace

# Sessions begin so long before the trace does, so that it starts in full swing.
_LEAD_S = 1800.0
_Row = tuple[float, int, int, int, int]  # time, input, output, session, turn


def generate(profile: Profile, seed: int) -> Trace:
    """A trace of this profile; the same seed gives the same trace."""
    return _Generator(profile, seed).run()


@dataclass(slots=True)
class _Node:
    """A stretch of tokens below a parent: its blocks are those whose last token lies in it."""

    end: int
    first_block: int
    num_blocks: int


@dataclass(slots=True)
class _Session:
    number: int
    application: Application
    pieces: list[NDArray[np.int64]]
    end: int
    turn: int = 0
    seen_turns: int = 0


class _Generator:
    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._rng = np.random.default_rng(seed)
        self._next_block = 0
        self._popularity = [_zipf(app.num_prompts, app.skew) for app in profile.applications]
        self._shares = np.cumsum([app.share for app in profile.applications])
        self._prompts: dict[tuple[int, int], _Node] = {}
        self._readings: dict[tuple[int, int], deque[_Node]] = {}

    def run(self) -> Trace:
        """Requests in order of time until there are as many as the profile asks for."""
        profile, rng = self._profile, self._rng
        between_s = profile.duration_s / profile.num_requests * profile.mean_turns
        shape = profile.burstiness**-2
        rows: list[_Row] = []
        blocks: list[NDArray[np.int64]] = []
        events: list[tuple[float, int, _Session | None]] = [(-_LEAD_S, -1, None)]
        number = 0
        while len(rows) < profile.num_requests:
            time_s, _, session = heapq.heappop(events)
            if session is None:
                session = self._begin(number)
                number += 1
                next_s = time_s + rng.gamma(shape, between_s / shape)
                heapq.heappush(events, (next_s, -1, None))
            app = session.application
            output = app.output.tokens(rng)
            if time_s >= 0:
                rows.append((time_s, session.end, output, session.number, session.seen_turns))
                blocks.append(np.concatenate(session.pieces))
                session.seen_turns += 1
            if self._goes_on(session, output):
                gap_s = app.gap_s.draw(rng)
                heapq.heappush(events, (time_s + gap_s, session.number, session))
        return _as_trace(profile, rows, blocks)

    def _begin(self, number: int) -> _Session:
        rng = self._rng
        which = _draw(self._shares, rng)
        app = self._profile.applications[which]
        prompt = which, _draw(self._popularity[which], rng)
        if prompt not in self._prompts:
            self._prompts[prompt] = self._node(0, app.prompt.at(_spread(prompt[1])))
            self._readings[prompt] = deque(maxlen=app.recent_documents)
        nodes = [self._prompts[prompt]]
        if rng.random() < app.document_share:
            nodes.append(self._document(app, nodes[0], self._readings[prompt]))
        nodes.append(self._node(nodes[-1].end, app.first.tokens(rng)))
        return _Session(number, app, [_range(node) for node in nodes], nodes[-1].end)

    def _document(self, app: Application, prompt: _Node, readings: deque[_Node]) -> _Node:
        rng = self._rng
        if not readings or rng.random() < app.new_document_share:
            document = self._node(prompt.end, app.document.tokens(rng))
        else:
            document = readings[int(rng.integers(len(readings)))]
        readings.append(document)
        return document

    def _goes_on(self, session: _Session, output: int) -> bool:
        """Append the next turn to a session, unless it ends here."""
        app, rng = session.application, self._rng
        session.turn += 1
        if rng.random() >= (app.second_turn if session.turn == 1 else app.next_turn):
            return False
        more = output + app.more.tokens(rng)
        if session.end + more > self._profile.max_input_tokens:
            return False
        node = self._node(session.end, more)
        session.pieces.append(_range(node))
        session.end = node.end
        return True

    def _node(self, start: int, num_tokens: int) -> _Node:
        end = start + num_tokens
        size = self._profile.block_tokens
        node = _Node(end, self._next_block, end // size - start // size)
        self._next_block += node.num_blocks
        return node


def _range(node: _Node) -> NDArray[np.int64]:
    return np.arange(node.first_block, node.first_block + node.num_blocks)


def _spread(rank: int) -> float:
    """The quantile of the length of the system prompt with this rank.

    Evenly spread, the most popular in the middle: drawn at random, the length of a few popular
    prompts would make traces of one profile differ more than all else.
    """
    return (0.5 + rank * (math.sqrt(5) - 1) / 2) % 1


def _zipf(count: int, skew: float) -> NDArray[np.float64]:
    """Cumulative weights."""
    return np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -skew)


def _draw(cumulative: NDArray[np.float64], rng: np.random.Generator) -> int:
    """A number, by its weight."""
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], "right"))


def _as_trace(profile: Profile, rows: list[_Row], blocks: list[NDArray[np.int64]]) -> Trace:
    columns = (np.array(column) for column in zip(*rows, strict=True))
    times_s, inputs, outputs, sessions, turns = columns
    dense = np.unique(np.concatenate(blocks), return_inverse=True)[1]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in blocks])])
    return Trace(
        profile.name,
        profile.block_tokens,
        times_s - times_s[0],
        inputs,
        outputs,
        sessions,
        turns,
        starts,
        dense.astype(np.int64),
    )
