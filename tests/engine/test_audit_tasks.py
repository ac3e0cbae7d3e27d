"""The demo model can do the audit's task, and only by reading the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Engine

from kvrelay.agents.layout import ChatLayout
from kvrelay.bench.audit.workload.tasks import Regime, Task, chance_p_value, make_task
from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.bench.engines import DTYPE
from kvrelay.cluster.model import ensure_model

pytestmark = pytest.mark.engine

CONTEXT_TOKENS = 512
NUM_TASKS = 40
SURE = 1e-4
# As many as vLLM tells by default.
TOP_LOGPROBS = 20


@pytest.fixture(scope="module")
def demo() -> Path:
    return Path(ensure_model("demo"))


@pytest.fixture(scope="module")
def library(demo: Path) -> Library:
    return Library(ChatLayout.load(demo).encode)


@pytest.fixture(scope="module")
def engine(demo: Path) -> Iterator[Engine]:
    engine = Engine(demo, None, dtype=DTYPE, kv_cache_memory_bytes=256 << 20)
    engine.wait_ready()
    yield engine
    engine.close()


def num_correct(engine: Engine, tasks: list[Task], prompts: list[list[int]]) -> int:
    results = engine.generate(prompts, logprobs=TOP_LOGPROBS)
    return sum(
        task.is_correct(dict(result["logprobs"][0]))
        for task, result in zip(tasks, results, strict=True)
    )


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("regime", Regime)
def test_the_model_is_above_chance(
    engine: Engine, library: Library, language: Language, regime: Regime
) -> None:
    tasks = [
        make_task(library, language, CONTEXT_TOKENS, regime, seed) for seed in range(NUM_TASKS)
    ]
    correct = num_correct(engine, tasks, [list(task.prompt) for task in tasks])
    assert chance_p_value(correct, NUM_TASKS, tasks[0].chance) < SURE, f"{correct} right"


def test_without_the_context_it_is_not(engine: Engine, library: Library) -> None:
    """Of the need regime; this is what a relay of nothing would be worth."""
    for regime, above in ((Regime.NEED, False), (Regime.NO_NEED, True)):
        tasks = [
            make_task(library, Language.ENGLISH, CONTEXT_TOKENS, regime, seed)
            for seed in range(NUM_TASKS)
        ]
        correct = num_correct(engine, tasks, [list(task.question) for task in tasks])
        p_value = chance_p_value(correct, NUM_TASKS, tasks[0].chance)
        assert (p_value < SURE) is above, f"{correct} right in regime {regime}"
