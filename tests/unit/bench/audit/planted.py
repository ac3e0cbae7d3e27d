"""What `kvrelay predict` is tested against: an engine's prefill, a model, the law of a map."""

from __future__ import annotations

from typing import Any

from kvrelay.bench.audit.analysis.law import Law
from kvrelay.policies.prefill import PrefillCost

TRUE = PrefillCost(0.02, 1e-4, 5e-9)
LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
LAW = Law(
    fixed_s=0.01,
    wire_factor=1.0,
    saved_factor=1.0,
    covariance=((1e-6, 0, 0), (0, 1e-4, 0), (0, 0, 1e-4)),
    misfit=0.02,
    num_cells=16,
    tokens=(64, 8192),
    wire_over_prefill=(0.001, 2.0),
    prefill_s_per_token=(1e-5, 1e-3),
    typical_prefill_s_per_token=1e-4,
)
