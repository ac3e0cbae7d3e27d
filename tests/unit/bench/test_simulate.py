"""A simulated cluster: every request ends once, in order, when it should."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.bench import run_simulate, simulate_rows
from kvrelay.bench import simulate as simulate_module
from kvrelay.bench.replayed import Load, Step, parse_policies, teach
from kvrelay.bench.simulate import simulate
from kvrelay.bench.simulate_fit import Cell, fitted
from kvrelay.bench.simulate_nodes import Blocks, Links, Stores
from kvrelay.bench.simulate_world import Simulated, World, paced
from kvrelay.bench.testbed.link import Link, parse_link
from kvrelay.bench.trace_profiles import TOOL_AGENT
from kvrelay.bench.tracegen import generate
from kvrelay.bench.traces import Trace
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies import parse_policy
from kvrelay.policies.cost import CostPolicy
from kvrelay.policies.costs import Costs
from kvrelay.policies.prefill import PrefillCost, Work

# A prefill of n tokens takes 1 + n/10 s; a block of 10 tokens is 10,000 bytes, a second on the
# wire, which takes 0.25 s to begin; a load takes 0.5 s and a quarter of a second per block.
WORLD = World(
    num_nodes=2,
    num_agents=2,
    links=(Link("80kbit", 80_000),),
    prefill=PrefillCost(1.0, 0.1, 0.0),
    bytes_per_token=1000,
    max_tokens=100,
    relay_fixed_s=0.5,
    copy_bytes_per_s=40_000,
    transfer_fixed_s=0.25,
    wire_share=1.0,
    load_deadline_s=100.0,
    noise=0.0,
)


def trace_of(*requests: tuple[float, list[int]]) -> Trace:
    lengths = [len(blocks) for _, blocks in requests]
    numbers = np.arange(len(requests))
    return Trace(
        name="made",
        block_tokens=10,
        times_s=np.array([time_s for time_s, _ in requests]),
        input_tokens=np.array(lengths) * 10,
        output_tokens=np.ones(len(requests), np.int64),
        sessions=numbers,
        turns=np.zeros(len(requests), np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        blocks=np.array([block for _, blocks in requests for block in blocks]),
    )


def run(
    trace: Trace, agents: Sequence[int], policy: str = "always", world: World = WORLD
) -> Simulated:
    return simulate(trace, world, policy, agents, seed=1)


HANDOVER = trace_of((0, [0, 1]), (10, [0, 1, 2]), (20, [0, 1, 2]))


def test_a_handover_by_hand() -> None:
    done = run(HANDOVER, [0, 1, 1])
    # Computed: 1 + 2. Relayed: 0.25 + 2 on the wire, 0.5 + 0.5, and a step of 1 + 1. At hand: all
    # but the last token.
    assert done.ttft_s.tolist() == pytest.approx([3.0, 2.25 + 1.0 + 2.0, 1.1])
    assert done.relayed_tokens.tolist() == [0, 20, 0]
    assert done.local_tokens.tolist() == [0, 0, 29]
    assert done.wire_bytes.tolist() == [0, 20_000, 0]
    assert done.link_busy_s == pytest.approx(2.0)
    recomputed = run(HANDOVER, [0, 1, 1], "never")
    assert recomputed.ttft_s.tolist() == pytest.approx([3.0, 4.0, 1.1])
    assert recomputed.wire_bytes.sum() == recomputed.relayed_tokens.sum() == 0


def test_on_the_same_node_nothing_crosses() -> None:
    done = run(HANDOVER, [0, 2, 2], world=replace(WORLD, num_agents=3))
    assert done.ttft_s[1] == pytest.approx(1.0 + 2.0)
    assert (done.wire_bytes.sum(), done.relayed_tokens[1]) == (0, 20)


def test_a_threshold_counts_tokens() -> None:
    assert run(HANDOVER, [0, 1, 1], "min_tokens:20").relayed_tokens[1] == 20
    assert run(HANDOVER, [0, 1, 1], "min_tokens:21").relayed_tokens[1] == 0


def test_what_came_before_the_deadline_counts() -> None:
    done = run(HANDOVER, [0, 1, 1], world=replace(WORLD, load_deadline_s=1.5))
    # One block is there at 1.25 s, the other would be at 2.25 s.
    assert done.ttft_s[1] == pytest.approx(1.5 + 1.0 + 2.0)
    assert (done.relayed_tokens[1], done.given_up.tolist()) == (10, [False, True, False])
    assert done.wire_bytes[1] == 20_000


def test_steps_take_requests_in_order_of_arrival() -> None:
    trace = trace_of((0, [0, 1]), (0.1, [2, 3]), (0.2, [4, 5]))
    one_by_one = run(trace, [0, 0, 0], world=replace(WORLD, max_tokens=20))
    assert one_by_one.started_s.tolist() == pytest.approx([0.0, 3.0, 6.0])
    assert one_by_one.ttft_s.tolist() == pytest.approx([3.0, 5.9, 8.8])
    together = run(trace, [0, 0, 0])
    assert together.started_s.tolist() == pytest.approx([0.0, 3.0, 3.0])
    assert together.ttft_s.tolist() == pytest.approx([3.0, 7.9, 7.8])


def test_a_load_holds_up_nobody_and_goes_first_afterwards() -> None:
    trace = trace_of((0, [0, 1]), (10, [0, 1, 2]), (10, [7, 8]), (12, [9]), (13.1, [4, 5, 6]))
    done = run(trace, [0, 1, 1, 1, 1], world=replace(WORLD, max_tokens=30))
    # The load is over at 13.25, during the step that began at 13; the last does not fit beside it.
    assert done.started_s.tolist() == pytest.approx([0.0, 15.0, 10.0, 13.0, 17.0])


def test_a_load_begins_when_the_step_that_is_about_to_run_is_over() -> None:
    trace = trace_of((0, [0, 1]), (10, [7, 8]), (11, [9]), (12, [0, 1, 2]))
    done = run(trace, [0, 1, 1, 1])
    # Decided at 13; the step beside it ends at 15; 3.25 s later all is there.
    assert done.started_s.tolist() == pytest.approx([0.0, 10.0, 13.0, 18.25])
    late = run(trace, [0, 1, 1, 1], world=replace(WORLD, load_deadline_s=1.5))
    # So does its time: one block is there at 16.25, the other would be at 17.25.
    assert late.started_s[3] == pytest.approx(16.5)
    assert (late.given_up[3], late.wire_bytes[3], late.relayed_tokens[3]) == (True, 20_000, 10)


def test_what_is_evicted_before_its_load_begins_does_not_come() -> None:
    # The first node has room for two blocks, and gets others at 14.5, then already at 13.9.
    trace = trace_of((0, [0, 1]), (10, [7]), (10.5, [8]), (11, [0, 1, 2]), (11.5, [3, 4]))
    world = replace(WORLD, store_bytes=20_000)
    done = run(trace, [0, 1, 1, 1, 0], world=world)
    # Decided at 12; the step beside it ends at 14.
    assert done.relayed_tokens[3] == 20
    trace = trace_of((0, [0, 1]), (10, [7]), (10.5, [8]), (10.9, [3, 4]), (11, [0, 1, 2]))
    done = run(trace, [0, 1, 1, 0, 1], world=world)
    assert (done.relayed_tokens[4], done.wire_bytes[4], done.given_up[4]) == (0, 0, True)
    assert done.started_s[4] == pytest.approx(14.0 + 1.0)


def test_transfers_of_one_source_wait_for_each_other() -> None:
    trace = trace_of((0, [0, 1]), (10, [0, 1, 2]), (10, [0, 1, 3]))
    world = replace(WORLD, num_nodes=3, num_agents=3)
    done = run(trace, [0, 1, 2], world=world)
    assert (done.ttft_s[2] - done.ttft_s[1]) == pytest.approx(2.25)


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    trace = trace_of((0, [0, 1]), (10, [0, 1, 2]), (10, [0, 1, 3]))
    done = run(trace, [0, 1, 3], world=replace(WORLD, num_agents=4))
    assert done.wire_bytes.tolist() == [0, 20_000, 0]
    assert done.ttft_s[1] == pytest.approx(done.ttft_s[2])


def test_the_cap_of_loads() -> None:
    trace = trace_of((0, [0, 1]), (10, [0, 1, 2]), (10, [0, 1, 3]))
    done = run(trace, [0, 1, 1], world=replace(WORLD, max_loads_in_flight=1))
    assert done.relayed_tokens.tolist() == [0, 20, 0]


def test_the_least_recently_used_goes_deepest_first() -> None:
    blocks = Blocks(3)
    assert blocks.add([0, 1]) == []
    assert blocks.add([2, 3]) == [1]
    blocks.use([0, 9])
    assert blocks.add([4]) == [3]
    assert (blocks.leading([0, 1]), blocks.leading([2, 4, 0]), blocks.leading([])) == (1, 3, 0)


def test_stores_know_their_holders() -> None:
    stores = Stores(2, 2)
    stores.add(0, [0, 1])
    stores.add(1, [0])
    assert (stores.holders(0), stores.holders(7)) == ({0, 1}, set())
    stores.add(0, [2])
    assert (stores.holders(1), 1 in stores.of(0)) == (set(), False)


def test_links_are_as_fast_as_the_slower_end() -> None:
    links = Links([100.0, 10.0], [0.5, 1.0])
    assert links.send(0, 1, 100, 3.0, 1.0) == (4.0, 14.0)
    # The other direction is free; the same one is not.
    assert links.send(1, 0, 100, 3.0, 2.0) == (4.0, 24.0)
    assert links.send(0, 1, 10, 3.0, 1.0) == (15.0, 16.0)


CLUSTER = World(num_nodes=3, num_agents=7, links=(parse_link("1gbit"), parse_link("100mbit")))


def stream(seed: int, load: float = 0.6) -> Trace:
    return paced(generate(TOOL_AGENT.scaled(0.03), seed), CLUSTER, load)


@pytest.mark.parametrize("policy", ["always", "never", "min_tokens:2048", "cost"])
def test_every_request_ends_once_and_every_token_is_somewhere(policy: str) -> None:
    trace = stream(1)
    agents = np.random.default_rng(1).integers(CLUSTER.num_agents, size=len(trace)).tolist()
    done = run(trace, agents, policy, CLUSTER)
    assert (done.ttft_s > CLUSTER.prefill.fixed_s).all()
    assert (done.started_s >= trace.times_s).all()
    assert (done.prompt_tokens == np.minimum(trace.input_tokens, CLUSTER.max_tokens)).all()
    computed = done.prompt_tokens - done.local_tokens - done.relayed_tokens
    assert (computed >= 1).all() and (done.local_tokens >= 0).all()
    assert (done.relayed_tokens >= 0).all()
    assert (done.relayed_tokens.sum() > 0) == (policy != "never")
    if policy == "never":  # without loads the order of arrival is that of an engine's steps
        for agent in range(CLUSTER.num_agents):
            starts_s = done.started_s[np.array(agents) == agent]
            assert (np.diff(starts_s) >= 0).all()


def test_the_same_seed_gives_the_same_figures() -> None:
    trace = stream(2)
    agents = [number % CLUSTER.num_agents for number in range(len(trace))]
    first, again = (run(trace, agents, "always", CLUSTER) for _ in range(2))
    other = simulate(trace, CLUSTER, "always", agents, seed=2)
    assert (first.ttft_s == again.ttft_s).all() and (first.wire_bytes == again.wire_bytes).all()
    assert (first.ttft_s != other.ttft_s).any()


def test_the_load_is_what_was_asked_for() -> None:
    trace = stream(3, load=0.5)
    cost, tokens = CLUSTER.prefill, np.minimum(trace.input_tokens, CLUSTER.max_tokens)
    needed_s = (cost.fixed_s + cost.added_s(0 * tokens, tokens)).sum()
    assert needed_s / (CLUSTER.num_agents * trace.times_s[-1]) == pytest.approx(0.5)


def test_a_policy_that_learns_hears_of_every_step_and_load(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Step | Load] = []

    monkeypatch.setattr(simulate_module, "teach", lambda _, what: heard.append(what))
    run(HANDOVER, [0, 1, 1])
    assert heard == [
        Step(((0, 20),), 3.0),
        Load("nodes", 20_000, 20_000, 0, 3.25),
        Step(((20, 10),), 2.0),
        Step(((29, 1),), 1.1),
    ]


def test_a_load_that_was_given_up_is_told_with_what_it_has_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Step | Load] = []
    monkeypatch.setattr(simulate_module, "teach", lambda _, what: heard.append(what))
    trace = trace_of((0, [0, 1]), (0, [5]), (10, [0, 1, 2]), (10, [5, 6]))
    run(trace, [0, 0, 1, 1], world=replace(WORLD, load_deadline_s=1.5))
    loads = [what for what in heard if isinstance(what, Load)]
    assert loads == [
        Load("nodes", 20_000, 10_000, 0, 1.5),
        Load("nodes", 10_000, 0, 20_000, 1.5),
    ]


def test_what_a_cost_policy_is_told() -> None:
    policy = CostPolicy(Costs(step_tokens=8192))
    assert not policy.costs.load(("nodes",), 10**6).is_sure
    for number in range(1, 40):
        teach(policy, Step(((0, 100 * number), (100, 50)), 0.1 + 0.001 * (100 * number + 50)))
        teach(policy, Load("nodes", 10**6 * number, 10**6 * number, 0, 0.05 + 0.1 * number))
    assert policy.costs.prefill(Work.of(0, 2000)).is_sure
    assert policy.costs.prefill(Work.of(0, 2000)).p50_s == pytest.approx(2.1, rel=0.05)
    assert policy.costs.load(("nodes",), 2 * 10**7).p50_s == pytest.approx(2.05, rel=0.05)
    # Of half a load in as long as the whole was to take, the other half is as long again.
    for _ in range(40):
        teach(policy, Load("nodes", 2 * 10**7, 10**7, 0, 2.05))
    assert policy.costs.load(("nodes",), 2 * 10**7).p50_s > 3.0
    teach(parse_policy("always"), Step(((0, 1),), 1.0))


def test_a_policy_that_learns_is_no_worse_than_the_better_fixed_rule() -> None:
    slow = replace(CLUSTER, links=(parse_link("40mbit"),), load_deadline_s=60.0)
    trace = stream(4)
    agents = np.random.default_rng(4).integers(CLUSTER.num_agents, size=len(trace)).tolist()
    mean_s = {
        (policy, world.links[0].name): float(run(trace, agents, policy, world).ttft_s.mean())
        for policy in ("always", "never", "cost")
        for world in (CLUSTER, slow)
    }
    for link in ("1gbit", "40mbit"):
        best_s = min(mean_s["always", link], mean_s["never", link])
        assert mean_s["cost", link] <= 1.05 * best_s, mean_s


@pytest.mark.slow
def test_a_hundred_agents_on_twenty_nodes_take_less_than_a_minute() -> None:
    world = World(20, 100, (parse_link("1gbit"), parse_link("100mbit")))
    trace = paced(generate(TOOL_AGENT.scaled(20_000 / TOOL_AGENT.num_requests), 1), world, 0.6)
    agents = np.random.default_rng(1).integers(100, size=len(trace)).tolist()
    start_s = time.process_time()  # others may have the cores meanwhile
    for policy in ("always", "never", "min_tokens:256", "cost"):
        simulate(trace, world, policy, agents, 1)
    assert time.process_time() - start_s < 60


# Rows


def sample(policy: str, seed: int, ttft_s: float) -> dict[str, Any]:
    names = simulate_rows.MEASURES
    factors = {"trace": "t", "requests": 9, "agents": 2, "nodes": 2, "links": "1gbit", "load": 0.6}
    return {"policy": policy, "seed": seed, **factors, **dict.fromkeys(names, ttft_s)}


def test_rows_pair_seeds() -> None:
    samples = [sample("never", 1, 2.0), sample("never", 2, 4.0)]
    samples += [sample("always", 1, 1.0), sample("always", 2, 6.0)]
    never, always = simulate_rows.summarize(samples)
    assert never["ttft_p95_over_never"]["max"] == 1.0
    assert always["ttft_mean_over_never"] == {"min": 0.5, "median": 1.0, "max": 1.5, "n": 2}
    for column in simulate_rows.TABLE.values():
        assert column(always)
    (alone,) = simulate_rows.summarize(samples[2:])
    assert "ttft_p95_over_never" not in alone


def test_measures() -> None:
    row = simulate_rows.measures(run(HANDOVER, [0, 1, 1]), 2, HANDOVER.times_s)
    assert row["ttft_mean_s"] == pytest.approx((3.0 + 5.25 + 1.1) / 3)
    assert (row["relays"], row["relayed_tokens"], row["wire_bytes"]) == (1, 20, 20_000)
    assert row["link_busy_ratio"] == pytest.approx(2.0 / (2 * 21.1))
    json.dumps(row)


def topology_row(link: str, **more: Any) -> dict[str, Any]:
    times = {name: {"median": 1.0} for name in ("recompute_s", "local_hit_s", "relay_s")}
    return {"link": link, "tokens": 1024, **times, **more}


def calibration(rows: Sequence[dict[str, Any]], world: World) -> list[dict[str, Any]]:
    return simulate_rows.calibration([Cell.of(row) for row in rows], world)


def rows_of(world: World, *lengths: int) -> list[dict[str, Any]]:
    """What `bench topology` would have measured, were this world real."""
    return [
        {"link": link or "same-node", "tokens": tokens, "codec": "raw"}
        | {name: {"median": seconds} for name, seconds in idle_seconds.items()}
        for tokens in lengths
        for link in (None, "100mbit")
        for idle_seconds in [simulate_rows.idle(world, link and parse_link(link), tokens)]
    ]


def test_engines_are_fitted_to_what_was_measured_on_one_node() -> None:
    real = replace(
        CLUSTER,
        prefill=PrefillCost(0.06, 4e-4, 8e-8),
        relay_fixed_s=0.01,
        copy_bytes_per_s=10e9,
    )
    cells = [Cell.of(row) for row in rows_of(real, 512, 2048, 4096, 7936)]
    found = fitted(cells, CLUSTER)
    assert found is not None
    assert astuple(found.prefill) == pytest.approx(astuple(real.prefill), rel=1e-6)
    assert found.relay_fixed_s == pytest.approx(real.relay_fixed_s, rel=1e-6)
    assert found.copy_bytes_per_s == pytest.approx(real.copy_bytes_per_s, rel=1e-6)
    assert replace(found, prefill=CLUSTER.prefill) == replace(
        CLUSTER, relay_fixed_s=found.relay_fixed_s, copy_bytes_per_s=found.copy_bytes_per_s
    )


def test_a_length_is_forecast_from_the_others() -> None:
    real = replace(CLUSTER, prefill=PrefillCost(0.06, 4e-4, 8e-8))
    measured = rows_of(real, 512, 2048, 4096, 7936)
    measured[0]["recompute_s"]["median"] *= 3
    found = calibration(measured, CLUSTER)
    assert found[0]["fitted_to"] == [2048, 4096, 7936]
    assert found[0]["recompute_difference"] == pytest.approx(1 / 3 - 1, abs=1e-4)
    assert found[1]["relay_difference"] == pytest.approx(0, abs=1e-4)
    assert abs(found[2]["recompute_difference"]) > 0.01  # its fit took in the wrong one
    few = calibration(rows_of(real, 512, 2048, 4096), CLUSTER)
    assert {tuple(row["fitted_to"]) for row in few} == {()}
    assert fitted([], CLUSTER) is None


def test_what_is_not_simulated_is_not_compared() -> None:
    found = calibration([topology_row("100mbit", codec=name) for name in ("lz4", "raw")], CLUSTER)
    assert len(found) == 1


def test_overlapping_cells_are_compared() -> None:
    goodput = {"goodput_gbit_per_s": {"median": 0.05}}
    rows = calibration(
        [topology_row("same-node"), topology_row("100mbit"), topology_row("100mbit", **goodput)],
        CLUSTER,
    )
    near, far, found = rows
    cost, tokens = CLUSTER.prefill, 1024 + 32
    recompute_s = cost.fixed_s + cost.added_s(0, tokens)
    assert near["simulated_recompute_s"] == pytest.approx(recompute_s, abs=1e-6)
    assert near["recompute_difference"] == pytest.approx(recompute_s - 1, abs=1e-4)
    hit_s = cost.fixed_s + float(cost.added_s(1024, tokens))
    assert near["simulated_local_hit_s"] == pytest.approx(hit_s, abs=1e-6)
    num_bytes = 1024 * CLUSTER.bytes_per_token
    copy_s = CLUSTER.relay_fixed_s + num_bytes / CLUSTER.copy_bytes_per_s
    assert near["simulated_relay_s"] == pytest.approx(hit_s + copy_s, abs=1e-6)
    wire_s = CLUSTER.transfer_fixed_s + num_bytes / (CLUSTER.wire_share * 100e6 / 8)
    assert far["simulated_relay_s"] == pytest.approx(hit_s + copy_s + wire_s, abs=1e-6)
    wire_s = CLUSTER.transfer_fixed_s + num_bytes / (0.05e9 / 8)
    assert found["simulated_relay_s"] == pytest.approx(hit_s + copy_s + wire_s, abs=1e-5)
    for column in simulate_rows.CALIBRATION_TABLE.values():
        assert column(found)
    with pytest.raises(ConfigError, match="not a report"):
        calibration([{"tokens": 3}], CLUSTER)


def test_a_cell_without_some_measure_is_compared_by_the_others() -> None:
    row = topology_row("cluster")
    del row["local_hit_s"]
    (found,) = calibration([row], CLUSTER)
    assert "relay_difference" in found and "local_hit_difference" not in found
    assert simulate_rows.CALIBRATION_TABLE["local\nhit"](found) == "-"


# The command


def test_options_are_checked(tmp_path: Path) -> None:
    assert parse_policies("always,never,always") == ("always", "never")
    assert parse_policies("floor_and_queue:1024,8, never") == ("floor_and_queue:1024,8", "never")
    for wrong in ("", "sometimes", "min_tokens:x", "always,", "floor_and_queue:1"):
        with pytest.raises(ConfigError, match="--policies"):
            parse_policies(wrong)
    world = run_simulate.parse_world(4, 2, "1gbit, 100mbit-5ms")
    assert [link.name for link in world.links] == ["1gbit", "100mbit-5ms"]
    with pytest.raises(ConfigError, match="link"):
        run_simulate.parse_world(4, 2, "fast")
    assert run_simulate.parse_trace("generated") == "generated"
    with pytest.raises(ConfigError, match="--trace"):
        run_simulate.parse_trace(str(tmp_path / "none.jsonl"))


def options(tmp_path: Path, trace: str, requests: int) -> run_simulate.Options:
    return run_simulate.Options(
        trace=trace,
        requests=requests,
        load=0.6,
        policies=("always", "never"),
        world=CLUSTER,
        repeats=1,
        seed=1,
        calibrate=tmp_path / "topology.json",
        json_file=tmp_path / "out.json",
        samples_file=None,
        smoke=True,
    )


def test_the_command_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text(json.dumps({"rows": [topology_row("1gbit")]}))
    run_simulate.main(options(tmp_path, "generated", 300))
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["meta"]["complete"] and len(report["meta"]["calibration"]) == 1
    assert [row["policy"] for row in report["rows"]] == ["always", "never"]
    assert report["rows"][0]["requests"] == 300


def test_a_file_is_cut_to_its_first_requests(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000 * n, "input_length": 1000, "output_length": 3, "hash_ids": [0, n + 1]}
        for n in range(9)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "topology.json").write_text(json.dumps({"rows": []}))
    run_simulate.main(options(tmp_path, str(tmp_path / "t.jsonl"), 5))
    report = json.loads((tmp_path / "out.json").read_text())
    assert {row["requests"] for row in report["rows"]} == {5}
    assert report["rows"][1]["local_tokens"]["median"] >= 0
    (tmp_path / "topology.json").write_text("{}")
    with pytest.raises(ConfigError, match="--calibrate"):
        run_simulate.main(options(tmp_path, str(tmp_path / "t.jsonl"), 5))
