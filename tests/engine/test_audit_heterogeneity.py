"""Real engines beside engine A: the same model takes its KV, another block size none."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from harness import BLOCK, text_tokens

from kvrelay.bench.audit.controls import heterogeneity
from kvrelay.bench.audit.controls.heterogeneity_rows import rows
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.controls.trials import Example

pytestmark = pytest.mark.engine
EXAMPLES = 4
TOKENS = 8 * BLOCK


def test_kv_crosses_where_nothing_differs(model: Path, tmp_path: Path) -> None:
    before = psutil.Process().children()
    examples = [
        Example(tuple(text_tokens(800 + n, TOKENS)), tuple(text_tokens(900 + n, 5)))
        for n in range(EXAMPLES)
    ]
    advanced: list[float] = []
    kinds, folder = (Kind.SAME, Kind.BLOCK_SIZE), tmp_path / "made"
    found = heterogeneity.measure(
        model, examples, kinds, folder, dtype="float32", advance=advanced.append
    )
    assert psutil.Process().children() == before, "the engines have ended"
    assert len(kinds) * EXAMPLES == sum(advanced)
    same, other = found
    assert [pairing.kind for pairing in found] == list(kinds)
    assert {pairing.own_tokens for pairing in found} == {TOKENS}
    assert {(t.relayed_tokens, t.reason) for t in same.trials} == {(TOKENS, "relayed")}
    assert {(t.relayed_tokens, t.reason) for t in other.trials} == {(0, "no_source")}
    assert all(t.is_same_answer and t.are_same_logprobs for t in other.trials)
    for pairing in found:
        assert all(0 < t.ttft_s < 60 and 0 < t.recompute_ttft_s < 60 for t in pairing.trials)
    for row in rows(found):
        assert row["lawful"]["estimate"] == 1
