"""Measuring units on a running cluster: the state of the caches, the arrivals, the records.

    node-1: client, proxy, ingress, `b`, `a-near`  <-- link -->  node-2: `a`

A block of a unit:

    A's turns     each under a salt of its own, one after another, until its node's store has all
                  of it and B's store has heard of that; so every arm finds the same state
    B's turns     at their times, whatever has become of the others; each a stream (asking.py)
    records       when all is answered

A session has one salt for all its turns. Each is a block of its own: it comes when the stores have
all of the one before, and its node has heard of that; then an engine may have what it has computed
in this session, and a relay may go from B's node to A's.

Salts keep all requests apart, in caches and in stores. Whatever an arm is, an engine that has
tokens which it cannot have by that arm makes the unit worth nothing, and it is not kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import psutil

from kvrelay.bench.audit.arms import ARMS, CONTROL, Arm, Asked
from kvrelay.bench.audit.asking import AuditClient, Reply
from kvrelay.bench.audit.design import Ask, Unit
from kvrelay.bench.audit.material import Material, Prompts
from kvrelay.bench.audit.plan import SESSIONS, Plan
from kvrelay.bench.audit.rows import Around, Seen, kept_blocks, rows_of
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, SessionState
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.bench.hit import blocks_saved
from kvrelay.bench.places import Place, set_way
from kvrelay.bench.policies import SETTLING, WAY, Bench
from kvrelay.bench.policies_rows import Cell
from kvrelay.bench.quiet import Watched, cpu_s
from kvrelay.bench.report import Row
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B
from kvrelay.cluster.cli.console import err
from kvrelay.cluster.processes import marked_processes
from kvrelay.policies.modes import Mode

_STILL_S, _STILL_TIMEOUT_S, _POLL_S = 0.25, 20.0, 0.05
_MOST_FAILURES = 3
_OVERHEAD = ("scheduler_s", "worker_s", "copy_cpu_s")


@dataclass(frozen=True, slots=True)
class Processes:
    """The cluster's processes that are looked at.

    Attributes:
        engines: of all engines; `num_engines`, how many these are.
        stores: one on each node.
    """

    engines: tuple[psutil.Process, ...]
    stores: tuple[psutil.Process, ...]
    num_engines: int

    @classmethod
    def of(cls, session_id: str, num_engines: int) -> Processes:
        """Those of a running cluster."""
        engines, stores = [], []
        for process in marked_processes(session_id):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("VLLM::"):
                    engines.append(process)
                elif process.cmdline()[:1] == ["ray::KVStore"]:
                    stores.append(process)
        return cls(tuple(engines), tuple(stores), num_engines)

    def engine_bytes(self) -> int:
        """Resident memory of one engine in the mean, without what it shares with others."""
        total = 0
        for process in self.engines:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                total += memory.rss - memory.shared
        return total // max(1, self.num_engines)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request, ready to be sent; see `Seen`."""

    ask: Ask
    prompts: Prompts
    prompt: tuple[int, ...]
    agent: str
    salt: str
    first_s: float
    turn: int | None = None
    asked_before: bool = False
    kept_blocks: int | None = None


@dataclass(slots=True)
class Measurement:
    """Measures units; see `run.Executor`.

    Attributes:
        bench: the running cluster, warm.
        now_s: seconds since the run's start, which may have been in an earlier process.
        discarded: requests that were made to warm up, so far.
    """

    plan: Plan
    bench: Bench
    client: AuditClient
    material: Material
    processes: Processes
    now_s: Callable[[], float]
    discarded: int = 0
    kv_block_bytes: float | None = None
    _way: tuple[str, str] = WAY
    _overhead: dict[str, float] = field(default_factory=dict)
    _failures: int = 0

    @property
    def slowness(self) -> float:
        """Of this machine, against what estimates are made for."""
        return self.bench.slowness

    def measure(self, unit: Unit) -> list[Row]:
        """All rows of a unit.

        Raises:
            Miscount: an engine had what it cannot have.
            WrongPath: a relay did not go over its link.
            BenchError: A failed, or blocks were not saved or not heard of.
        """
        cell = _cell(unit.stratum)
        if self.bench.be_at(cell.link) and cell.link != SAME_NODE and "policy" in self._arms():
            self._take_way(ARMS[CONTROL], cell.link)
            for back in (False, True) if self.plan.goes_back() else (False,):
                self.bench.settle(cell, back)
                self.discarded += 2 * len(SETTLING)
        if unit.design == SESSIONS:
            return rows_of(unit, self._session(unit))
        texts = {ask.text for block in unit.blocks for ask in block}
        prompts = {text: self.material.pair(unit.stratum, text) for text in texts}
        blocks = [self._block(unit, block, prompts) for block in unit.blocks]
        for _, around in blocks:
            if around.block_s < unit.drain_times * around.drain_s:
                err.print(
                    f"{unit.key}: {around.block_s:.0f} s of arrivals are not {unit.drain_times:g} "
                    f"times the {around.drain_s:.0f} s that its queues took to empty",
                    style="yellow",
                    highlight=False,
                )
        return rows_of(unit, blocks)

    def _arms(self) -> set[str]:
        streams = {stream.treated for stream in self.plan.streams()}
        return streams | {arm.name for arm in self.plan.arms}

    def _block(
        self, unit: Unit, block: Sequence[Ask], prompts: dict[int, Prompts]
    ) -> tuple[list[Seen], Around]:
        cell = _cell(unit.stratum)
        _wait_still((self.bench.here, self.bench.there))
        turns = [self._first_turn(unit.stratum, ask, prompts[ask.text]) for ask in block]
        if cell.link != SAME_NODE and any(ARMS[ask.arm].asked is not Asked.POOL for ask in block):
            self.bench.here.wait_known(self.bench.there)
        self._take_way(ARMS[block[0].arm], cell.link)
        gap_s = self.bench.alone_s[cell.tokens] / unit.utilisation
        comes_s = list(accumulate(ask.gap * gap_s for ask in block))
        return self._watched(turns, comes_s, cell)

    def _session(self, unit: Unit) -> list[tuple[list[Seen], Around]]:
        """All turns of a session but the first, each a block; one that fails is the last."""
        ask, stratum, here = unit.blocks[0][0], unit.stratum, self.bench.here
        arm, cell = ARMS[ask.arm], _cell(stratum)
        prompts = self.material.pair(stratum, ask.text)
        session = self.material.session(stratum, ask.text, prompts, unit.shape, unit.turns)
        state = SessionState(session, arm.text_only)
        self.bench.gate.wait()  # A's first turn is part of what is compared
        _wait_still((here, self.bench.there))
        salt = self.bench.salt()
        place, owner = self._source(arm, ask, stratum)
        reply = self._opened(place, owner, prompts.first, salt, self.plan.message_tokens)
        # What relay costs from here on is of the turns that follow.
        self._overhead.update(_known_overhead(owner, self.client.record_of(reply.answer)))
        self._take_way(arm, cell.link)
        state.answered(reply.tokens)
        agents = (owner, B if arm.asked is Asked.RECEIVER else owner)
        asked, found = {owner: [prompts.first]}, list[tuple[list[Seen], Around]]()
        for number, turn in enumerate(session.turns[1:], HAND_OVER):
            agent = agents[turn.agent]
            at, other = (place, here) if agent == owner else (here, place)
            if cell.link != SAME_NODE and arm.asked is not Asked.POOL:
                at.wait_known(other)
            known, prompt = agent in asked, state.prompt(number)
            asked.setdefault(agent, []).append(prompt)
            read = replace(
                prompts,
                second=state.planned(number),
                shared_tokens=state.shared_tokens(number),
                task=turn.task,
            )
            sent = _Turn(
                ask, read, prompt, agent, salt, reply.e2e_s, number, known, kept_blocks(asked)
            )
            since = at.store.committed()
            found.append(self._watched([sent], [0.0], cell))
            (seen,) = found[-1][0]
            if seen.answer is None:
                break
            state.answered(seen.answer.tokens)
            if number < unit.turns:
                at.store.wait(since, 1)
                _wait_still((here, self.bench.there))
        return found

    def _watched(
        self, turns: Sequence[_Turn], comes_s: Sequence[float], cell: Cell
    ) -> tuple[list[Seen], Around]:
        """Send all at their times, on a quiet machine, and look their records up."""
        there = turns[0].agent == FAR
        received = self.bench.received_bytes(there)
        (seen, drain_s, cpu), watched = self.bench.gate.watch(lambda: self._stream(turns, comes_s))
        received = self.bench.received_bytes(there) - received
        self._count_failures(seen)
        seen = [self._with_record(each, cell, received) for each in seen]
        return seen, self._around(seen, watched, comes_s[-1], drain_s, cpu)

    def _first_turn(self, stratum: Stratum, ask: Ask, prompts: Prompts) -> _Turn:
        """A's turn, and the prompt that B is asked after it."""
        arm, salt = ARMS[ask.arm], self.bench.salt()
        place, agent = self._source(arm, ask, stratum)
        reply = self._opened(place, agent, prompts.first, salt, 1)
        prompt = prompts.second_after(reply.tokens) if arm.text_only else prompts.second
        to = agent if arm.asked is not Asked.RECEIVER else (B, NEAR)[ask.receiver]
        return _Turn(ask, prompts, prompt, to, salt, reply.e2e_s)

    def _opened(
        self, place: Place, agent: str, prompt: Sequence[int], salt: str, count: int
    ) -> Reply:
        """The answer of A's first turn; then its node's store has what it has computed."""
        since = place.store.committed()
        reply = self.client.ask(agent, prompt, Mode.RECOMPUTE, salt, count)
        if reply.cached_tokens:
            raise Miscount(f"agent '{agent}' had {reply.cached_tokens} tokens of a new prompt")
        # Nothing is computed for the last token.
        place.store.wait(since, blocks_saved(len(prompt) + count - 1))
        return reply

    def _source(self, arm: Arm, ask: Ask, stratum: Stratum) -> tuple[Place, str]:
        """Where A is, and its engine."""
        if arm.asked is Asked.POOL:
            return self.bench.here, B
        place, agent = self.bench.source(_cell(stratum))
        return place, (B if agent == NEAR and ask.receiver else agent)

    def _take_way(self, arm: Arm, link: str) -> None:
        """Have B's store read in the arm's codec."""
        way = (WAY[0], arm.codec or WAY[1])
        if link != SAME_NODE and way != self._way:
            set_way(*way)
            self._way = way

    def _stream(
        self, turns: Sequence[_Turn], comes_s: Sequence[float]
    ) -> tuple[list[Seen], float, float]:
        """Send all at their times.

        Returns:
            What came of each, how long all took from the last arrival, CPU seconds of the stores.
        """
        lock, going, stopped = threading.Lock(), 0, threading.Event()
        start_s, before_s = time.perf_counter(), cpu_s(self.processes.stores)

        def send(turn: _Turn, come_s: float) -> Seen:
            nonlocal going
            if stopped.wait(max(0.0, start_s + come_s - time.perf_counter())):
                raise BenchError("stopped")
            with lock:
                in_flight, going = going, going + 1
            sent_s, now_s = time.perf_counter(), self.now_s()
            reply: Reply | None = None
            mode = ARMS[turn.ask.arm].mode
            try:
                reply = self.client.ask(
                    turn.agent, turn.prompt, mode, turn.salt, self.plan.output_tokens
                )
            except BenchError as error:  # an outcome too
                err.print(error.message, style="yellow", highlight=False, markup=False)
            finally:
                with lock:
                    going -= 1
            return Seen(
                turn.ask,
                turn.prompts,
                len(turn.prompt),
                now_s,
                in_flight,
                turn.first_s,
                reply,
                time.perf_counter() - sent_s,
                {},
                turn.agent,
                turn.turn,
                turn.asked_before,
                turn.kept_blocks,
            )

        with ThreadPoolExecutor(len(turns)) as pool:
            try:
                seen = list(pool.map(send, turns, comes_s))
            except BaseException:  # a signal: what has not been sent is not
                stopped.set()
                raise
        drain_s = max(0.0, time.perf_counter() - start_s - comes_s[-1])
        return seen, drain_s, cpu_s(self.processes.stores) - before_s

    def _count_failures(self, seen: Sequence[Seen]) -> None:
        """What becomes of a request is an outcome, unless nothing comes of any.

        Raises:
            BenchError: nothing has come of whole blocks in a row.
        """
        failed = all(each.answer is None for each in seen)
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= _MOST_FAILURES:
            raise BenchError(f"no request of {self._failures} blocks in a row was answered")

    def _with_record(self, seen: Seen, cell: Cell, received: int) -> Seen:
        """With its record, after a check that it has had what its arm gives and no more.

        Raises:
            Miscount, WrongPath: it has not.
        """
        if seen.answer is None:
            return seen
        record = self.client.record_of(seen.answer.answer)
        arm, relayed = ARMS[seen.ask.arm], int(record["relayed_tokens"])
        own = 0
        if arm.asked is not Asked.RECEIVER or seen.asked_before:
            own = int(record["local_tokens"])
        if seen.answer.cached_tokens != relayed + own or (relayed and not arm.relays):
            raise Miscount(
                f"{seen.ask.arm}, {cell.link}, {len(seen.prompts.second)} tokens: vLLM of agent "
                f"'{seen.agent}' counts {seen.answer.cached_tokens} cached prompt tokens, where "
                f"{relayed} were relayed and {own} its own ({record['reason']})"
            )
        if relayed:
            if not _is_of_own_node(seen, cell, record):
                self.bench.check_path(cell, record, received, seen.agent == FAR)
            blocks = -(-relayed // BLOCK_TOKENS)
            self.kv_block_bytes = float(record["num_bytes"]) / blocks
        return replace(seen, record=record)

    def _around(
        self,
        seen: Sequence[Seen],
        watched: Watched,
        block_s: float,
        drain_s: float,
        store_cpu_s: float,
    ) -> Around:
        cpu_s_each: float | None = None
        grown, known = 0.0, True
        for agent in {each.agent for each in seen}:
            so_far = [_overhead_s(each.record) for each in seen if each.agent == agent]
            latest = max((value for value in so_far if value is not None), default=None)
            known &= latest is not None and agent in self._overhead
            if latest is not None:
                grown += latest - self._overhead.get(agent, latest)
                self._overhead[agent] = latest
        if known:
            cpu_s_each = (max(0.0, grown) + max(0.0, store_cpu_s)) / len(seen)
        engine_bytes = self.processes.engine_bytes()
        return Around(watched, block_s, drain_s, cpu_s_each, engine_bytes, self.kv_block_bytes)


def _cell(stratum: Stratum) -> Cell:
    """As the benchmarks' bed knows it; what is shared differs from pair to pair."""
    return Cell(0.5, stratum.tokens, stratum.link)


def _is_of_own_node(seen: Seen, cell: Cell, record: Mapping[str, Any]) -> bool:
    """Whether a later turn of a session found in its node's store what an earlier one left."""
    return seen.asked_before and cell.link != SAME_NODE and record["load_path"] != "nodes"


def _known_overhead(agent: str, record: Mapping[str, Any]) -> dict[str, float]:
    """What an agent's connector has taken so far, if the record tells."""
    so_far = _overhead_s(record)
    return {} if so_far is None else {agent: so_far}


def _overhead_s(record: Any) -> float | None:
    """CPU seconds of an engine's connector so far; None if the record does not tell."""
    overhead = record.get("overhead") or {}
    if not set(_OVERHEAD) <= set(overhead):
        return None
    return float(sum(overhead[name] for name in _OVERHEAD))


def _wait_still(places: Sequence[Place]) -> None:
    """Until nothing more is saved of earlier requests.

    Raises:
        BenchError: it does not end.
    """

    def committed() -> int:
        return sum(place.store.committed() for place in places)

    end_s = time.monotonic() + _STILL_TIMEOUT_S
    count, since_s = committed(), time.monotonic()
    while time.monotonic() - since_s < _STILL_S:
        if time.monotonic() > end_s:
            raise BenchError(f"a store is still being written to after {_STILL_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
        if (now := committed()) != count:
            count, since_s = now, time.monotonic()
