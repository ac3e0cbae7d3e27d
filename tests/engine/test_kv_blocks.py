"""The real KV that benchmarks measure on: whole blocks out of an engine that is gone then."""

from pathlib import Path

import psutil
import pytest
from harness import text_tokens

from kvrelay.bench import kv_blocks
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.errors import BenchError

pytestmark = pytest.mark.engine
# Two layers, two KV heads of 32, K and V in bf16.
BLOCK_BYTES = BLOCK_TOKENS * 2 * 2 * 32 * 2 * 2


def test_whole_blocks_of_every_prompt(model: Path) -> None:
    prompts = [text_tokens(1, 300), text_tokens(2, 256)]
    advanced: list[float] = []
    before = psutil.Process().children()
    with kv_blocks.computed(model, prompts, advanced.append) as blocks:
        assert psutil.Process().children() == before
        assert [len(block) for block in blocks] == [BLOCK_BYTES] * 4
        assert len({bytes(block) for block in blocks}) == 4
        assert all(any(block) for block in blocks)
    assert sum(advanced) >= 4


def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with (
        pytest.raises(BenchError, match=r"the engine ended with 1: \w+"),
        kv_blocks.computed(tmp_path, [text_tokens(1, 256)], lambda _: None),
    ):
        pytest.fail("there is no model")
    assert psutil.Process().children() == before
