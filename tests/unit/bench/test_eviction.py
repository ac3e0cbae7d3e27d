"""Replays against a small store, and that value density is worth having."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvrelay.bench import eviction, eviction_rows
from kvrelay.bench.run_eviction import Options, main, parse_capacities, parse_prefill, parse_traces
from kvrelay.bench.trace_profiles import PROFILES
from kvrelay.bench.tracegen import generate
from kvrelay.bench.traces import Trace
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.prefill import PrefillCost

COST = PrefillCost(per_token_s=1.0, per_token_squared_s=0.0)


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


# Two blocks fit. 0-1 is asked again late, 2 soon.
REQUESTS = trace_of((0, [0, 1]), (10, [2]), (20, [2]), (30, [0, 1]), (40, [0, 3]))


def test_hits_are_leading_blocks() -> None:
    replay = eviction.replay(REQUESTS, "lru", 2, COST)
    # 1 makes room for 2, so at 30 only 0 is there; at 40 it is again.
    assert replay.hit_tokens == 10 + 10 + 10
    assert replay.saved_s == 30.0
    assert (replay.all_s, replay.all_tokens) == (80.0, 80)
    assert replay.evictions == 3


@pytest.mark.parametrize("policy", eviction.POLICIES)
def test_a_store_that_holds_all_saves_what_an_unlimited_one_does(policy: str) -> None:
    best = eviction.unlimited(REQUESTS, COST)
    assert best.saved_s == 10 + 20 + 10
    assert eviction.replay(REQUESTS, policy, REQUESTS.num_blocks, COST) == best


def test_a_request_that_does_not_fit_keeps_its_beginning() -> None:
    trace = trace_of((0, [0, 1, 2, 3]), (10, [0, 1, 2, 3]))
    assert eviction.replay(trace, "lru", 3, COST).hit_tokens == 30


def test_seconds_grow_with_the_place() -> None:
    cost = PrefillCost(per_token_s=1.0, per_token_squared_s=1.0)
    trace = trace_of((0, [0, 1]), (10, [0, 1]))
    assert eviction.unlimited(trace, cost).saved_s == 20 + 20**2


def small(name: str, seed: int) -> Trace:
    profile = PROFILES[name]
    return generate(replace(profile.scaled(0.15), block_tokens=512), seed)


@pytest.mark.parametrize("capacity", [0.1, 0.3])
@pytest.mark.parametrize("name", list(PROFILES))
def test_value_density_saves_no_less_than_lru_and_gdsf(name: str, capacity: float) -> None:
    trace, cost = small(name, 31), PrefillCost()
    saved = {
        policy: eviction.replay(trace, policy, round(capacity * trace.num_blocks), cost).saved_s
        for policy in ("lru", "gdsf", "value_density")
    }
    assert saved["value_density"] >= max(saved["lru"], saved["gdsf"])
    assert saved["value_density"] <= eviction.unlimited(trace, cost).saved_s


def sample(policy: str, seed: int, saved_s: float) -> dict[str, object]:
    return {
        "trace": "t",
        "seed": seed,
        "capacity": 0.1,
        "policy": policy,
        "block_tokens": 128,
        "requests": 9,
        "slots": 100,
        "saved_prefill_s": saved_s,
        "saved_of_unlimited_ratio": 0.5,
        "hit_token_ratio": 0.4,
        "evicted_blocks": 7,
    }


def test_rows_pair_seeds() -> None:
    samples = [sample("lru", 1, 10.0), sample("lru", 2, 20.0)]
    samples += [sample("value_density", 1, 12.0), sample("value_density", 2, 22.0)]
    lru, density = eviction_rows.summarize(samples)
    assert lru["policy"] == "lru" and lru["saved_over_lru"]["max"] == 1.0
    assert density["saved_over_lru"] == {"min": 1.1, "median": 1.15, "max": 1.2, "n": 2}
    assert "saved_over_gdsf" not in density
    assert density["saved_prefill_s"]["n"] == 2
    for column in eviction_rows.TABLE.values():
        assert column(density)


def test_options_are_checked(tmp_path: Path) -> None:
    assert parse_capacities("0.3,0.1,0.3") == (0.1, 0.3)
    for wrong in ("", "0", "1.5", "a"):
        with pytest.raises(ConfigError, match="--capacity"):
            parse_capacities(wrong)
    assert parse_traces("coder,coder") == ("coder",)
    file = tmp_path / "t.jsonl"
    file.touch()
    assert parse_traces(f"coder,{file}") == ("coder", str(file))
    with pytest.raises(ConfigError, match="--traces none"):
        parse_traces("none")
    assert parse_prefill("1e-3,0").per_token_s == 1e-3
    for wrong in ("1", "0,1", "1,-1", "a,b"):
        with pytest.raises(ConfigError, match="--prefill"):
            parse_prefill(wrong)


def test_a_file_is_replayed_once_and_reported(tmp_path: Path) -> None:
    file, json_file = tmp_path / "t.jsonl", tmp_path / "out.json"
    request = '{"timestamp": %d, "input_length": 1024, "output_length": 1, "hash_ids": [%s]}\n'
    file.write_text("".join(request % (i * 1000, f"0, {i % 3 + 1}") for i in range(9)))
    main(Options((str(file),), (0.5,), 5, 1, PrefillCost(), json_file, None, False))
    assert json_file.read_text().count('"policy"') == len(eviction.POLICIES)
