"""What `kvrelay predict` works out: an engine's curve, bytes of KV, links, the place on the map."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import LAW, LLAMA, TRUE

from kvrelay.bench.audit.analysis.law import Law
from kvrelay.bench.audit.predict.engine_fit import EngineFit, fit_engine
from kvrelay.bench.audit.predict.engine_probe import Sample
from kvrelay.bench.audit.predict.kv_size import kv_size, size_of_model
from kvrelay.bench.audit.predict.links import Wire, given_wire, measured_wires
from kvrelay.bench.audit.predict.placing import Engine, place
from kvrelay.bench.errors import BenchError
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.prefill import PrefillCost

# The fit


def samples_of(cost: PrefillCost, off: dict[int, list[float]]) -> list[Sample]:
    def seconds(n: int) -> float:
        return cost.fixed_s + cost.per_token_s * n + cost.per_token_squared_s * n * n

    return [
        Sample(n, n, 0, seconds(n) * factor) for n, factors in off.items() for factor in factors
    ]


def test_one_busy_moment_does_not_bend_the_curve() -> None:
    rungs = (128, 256, 512, 1024, 2048, 4096)
    fit = fit_engine(samples_of(TRUE, {rung: [1.0, 1.0, 9.0] for rung in rungs}))
    assert fit.cost.per_token_s == pytest.approx(TRUE.per_token_s, rel=1e-6)


def test_no_coefficient_is_negative() -> None:
    # Shorter prompts that take less than in proportion want a negative square.
    off = {128: [1.0], 256: [1.0], 512: [1.0], 1024: [1.0], 2048: [0.9], 4096: [0.7]}
    fit = fit_engine(samples_of(PrefillCost(0.01, 1e-4, 0.0), off))
    assert fit.cost.per_token_squared_s == 0.0
    assert fit.cost.per_token_s > 0
    assert (fit.drawn >= 0).all()


def test_the_fits_doubt_covers_the_truth() -> None:
    held = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        off = {2**n: (1 + 0.03 * rng.standard_normal(8)).tolist() for n in range(7, 14)}
        drawn = fit_engine(samples_of(TRUE, off), draws=100).drawn
        low, high = np.quantile(drawn[:, 1], (0.025, 0.975))
        held += bool(low <= TRUE.per_token_s <= high)
    assert held >= 23  # of 30; about 28 are expected


def test_lengths_that_do_not_matter_are_no_prefill() -> None:
    with pytest.raises(BenchError, match="took the same time"):
        fit_engine(samples_of(PrefillCost(0.1, 0.0, 0.0), {n: [1.0] for n in (128, 512, 2048)}))
    with pytest.raises(ValueError, match="2 lengths"):
        fit_engine(samples_of(TRUE, {n: [1.0] for n in (128, 512)}))


# Bytes of KV


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (LLAMA, 131_072),  # Llama 3.1 8B
        ({**LLAMA, "num_hidden_layers": 28, "hidden_size": 1024, "head_dim": 128}, 114_688),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 36_864),  # GPT-2
        ({"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}, 8192),
        ({"text_config": LLAMA, "vision_config": {}}, 131_072),
        ({**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32 * 576 * 2),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, 131_072),
        ({**LLAMA, "layer_types": ["full_attention"] * 32}, 131_072),
    ],
)
def test_kv_of_a_token(config: dict[str, Any], size: int) -> None:
    assert kv_size(config).bytes_per_token == size


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "num_hidden_layers is missing"),
        ({**LLAMA, "num_attention_heads": "many"}, "num_attention_heads is 'many'"),
        ({**LLAMA, "sliding_window": 4096}, "sliding_window 4096"),
        ({**LLAMA, "layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({**LLAMA, "mamba_d_state": 16}, "mamba_d_state"),
    ],
)
def test_models_whose_kv_is_not_that_simple(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kv_size(config)


def test_where_the_configuration_may_be(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert size_of_model(str(path)) == size_of_model(str(tmp_path))
    path.write_text("{}")
    with pytest.raises(ConfigError, match="missing; give --config or --kv-bytes-per-token"):
        size_of_model(str(path))
    path.write_text("no JSON")
    with pytest.raises(ConfigError, match="--kv-bytes-per-token"):
        size_of_model(str(path))
    with pytest.raises(ConfigError, match="no such file, folder or Hugging Face id"):
        size_of_model(str(tmp_path / "none"))


# Links


def doctors(**changes: Any) -> str:
    link = {
        "source": "a" * 56,
        "reader": "b" * 56,
        "transport": "nixl",
        "path": "tcp/eth0",
        "latency_s": 0.001,
        "gb_per_s": 1.25,
        "failure": "",
    }
    return json.dumps({"nodes": {}, "links": [{**link, **changes}], "findings": []})


def test_links() -> None:
    assert given_wire(10, 0.5) == Wire("10 Gbit/s, 0.5 ms", 1.25e9, 0.001)
    name = "aaaaaaaa to bbbbbbbb (nixl, tcp/eth0)"
    assert measured_wires(doctors(), "-") == [Wire(name, 1.25e9, 0.001)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not what `kvrelay doctor --json` prints"),
        ("[]", "not what `kvrelay doctor --json` prints"),
        (doctors(gb_per_s=0.0), "gb_per_s 0.0"),
        (doctors(failure="refused"), "no link that works"),
        (json.dumps({"links": []}), "give --link-gbit"),
    ],
)
def test_what_is_no_table_of_links(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measured_wires(text, "-")


@pytest.mark.parametrize(("gbit", "rtt_ms"), [(0, 0), (-1, 0), (math.inf, 0), (10, -1)])
def test_links_that_cannot_be(gbit: float, rtt_ms: float) -> None:
    with pytest.raises(ConfigError, match="give"):
        given_wire(gbit, rtt_ms)


# The place on the map


def engine_of(cost: PrefillCost, kv_bytes: float = 131_072, max_tokens: int = 131_072) -> Engine:
    rungs = (128, 256, 512, 1024, 2048, 4096, 8192)
    fit: EngineFit = fit_engine(samples_of(cost, {rung: [1.0] for rung in rungs}))
    return Engine(fit, kv_bytes, max_tokens)


def test_the_break_even_is_the_root() -> None:
    wire = given_wire(25, 0.1)
    row = place("idle", LAW, engine_of(TRUE), wire)
    wire_s = 131_072 / (25e9 / 8)
    gain, fixed = TRUE.per_token_s - wire_s, LAW.fixed_s + 0.0002
    root = (math.sqrt(gain**2 + 4 * TRUE.per_token_squared_s * fixed) - gain) / (
        2 * TRUE.per_token_squared_s
    )
    assert row["tokens_at_break_even"] == pytest.approx(root)
    assert row["low"] < root < row["high"]
    per_token_s = TRUE.per_token_s + TRUE.per_token_squared_s * root
    assert row["wire_over_prefill"] == pytest.approx(wire_s / per_token_s)
    assert row["fixed_cost_tokens"] == pytest.approx(fixed / per_token_s)
    assert row["words"].startswith(f"relay pays from {root:,.0f} tokens on [")
    assert row["extrapolated"] == [
        "0.20 ms of round trips are added to the audit's fixed cost; "
        "slow starts of long connections are not"
    ]
    at = {each["tokens"]: each for each in row["at"]}
    saving = 4096 * (TRUE.per_token_s + TRUE.per_token_squared_s * 4096 - wire_s) - fixed
    assert at[4096]["saving_s"] == pytest.approx(saving)
    assert at[4096]["low"] < saving < at[4096]["high"]
    assert at[8192]["measured"] and not at[16_384]["measured"]


def test_what_nobody_measured_is_named() -> None:
    fast = PrefillCost(0.002, 2e-6, 1e-11)
    row = place("idle", LAW, engine_of(fast, 5_000), given_wire(100))
    said = "; ".join(row["extrapolated"])
    assert "a token of prefill takes 2.1 us here and took 10 to 1,000 us" in said
    assert "wire over prefill" not in said
    slow = place("idle", LAW, engine_of(fast), given_wire(1))
    assert "wire over prefill is" in "; ".join(slow["extrapolated"])


def test_a_break_even_beyond_what_was_timed_or_fits() -> None:
    even = PrefillCost(0.002, 1.05e-4, 1e-10)
    engine = engine_of(even, kv_bytes=131_072, max_tokens=9_000)
    law = Law.of_dict(LAW.to_dict() | {"fixed_cost_s": 1.0})
    row = place("idle", law, engine, given_wire(10))
    said = "; ".join(row["extrapolated"])
    assert row["pays"] == "from" and row["tokens_at_break_even"] > 9_000
    assert not row["within_context"]
    assert "not pay within the engine's context of 9,000 tokens" in row["words"]
    assert "the audit relayed 64 to 8,192" in said
    assert "timed up to 8,192 tokens" in said


def test_always_and_never() -> None:
    free = Law.of_dict(LAW.to_dict() | {"fixed_cost_s": -0.5})
    row = place("idle", free, engine_of(TRUE), given_wire(25))
    assert (row["pays"], row["tokens_at_break_even"], row["low"], row["high"]) == (
        "always",
        None,
        0.0,
        0.0,
    )
    assert row["words"] == "relay pays at any length"
    flat = PrefillCost(0.02, 1e-4, 0.0)
    row = place("idle", LAW, engine_of(flat), given_wire(1))
    assert (row["pays"], row["tokens_at_break_even"]) == ("never", None)
    assert row["words"] == "relay never pays"
    json.dumps(row, allow_nan=False)
