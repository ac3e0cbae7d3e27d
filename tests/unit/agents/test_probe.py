"""What is measured before the first request, on engines of several speeds and a fake clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvrelay.agents import probe
from kvrelay.agents.probe import MIN_TOKENS, MOST_S, WARM_UP, warm_up
from kvrelay.policies import Costs, Work
from kvrelay.policies.costs import SURE_AFTER
from kvrelay.policies.prefill import PrefillCost
from kvrelay.relay.labels import Labels

STEP_TOKENS = 2048
LOGGERS = object()
DEMO = PrefillCost()
LOADED = PrefillCost(0.3, 1.8e-3, 7e-7)  # the same, beside others on its cores
GPU = PrefillCost(0.008, 8e-6, 5e-11)
SLOW = PrefillCost(0.3, 8e-3, 1e-6)


def steps_of(tokens: int) -> list[Work]:
    """What an engine computes at once, of a prompt."""
    starts = range(0, tokens, STEP_TOKENS)
    return [Work.of(there, min(STEP_TOKENS, tokens - there)) for there in starts]


class Client:
    """An engine that takes what `truth` says, and more for its first prompt.

    What follows that one is observed, as the connector does.
    """

    def __init__(self, truth: PrefillCost = DEMO, max_model_len: int = 8192) -> None:
        self.model_config = SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: 1000
        )
        self.vllm_config = SimpleNamespace(kv_transfer_config=object())
        self.costs = Costs(STEP_TOKENS)
        self.truth, self.now_s = truth, 0.0
        self.prompts: list[list[int]] = []
        self.params: list[Any] = []
        self.loggers: list[object] = []
        self._logger_ref: list[object] = [LOGGERS]

    def step_s(self, work: Work) -> float:
        truth = self.truth
        return (
            truth.fixed_s
            + truth.per_token_s * work.tokens
            + truth.per_token_squared_s * work.squares
        )

    async def generate(
        self, prompt: dict[str, list[int]], params: Any, request_id: str
    ) -> AsyncIterator[str]:
        tokens = prompt["prompt_token_ids"]
        for work in steps_of(len(tokens)):
            seconds = self.step_s(work) + (0.0 if self.prompts else 1.3)
            if self.prompts:
                self.costs.observe_step(work, seconds)
            self.now_s += seconds
        self.prompts.append(tokens)
        self.params.append(params)
        self.loggers += self._logger_ref
        yield request_id


async def measured(client: Any) -> int:
    return await warm_up(client, clock_s=lambda: client.now_s)


@pytest.mark.parametrize(
    ("truth", "longest"), [(DEMO, 2048), (LOADED, 512), (GPU, 6000)], ids=["demo", "loaded", "gpu"]
)
async def test_afterwards_prefill_is_known(truth: PrefillCost, longest: int) -> None:
    client = Client(truth)
    assert await measured(client) == len(client.prompts) - 1 >= SURE_AFTER
    assert client.now_s <= MOST_S
    for tokens in (128, longest // 2, longest):
        work = Work.of(0, tokens)
        assert client.costs.prefill(work).is_sure, tokens
        true_s = sum(client.step_s(step) for step in steps_of(tokens))
        assert client.costs.prefill(work).p50_s == pytest.approx(true_s, rel=0.3)


async def test_without_lengths_it_is_only_warm() -> None:
    client = Client()
    assert await warm_up(client, (), lambda: client.now_s) == 0
    assert [len(prompt) for prompt in client.prompts] == [WARM_UP]
    assert set(client.loggers) == {None}


async def test_an_engine_without_a_connector_is_told_nothing() -> None:
    client = Client()
    client.vllm_config.kv_transfer_config = None
    await warm_up(client, (), lambda: client.now_s)
    assert [params.extra_args for params in client.params] == [None]


async def test_a_slow_engine_gets_shorter_prompts_and_no_more_time() -> None:
    client = Client(SLOW)
    await measured(client)
    assert client.now_s <= MOST_S
    assert max(map(len, client.prompts)) < 512


@pytest.mark.parametrize(("max_model_len", "longest"), [(1000, 999), (MIN_TOKENS, 0)])
async def test_prompts_fit_the_model(max_model_len: int, longest: int) -> None:
    client = Client(GPU, max_model_len)
    await measured(client)
    assert max(map(len, client.prompts), default=0) == longest


async def test_nobody_sees_them() -> None:
    client = Client()
    await measured(client)
    assert set(client.loggers) == {None}
    assert client._logger_ref == [LOGGERS]
    for prompt, params in zip(client.prompts, client.params, strict=True):
        assert all(250 <= token < 500 for token in prompt)
        assert Labels.of(params.extra_args["kv_transfer_params"]).is_probe
        assert (params.max_tokens, params.skip_reading_prefix_cache) == (1, True)


class Broken(Client):
    async def generate(self, *_: Any) -> AsyncIterator[str]:
        raise RuntimeError("injected")
        yield ""


@pytest.mark.parametrize("client", [None, SimpleNamespace(), Broken()])
async def test_trouble_is_one_line_and_no_more(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await warm_up(client) == 0
    assert [record.message[:28] for record in caplog.records] == ["the engine was not warmed up"]
    if isinstance(client, Broken):
        assert client._logger_ref == [LOGGERS]


async def test_a_prompt_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = []

    class Hung(Client):
        async def generate(self, *_: Any) -> AsyncIterator[str]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.append(True)
                raise
            yield ""

    monkeypatch.setattr(probe, "MOST_S", 0.02)
    client = Hung()
    assert await warm_up(client) == 0
    assert given_up == [True]
    assert client._logger_ref == [LOGGERS]


async def test_an_engine_without_loggers_is_measured_as_well() -> None:
    client = Client()
    del client._logger_ref
    client.loggers = []
    client.generate = _quietly(client)  # type: ignore[method-assign]
    assert await measured(client) >= 5


def _quietly(client: Client) -> Any:
    async def generate(prompt: dict[str, list[int]], *_: Any) -> AsyncIterator[str]:
        client.now_s += 0.1
        client.prompts.append(prompt["prompt_token_ids"])
        yield ""

    return generate
