"""A cluster of any size in one process: the policies of real engines, replayed on a trace.

    request -> engine's queue -> decision -+- recompute -----------------> step -> first token
               (FIFO)                      +- load: arena, links (FIFO) -^

What an engine does with its queue is what vLLM does. Before each step it takes requests in order
for as long as their tokens fit; one that is to be relayed is parked while its load is under way,
which holds up nobody behind it, and goes first once that has ended; a worker on CPUs comes to the
load when the step that is about to run is over. What a step has computed is in the engine's cache
and its node's store at the end of it. A load that misses its deadline keeps the blocks that came in
time, as a real one does.

Not simulated: decoding, chunks of a prompt, blocks that are only begun (which engines relay too),
codecs, failures. Noise is drawn per request, the same for all policies, so that these are compared
on equal luck.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvrelay.bench.replayed import Load, Step, teach
from kvrelay.bench.simulate_nodes import Blocks, Links, Stores
from kvrelay.bench.simulate_world import Simulated, World
from kvrelay.bench.traces import Trace
from kvrelay.policies import Arm, Candidate, RelayPolicy, RelayView, parse_policy
from kvrelay.policies.costs import Costs
from kvrelay.policies.prefill import NO_WORK, Work


def simulate(
    trace: Trace, world: World, policy: str, agents: Sequence[int], seed: int
) -> Simulated:
    """Replay a whole trace, from empty caches on.

    Args:
        trace: what is asked, and when.
        world: who is there to answer.
        policy: what every engine has an instance of, see `parse_policy`.
        agents: who is asked, for each request.
        seed: of the noise.

    Raises:
        ValueError: there is no such policy.
    """
    return _Simulation(trace, world, policy, agents, seed).run()


@dataclass(slots=True)
class _Request:
    number: int
    arrived_s: float
    tokens: int
    blocks: list[int]
    local_blocks: int = 0
    cached_blocks: int = 0
    place: str = ""
    load_end: int = 0  # the first block that it does not load
    num_bytes: int = 0  # that have to come for it; what is in the arena counts if all is
    bytes_ahead: int = 0
    began_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)  # of the blocks that it loads
    fetched: list[int] = field(default_factory=list)  # blocks that it has asked other nodes for


@dataclass(slots=True)
class _Engine:
    node: int
    policy: RelayPolicy
    cache: Blocks
    waiting: deque[_Request] = field(default_factory=deque)
    loaded: deque[_Request] = field(default_factory=deque)
    loading: dict[int, _Request] = field(default_factory=dict)
    step: list[_Request] = field(default_factory=list)
    step_s: float = 0.0
    handed_over: list[_Request] = field(default_factory=list)  # to load, behind the step


class _Simulation:
    def __init__(
        self, trace: Trace, world: World, policy: str, agents: Sequence[int], seed: int
    ) -> None:
        self._trace, self._world, self._agents = trace, world, agents
        self._block_bytes = trace.block_tokens * world.bytes_per_token
        self._stores = Stores(world.num_nodes, world.store_bytes // self._block_bytes)
        nodes = [world.links[node % len(world.links)] for node in range(world.num_nodes)]
        fixed_s = [world.transfer_fixed_s + link.rtt_s for link in nodes]
        self._links = Links([world.bytes_per_s(link) for link in nodes], fixed_s)
        # Per node: blocks that have been asked for, and when they come.
        self._coming: list[dict[int, float]] = [{} for _ in nodes]
        engine_blocks = world.engine_bytes // self._block_bytes
        self._engines = [
            _Engine(
                agent % world.num_nodes,
                parse_policy(policy, Costs(world.max_tokens)),
                Blocks(engine_blocks),
            )
            for agent in range(world.num_agents)
        ]
        count = len(trace)
        rng = np.random.default_rng(seed)
        noise = np.exp(world.noise * rng.standard_normal((2, count)))
        self._prefill_noise, self._load_noise = noise.tolist()
        self._draws = rng.random(count).tolist()
        self._events: list[tuple[float, int, _Engine, _Request | None]] = []
        self._num_events = 0
        self._ended = np.zeros(count, np.bool_)
        self._result = Simulated(
            ttft_s=np.zeros(count),
            started_s=np.zeros(count),
            prompt_tokens=np.zeros(count, np.int64),
            local_tokens=np.zeros(count, np.int64),
            relayed_tokens=np.zeros(count, np.int64),
            wire_bytes=np.zeros(count, np.int64),
            given_up=np.zeros(count, np.bool_),
            link_busy_s=0.0,
        )

    def run(self) -> Simulated:
        """Every request arrives, perhaps loads, and ends with a step."""
        for number, time_s in enumerate(self._trace.times_s.tolist()):
            request = self._request(number, time_s)
            self._push(time_s, self._engines[self._agents[number]], request)
        while self._events:
            now_s, _, engine, about = heapq.heappop(self._events)
            if about is None:
                self._end_step(engine, now_s)
            elif about.number in engine.loading:
                self._end_load(engine, about, now_s)
            else:
                engine.waiting.append(about)
            if not engine.step:
                self._start_step(engine, now_s)
        if not self._ended.all():
            raise RuntimeError(f"{int((~self._ended).sum())} requests have not ended")
        return replace(self._result, link_busy_s=self._links.busy_s)

    def _request(self, number: int, time_s: float) -> _Request:
        tokens = min(int(self._trace.input_tokens[number]), self._world.max_tokens)
        count = -(-tokens // self._trace.block_tokens)
        blocks = self._trace.request_blocks(number)[:count].tolist()
        self._result.prompt_tokens[number] = tokens
        return _Request(number, time_s, tokens, blocks)

    def _push(self, time_s: float, engine: _Engine, request: _Request | None) -> None:
        """An event: a request arrives or has loaded, or, without one, a step ends."""
        heapq.heappush(self._events, (time_s, self._num_events, engine, request))
        self._num_events += 1

    # Steps

    def _start_step(self, engine: _Engine, now_s: float) -> None:
        cost = self._world.prefill
        room, seconds = self._world.max_tokens, cost.fixed_s
        while (request := self._admit(engine, room, now_s)) is not None:
            engine.step.append(request)
            room -= self._prompt(request)[1]
            seconds += self._added_s(request)
            self._result.started_s[request.number] = now_s
        if engine.step:
            engine.step_s = seconds
            self._push(now_s + seconds, engine, None)
        else:
            self._begin_loads(engine, now_s)

    def _admit(self, engine: _Engine, room: int, now_s: float) -> _Request | None:
        """The next request to compute, if it fits; loads that come before it begin."""
        if engine.loaded:
            return engine.loaded.popleft() if self._fits(engine.loaded[0], room) else None
        while engine.waiting:
            request = engine.waiting[0]
            end = self._decide(engine, request, now_s)
            if end > request.local_blocks:
                engine.waiting.popleft()
                self._hand_over(engine, request, end)
            else:
                return engine.waiting.popleft() if self._fits(request, room) else None
        return None

    def _fits(self, request: _Request, room: int) -> bool:
        return self._prompt(request)[1] <= room

    def _end_step(self, engine: _Engine, now_s: float) -> None:
        step, engine.step = engine.step, []
        for request in step:
            self._end(engine, request, now_s)
        teach(engine.policy, Step(tuple(self._prompt(each) for each in step), engine.step_s))
        self._begin_loads(engine, now_s)

    def _end(self, engine: _Engine, request: _Request, now_s: float) -> None:
        number, result = request.number, self._result
        if self._ended[number]:
            raise RuntimeError(f"request {number} ends twice")
        self._ended[number] = True
        local = self._tokens(request, request.local_blocks)
        cached = self._tokens(request, request.cached_blocks)
        result.ttft_s[number] = now_s - request.arrived_s
        result.local_tokens[number] = local
        result.relayed_tokens[number] = cached - local
        engine.cache.add(request.blocks)
        self._stores.add(engine.node, request.blocks)

    # Decisions

    def _decide(self, engine: _Engine, request: _Request, now_s: float) -> int:
        """The first block that is not to be relayed: that of the local hit to recompute."""
        blocks, store = request.blocks, self._stores.of(engine.node)
        local = engine.cache.leading(blocks)
        request.local_blocks = request.cached_blocks = local
        near = local + store.leading(blocks[local:])
        held = near
        coming = self._coming[engine.node]
        while held < len(blocks) and (
            blocks[held] in store or blocks[held] in coming or self._stores.holders(blocks[held])
        ):
            held += 1
        local_tokens = self._tokens(request, local)
        ends: dict[int, tuple[int, str]] = {}  # by tokens: where it ends, and the slowest place
        for end, place in ((held, "nodes" if held > near else "arena"), (near, "arena")):
            if (num_tokens := self._tokens(request, end) - local_tokens) > 0:
                ends.setdefault(num_tokens, (end, place))
        if not ends or len(engine.loading) >= self._world.max_loads_in_flight:
            return local
        view = RelayView(
            prompt_tokens=request.tokens,
            local_tokens=local_tokens,
            candidates=tuple(
                Candidate(
                    place,
                    num_tokens,
                    self._bytes(end - local),
                    absent_bytes=self._bytes(sum(block not in store for block in blocks[near:end])),
                    bytes_ahead=self._bytes_ahead(engine, place),
                )
                for num_tokens, (end, place) in ends.items()
            ),
            requests_waiting=len(engine.waiting),
            requests_running=len(engine.step) + len(engine.loading) + len(engine.loaded),
            loads_in_flight=len(engine.loading),
            bytes_in_flight=sum(self._load_bytes(each) for each in engine.loading.values()),
            ahead=self._ahead(engine),
            draw=self._draws[request.number],
        )
        decision = engine.policy.decide(view)
        if decision.arm is not Arm.RELAY:
            return local
        if decision.num_tokens not in ends:
            raise RuntimeError(f"{engine.policy.name} asks for {decision.num_tokens} tokens")
        end, request.place = ends[decision.num_tokens]
        return end

    def _ahead(self, engine: _Engine) -> Work:
        """What the step computes that is being put together."""
        ahead = NO_WORK
        for each in engine.step:
            ahead = ahead.plus(Work.of(*self._prompt(each)))
        return ahead

    # Loads

    def _hand_over(self, engine: _Engine, request: _Request, end: int) -> None:
        """Park a request until its load is over."""
        request.load_end = end
        store = self._stores.of(engine.node)
        blocks = request.blocks[request.local_blocks : end]
        absent = sum(block not in store for block in blocks)
        request.num_bytes = self._bytes(absent or len(blocks))
        request.bytes_ahead = self._bytes_ahead(engine, request.place)
        engine.loading[request.number] = request
        engine.handed_over.append(request)

    def _begin_loads(self, engine: _Engine, now_s: float) -> None:
        """A worker on CPUs comes to what it was handed over when its step is over."""
        requests, engine.handed_over = engine.handed_over, []
        for request in requests:
            request.began_s = now_s
            until_s = now_s + self._world.load_deadline_s
            blocks = request.blocks[request.local_blocks : request.load_end]
            request.arrivals_s = self._fetch(engine, request, blocks, now_s)
            there_s = max([now_s, *filter(math.isfinite, request.arrivals_s)])
            copy_s = self._load_bytes(request) / self._world.copy_bytes_per_s
            own_s = self._load_noise[request.number] * (self._world.relay_fixed_s + copy_s)
            self._push(min(there_s + own_s, until_s), engine, request)

    def _fetch(
        self, engine: _Engine, request: _Request, blocks: Sequence[int], now_s: float
    ) -> list[float]:
        """Ask other nodes for what is not here and not on its way: the one that is free first.

        Returns:
            When each block comes; infinity if nobody has it any more.
        """
        store, coming = self._stores.of(engine.node), self._coming[engine.node]
        runs: list[tuple[int, list[int]]] = []
        for block in blocks:
            if block in store or block in coming:
                continue
            holders = self._stores.holders(block)
            if not holders:
                break  # evicted since the decision; without it, the rest is of no use
            if not runs or runs[-1][0] not in holders:
                free_s = {node: self._links.sends_until_s(node) for node in holders}
                runs.append((min(sorted(holders), key=free_s.__getitem__), []))
            runs[-1][1].append(block)
        slowdown = self._load_noise[request.number]
        for source, run in runs:
            num_bytes = self._bytes(len(run))
            begin_s, end_s = self._links.send(source, engine.node, num_bytes, now_s, slowdown)
            for count, block in enumerate(run, 1):
                coming[block] = begin_s + (end_s - begin_s) * count / len(run)
            self._stores.of(source).use(run)
            request.fetched += run
            self._result.wire_bytes[request.number] += num_bytes
        return [coming.get(block, now_s if block in store else math.inf) for block in blocks]

    def _end_load(self, engine: _Engine, request: _Request, now_s: float) -> None:
        del engine.loading[request.number]
        coming = self._coming[engine.node]
        in_time = [block for block in request.fetched if coming[block] <= now_s]
        for block in request.fetched:
            del coming[block]
        self._stores.add(engine.node, in_time)
        late = (place for place, time_s in enumerate(request.arrivals_s) if time_s > now_s)
        loaded = next(late, len(request.arrivals_s))
        request.cached_blocks = request.local_blocks + loaded
        self._result.given_up[request.number] = loaded < len(request.arrivals_s)
        load = Load(
            place=request.place,
            num_bytes=request.num_bytes,
            loaded_bytes=max(0, request.num_bytes - self._bytes(len(request.arrivals_s) - loaded)),
            bytes_ahead=request.bytes_ahead,
            seconds=now_s - request.began_s,
        )
        teach(engine.policy, load)
        first = request.local_blocks
        self._stores.of(engine.node).use(request.blocks[first : first + loaded])
        engine.loaded.append(request)

    # Measures

    def _bytes(self, num_blocks: int) -> int:
        """KV of so many blocks."""
        return num_blocks * self._block_bytes

    def _load_bytes(self, request: _Request) -> int:
        """What a request loads."""
        return self._bytes(request.load_end - request.local_blocks)

    def _tokens(self, request: _Request, num_blocks: int) -> int:
        """Tokens that these blocks spare; the last one of a prompt is always computed."""
        return min(num_blocks * self._trace.block_tokens, request.tokens - 1)

    def _prompt(self, request: _Request) -> tuple[int, int]:
        """Tokens of a prompt that need not be computed, and those that are."""
        cached = self._tokens(request, request.cached_blocks)
        return cached, request.tokens - cached

    def _bytes_ahead(self, engine: _Engine, place: str) -> int:
        """What is to come for loads under way that come from the same place."""
        return sum(each.num_bytes for each in engine.loading.values() if each.place == place)

    def _added_s(self, request: _Request) -> float:
        """What a request adds to its step."""
        cached = self._tokens(request, request.cached_blocks)
        seconds = float(self._world.prefill.added_s(cached, request.tokens))
        return self._prefill_noise[request.number] * seconds
