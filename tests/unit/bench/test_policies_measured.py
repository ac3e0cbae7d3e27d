"""`bench policies`: that pairs and rounds are measured as they should, in which order, and tails
and predictions from them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

import pytest

from kvrelay.bench import policies, policies_plan, policies_predictions, policies_tail
from kvrelay.bench.answers import Answer
from kvrelay.bench.errors import Miscount, WrongPath
from kvrelay.bench.hit import local_hit_tokens, prefill_estimate_s
from kvrelay.bench.places import Place
from kvrelay.bench.policies_aims import aims
from kvrelay.bench.policies_live import Live
from kvrelay.bench.policies_plan import (
    BURST,
    TAIL_BURST,
    estimate_s,
    grid,
    passes,
    smoke_grid,
    stages,
    visits,
)
from kvrelay.bench.policies_predictions import binomial_p, predictions
from kvrelay.bench.policies_rows import Cell, pair_of, summarize
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import Watched
from kvrelay.cluster.errors import ConfigError

Row = dict[str, Any]
POLICIES = ("always", "never", "cost")
SURE = {
    "num_tokens": 100,
    "explored": False,
    "relay_p5_s": 0.8,
    "relay_s": 1.0,
    "relay_p95_s": 1.3,
    "recompute_p5_s": 1.5,
    "recompute_s": 2.0,
    "recompute_p95_s": 3.0,
    "uncalibrated": False,
}


class Machine:
    """Agents, stores, wire and gate at once: what was asked of them, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str | None, str | None]] = []
        self.links: list[str] = []
        self.primed: dict[tuple[str, str], int] = {}
        self.lost = False
        self.path = "tcp"
        self._lock = Lock()

    def answer(
        self, agent: str, prompt: Sequence[int], mode: str | None = None, salt: str | None = None
    ) -> Answer:
        with self._lock:
            self.asked.append((agent, len(prompt), mode, salt))
            sources = (agent,) if agent != "b" else ("a", "a-near")
            primed = max(self.primed.get((source, str(salt)), 0) for source in sources)
            if agent != "b":
                self.primed[agent, str(salt)] = len(prompt)
        cached = local_hit_tokens(primed)
        if agent == "b":
            cached = 0 if self.lost or mode == "recompute" else primed
        record = {
            "prompt_tokens": len(prompt),
            "local_tokens": 0,
            "relayed_tokens": cached if agent == "b" else 0,
            "num_bytes": 1000 * cached,
            "fetched_bytes": 0,
            "load_path": "arena" if ("a-near", str(salt)) in self.primed else "nodes",
            "load_s": 0.1,
            "path": "",
            "reason": "relayed",
            "first_token_s": 0.9,
            "decision": {**SURE, "num_tokens": cached},
            "overhead": {},
        }
        return Answer(1.0, cached, record)

    # Store and gate

    def committed(self) -> int:
        return 0

    def wait(self, since: int = 0, num_blocks: int = 1) -> float:
        assert num_blocks > 0
        return 0.0

    def watch(self, request: Callable[[], Any]) -> tuple[Any, Watched]:
        return request(), Watched(0.0, True, None, 0.0)

    # Wire

    def set_link(self, link: Any) -> None:
        self.links.append(link.name)

    def received_bytes(self, there: bool = False) -> int:
        return 0

    def check(self, link: Any, record: Any, received: int, there: bool = False) -> str:
        if self.path != "tcp":
            raise WrongPath("past the wire")
        return self.path


def bench_on(machine: Machine) -> policies.Bench:
    whole: Any = machine
    here, there = (Place(whole, lambda: (0, 0)) for _ in range(2))
    prompts = PromptSource(range(100_000), 1)
    alone_s = dict.fromkeys((512, 1024, 2048), 1e-6)
    return policies.Bench(whole, here, there, whole, prompts, whole, "t", alone_s)


def measure(machine: Machine, cell: Cell) -> Row:
    """One pair."""
    return bench_on(machine).pair(cell, random.Random(1)) | {"pair": 0}


# Pairs


def test_a_pair_keeps_its_arms_apart() -> None:
    machine = Machine()
    bench, rng = bench_on(machine), random.Random(1)
    cell = Cell(0.95, 512, "100mbit")
    samples = [bench.pair(cell, rng) | {"pair": number} for number in range(2)]
    assert [sample["relays_since_link"] for sample in samples] == [0, 1]
    assert machine.links == ["100mbit"]
    for place, sample in enumerate(samples):
        asked = machine.asked[4 * place : 4 * place + 4]
        primes, relays = [e for e in asked if e[1] == 486], [e for e in asked if e[0] == "b"]
        assert [(e[0], e[2]) for e in primes] == [("a", "recompute")]
        assert sorted(str(e[2]) for e in relays) == ["recompute", "relay"]
        owner = asked[-1] if asked[-1][0] == "a" else asked[-2]
        assert (owner[0], owner[1], owner[2]) == ("a", 512, "recompute")
        salts = {str(e[2]): e[3] for e in relays}
        assert salts["relay"] == primes[0][3] == owner[3] != salts["recompute"]
        assert (sample["recompute_s"], sample["relay_s"], sample["local_hit_s"]) == (1.0, 1.0, 1.0)
        assert "overhead" not in sample["record"]
        assert sample["recompute_first_token_s"] == 0.9
    assert len({asked[3] for asked in machine.asked}) == 4
    json.dumps(samples)
    assert {row["policy"] for row in summarize(samples, POLICIES)} >= {*POLICIES, "oracle"}


def test_the_cosine_is_of_the_prefix_and_the_prompt() -> None:
    bench, asked = bench_on(Machine()), []

    def cosine(one: Sequence[int], other: Sequence[int]) -> float:
        asked.append((len(one), len(other), tuple(one) == tuple(other[: len(one)])))
        return 0.7

    bench.cosine = cosine
    assert bench.pair(Cell(0.5, 512, "100mbit"), random.Random(1))["similarity"] == 0.7
    assert bench.pair(Cell(0.0, 512, "100mbit"), random.Random(1))["similarity"] is None
    busy = Live(bench).round(Cell(0.5, 1024, "same-node", "busy"), random.Random(1))
    assert busy["similarity"] == 0.7
    assert asked == [(256, 512, True), (512, 1024, True)]


def test_without_a_shared_prefix_nobody_is_asked_before() -> None:
    machine = Machine()
    sample = measure(machine, Cell(0.0, 512, "same-node"))
    assert sorted(str(asked[2]) for asked in machine.asked) == ["recompute", "relay"]
    assert sample["local_hit_s"] is None and machine.links == []


def test_on_the_same_node_the_source_is_the_neighbour() -> None:
    machine = Machine()
    measure(machine, Cell(0.5, 512, "same-node"))
    assert {asked[0] for asked in machine.asked} == {"a-near", "b"}


def test_a_relay_that_was_none_ends_the_run() -> None:
    machine = Machine()
    machine.lost = True
    with pytest.raises(Miscount, match="relay_s of 512 tokens, 50% shared, link 1gbit"):
        measure(machine, Cell(0.5, 512, "1gbit"))
    machine = Machine()
    machine.path = "cma"
    with pytest.raises(WrongPath):
        measure(machine, Cell(0.5, 512, "1gbit"))


def test_warming_up_tells_how_fast_the_machine_is() -> None:
    machine = Machine()
    bench = bench_on(machine)
    bench.alone_s.clear()
    bench.warm_up([Cell(0.5, 2048, "1gbit"), Cell(0.5, 512, "same-node")], random.Random(1))
    assert bench.alone_s == {512: 1.0, 2048: 1.0}
    assert bench.slowness == pytest.approx(2 / sum(map(prefill_estimate_s, (512, 2048))))
    assert machine.links == ["1gbit"]


# Rounds


def test_a_round_has_a_block_for_each_arm_with_the_same_requests() -> None:
    machine = Machine()
    cell = Cell(0.5, 2048, "1gbit", "busy")
    sample = Live(bench_on(machine)).round(cell, random.Random(1)) | {"pair": 0}
    asked = machine.asked[2 * len(policies.SETTLING) :]
    kinds = Counter((agent, tokens, mode) for agent, tokens, mode, _ in asked)
    assert kinds == {
        ("b", 2048, "recompute"): BURST,
        ("b", 2048, "relay"): BURST,
        ("b", 2048, "auto"): BURST,
        ("a", 1024, "recompute"): 2 * BURST,
        ("a", 2048, "recompute"): BURST,
    }
    assert {name: len(each) for name, each in sample["requests"].items()} == {
        "recompute": BURST,
        "relay": BURST,
        "cost": BURST,
        "owner": BURST,
    }
    assert len(sample["gaps_s"]) == BURST and sample["gaps_s"][0] == 0.0
    pair = pair_of(sample)
    assert pair.cost_arms == ("relay",) * BURST and pair.local_hit_s == 1.0
    assert pair.view is not None and pair.view.candidates[0].num_tokens == 1024
    json.dumps(sample)


def test_the_policy_gets_to_know_a_link_before_its_first_round() -> None:
    machine = Machine()
    live, rng = Live(bench_on(machine)), random.Random(1)
    cell = Cell(0.5, 512, "1gbit", "tail")
    live.round(cell, rng)
    first = len(machine.asked)
    live.round(cell, rng)
    assert first - (len(machine.asked) - first) == 2 * len(policies.SETTLING)
    assert "a" in {asked[0] for asked in machine.asked}
    # Tails go without the owner; on the same node there is no link to get to know.
    near = Machine()
    Live(bench_on(near)).round(Cell(0.5, 512, "same-node", "tail"), rng)
    assert len(near.asked) == 5 * TAIL_BURST


def test_of_a_part_the_neighbour_has_the_first_half() -> None:
    machine = Machine()
    cell = Cell(0.5, 2048, "1gbit", "partial")
    Live(bench_on(machine)).round(cell, random.Random(1))
    asked = machine.asked[2 * len(policies.SETTLING) :]
    kinds = Counter((agent, tokens) for agent, tokens, _, _ in asked)
    assert kinds == {("a-near", 512): 2, ("a", 1024): 2, ("b", 2048): 3, ("a", 2048): 1}


def test_a_link_is_settled_the_other_way_too() -> None:
    machine = Machine()
    bench_on(machine).settle(Cell(0.5, 512, "1gbit"), back=True)
    asked = [(agent, mode) for agent, _, mode, _ in machine.asked]
    assert asked == [("b", "recompute"), ("a", "relay")] * len(policies.SETTLING)


@pytest.mark.parametrize(
    ("longest", "sizes"),
    [(6000, list(policies.SETTLING)), (1024, [128, 512, 256, 1024, 192, 768])],
)
def test_it_is_settled_by_prefixes_no_longer_than_what_is_measured(
    longest: int, sizes: list[int]
) -> None:
    machine = Machine()
    bench = bench_on(machine)
    bench.alone_s = dict.fromkeys((512, longest), 1.0)
    bench.settle(Cell(0.5, 512, "1gbit"))
    assert [tokens for agent, tokens, _, _ in machine.asked if agent == "a"] == sizes


def test_a_block_in_which_something_was_cached_ends_the_run() -> None:
    machine = Machine()
    bench = bench_on(machine)
    bench.be_at("same-node")
    cell = Cell(0.5, 512, "same-node", "tail")
    plain = machine.answer

    def cached(agent: str, prompt: Sequence[int], **more: Any) -> Answer:
        answer = plain(agent, prompt, **more)
        return Answer(1.0, 128, {**answer.record, "relayed_tokens": 0}) if agent == "b" else answer

    machine.answer = cached  # type: ignore[method-assign]
    with pytest.raises(Miscount, match="it had some of a new prompt"):
        Live(bench).round(cell, random.Random(1))


# Plan


def test_grids() -> None:
    full, smoke = grid(), smoke_grid()
    assert len(full) == len(set(full)) and len(smoke) == len(set(smoke)) == 8
    by_load = Counter(cell.load for cell in full)
    assert by_load == {"idle": 60, "busy": 60, "tail": 4, "partial": 36}
    assert {cell.load for cell in smoke} == {"idle"}
    some = policies_plan.parse_cells("busy,tail", "1gbit", "512", "0,0.5")
    assert some == [
        Cell(0.0, 512, "1gbit", "busy"),
        Cell(0.5, 512, "1gbit", "busy"),
        Cell(0.95, 512, "1gbit", "tail"),
    ]
    for bad in (
        ("lazy", "1gbit", "512", "0"),
        ("idle", "fast", "512", "0"),
        ("idle", "1gbit", "9000", "0"),
        ("idle", "1gbit", "512", "1"),
        ("idle", "1gbit", "512", "some"),
    ):
        with pytest.raises(ConfigError):
            policies_plan.parse_cells(*bad)


def test_estimates_grow_with_what_is_done() -> None:
    assert all(estimate_s(cell) > 0 for cell in grid())
    slow, fast = (estimate_s(Cell(0.5, 6000, link)) for link in ("100mbit", "1gbit"))
    assert slow > fast
    idle, busy = (estimate_s(Cell(0.5, 2048, "1gbit", load)) for load in ("idle", "busy"))
    assert busy > idle and estimate_s(Cell(0.5, 2048, "1gbit"), 2.0) > idle
    cell = Cell(0.5, 2048, "1gbit")
    assert policies_plan.total_estimate_s({cell: 3}) == 3 * idle
    times = [policies_plan.duration(seconds) for seconds in (5, 3600, 12_000)]
    assert times == ["1 min", "1 h 00 min", "3 h 20 min"]
    (stage,) = stages([cell], 8)
    assert stage.line({cell: 8}, 1.0).startswith("idle, 2,048 tokens: 1 cells, 8 rounds of about ")


def test_what_tells_most_comes_first() -> None:
    found = stages(grid(), 8)
    kinds = [(stage.cells[0].load, stage.rounds) for stage in found]
    assert kinds[:3] == [("idle", 8), ("idle", 8), ("tail", 34)]
    assert all(cell.tokens <= 2048 and cell.shared_tokens for cell in found[0].cells)
    assert all(not cell.shared_tokens for stage in found[-2:] for cell in stage.cells)
    assert sum(len(stage.cells) for stage in found) == len(grid())
    assert passes(found[0]) == [2, 8] and passes(stages(smoke_grid(), 1)[0]) == [1]


def test_a_link_is_visited_once_and_its_cells_take_turns() -> None:
    near, far = Cell(0.5, 512, "same-node"), Cell(0.5, 512, "1gbit")
    farther = Cell(0.5, 2048, "1gbit")
    order = visits({near: 1, far: 2, farther: 3}, random.Random(1))
    links = [cell.link for cell in order]
    assert sum(a != b for a, b in pairwise(links)) == 1
    there = [cell for cell in order if cell.link == "1gbit"]
    assert set(there[:2]) == set(there[2:4]) == {far, farther} and there[4:] == [farther]


# Tails


def tail_round(never_s: Sequence[float], cost_s: Sequence[float]) -> Row:
    blocks = {"recompute": never_s, "relay": never_s, "cost": cost_s}
    requests = {name: [{"seconds": s, "record": {}} for s in each] for name, each in blocks.items()}
    return {**Cell(0.95, 1024, "1gbit", "tail").factors(), "requests": requests}


def test_tails_are_of_all_requests_and_their_bound_of_rounds() -> None:
    same = [tail_round([1.0, 2.0], [1.0, 2.0])] * 200
    never, always, cost = policies_tail.summarize(same)
    assert (never["policy"], always["policy"], cost["policy"]) == ("never", "always", "cost")
    assert never["requests"] == 400 and (never["p50_s"], never["p99_s"]) == (1.5, 2.0)
    assert cost["p95_over_never"] == {"estimate": 1.0, "bound": 1.0}
    (aim,) = aims([never, always, cost], smoke=False)
    assert aim.holds and "below 1.00, 400 requests" in aim.found
    (few,) = aims(policies_tail.summarize(same[:10]), smoke=False)
    assert not few.holds
    rng = random.Random(1)
    noisy = [tail_round([1.0, 2.0], [1.0, 2.0 + rng.random()]) for _ in range(200)]
    worse = policies_tail.summarize(noisy)[2]
    assert 1.4 < worse["p95_over_never"]["estimate"] <= worse["p95_over_never"]["bound"] < 1.5
    assert not aims([worse], smoke=False)[0].holds
    assert "bound" not in policies_tail.summarize(same[:1])[2]["p95_over_never"]
    assert policies_tail.summarize([]) == []
    assert all(text(row) for row in (never, cost) for text in policies_tail.TAIL_TABLE.values())


# Predictions


def predicted(relay_s: float, recompute_s: float, **more: Any) -> Row:
    """A pair of which the engine predicted 1.0 and 2.0 s."""
    record = {"decision": SURE, "relayed_tokens": 100, "num_bytes": 1, "first_token_s": relay_s}
    sample = {"load": "idle", "relays_since_link": 5, "recompute_place": 1, "record": record}
    return {**sample, "recompute_first_token_s": recompute_s, **more}


def test_predictions_are_scored_on_what_came_later() -> None:
    relay, recompute = predictions(predicted(1.25, 3.2))
    assert (relay.arm, relay.error, relay.is_covered) == ("relay", pytest.approx(0.2), True)
    assert (recompute.arm, recompute.is_covered) == ("recompute", False)
    first = predicted(1.25, 3.2, recompute_place=0)
    assert [one.arm for one in predictions(first)] == ["relay"]
    assert list(predictions(predicted(1.0, 2.0, relays_since_link=4))) == []
    nothing = {**SURE, "relay_s": None, "recompute_s": None}
    for decision in ({**SURE, "uncalibrated": True}, nothing):
        sample = predicted(1.0, 2.0)
        sample["record"] = {**sample["record"], "decision": decision}
        assert list(predictions(sample)) == []
    # What was given up tells nothing of relaying, but the recomputation's counts.
    lost = predicted(1.0, 2.0)
    lost["record"] = {**lost["record"], "relayed_tokens": 0}
    assert [one.arm for one in predictions(lost)] == ["recompute"]


def test_predictions_of_live_blocks_are_of_the_arm_that_was_taken() -> None:
    taken = {"decision": SURE, "relayed_tokens": 100, "num_bytes": 1, "first_token_s": 1.1}
    refused = {
        "decision": {**SURE, "num_tokens": 0},
        "relayed_tokens": 0,
        "num_bytes": 0,
        "first_token_s": 2.2,
    }
    blocks = {"cost": [taken, refused], "relay": [taken], "recompute": [refused]}
    requests = {name: [{"record": record} for record in each] for name, each in blocks.items()}
    found = list(predictions({"load": "busy", "requests": requests}))
    assert [(one.arm, one.seconds) for one in found] == [
        ("relay", 1.1),
        ("recompute", 2.2),
        ("relay", 1.1),
    ]
    assert len(list(predictions({"load": "partial", "requests": requests}))) == 2


def test_rows_and_aims_of_predictions() -> None:
    good = [predicted(1.1, 2.1 if n % 10 else 9.0) for n in range(200)]
    recompute, relay = policies_predictions.summarize(good)
    assert (relay["predictions"], relay["covered"]) == (200, 1.0)
    assert (recompute["covered"], recompute["covered_p"]) == (0.9, 1.0)
    assert recompute["median_error"] == pytest.approx(0.1 / 2.1, abs=1e-4)
    accurate, covering, relay_accurate, too_sure = aims([recompute, relay], smoke=False)
    assert accurate.holds and covering.holds and relay_accurate.holds and not too_sure.holds
    few = aims(policies_predictions.summarize(good[:199]), smoke=False)
    assert not any(aim.holds for aim in few)
    table = policies_predictions.PREDICTIONS_TABLE
    assert all(text(relay) for text in table.values())
    json.dumps([recompute, relay])


def test_binomial_probabilities() -> None:
    assert binomial_p(5, 10, 0.5) == pytest.approx(1.0)
    assert binomial_p(0, 10, 0.5) == pytest.approx(2 / 1024)
    assert 0.015 < binomial_p(170, 200, 0.9) < 0.035
    assert binomial_p(180, 200, 0.9) == pytest.approx(1.0)
