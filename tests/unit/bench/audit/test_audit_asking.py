"""What the client makes of a stream's chunks, and of answers that are not whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvrelay.bench.audit.asking import AuditClient
from kvrelay.bench.errors import BenchError


class Streaming(AuditClient):
    """Has the chunks of an answer already."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self._chunks = chunks
        self.asked: dict[str, Any] = {}

    def _stream(
        self, agent: str, prompt: Sequence[int], max_tokens: int, **extra: Any
    ) -> Iterator[Any]:
        self.asked = {"agent": agent, "max_tokens": max_tokens, **extra}
        yield from self._chunks


def chunk(*tokens: int, text: str = "", usage: Any = None) -> SimpleNamespace:
    names = [f"token_id:{token}" for token in tokens]
    logprobs = SimpleNamespace(
        tokens=names, top_logprobs=[{n: -0.5, "token_id:9": -2.0} for n in names]
    )
    choices = [SimpleNamespace(text=text, logprobs=logprobs)] if usage is None else []
    return SimpleNamespace(id="cmpl-1", choices=choices, usage=usage)


def used(cached: int | None) -> SimpleNamespace:
    details = None if cached is None else SimpleNamespace(cached_tokens=cached)
    return SimpleNamespace(prompt_tokens_details=details)


def test_a_whole_answer() -> None:
    client = Streaming([chunk(5, text="a"), chunk(6), chunk(7, text=" b"), chunk(usage=used(384))])
    reply = client.ask("b", (1, 2), "relay", "s", 3)
    assert (reply.answer, reply.tokens, reply.text, reply.cached_tokens) == (
        "cmpl-1",
        (5, 6, 7),
        "a b",
        384,
    )
    assert reply.output.logprobs[0] == {5: -0.5, 9: -2.0}
    assert 0 <= reply.ttft_s <= reply.e2e_s
    assert client.asked["mode"] == "relay" and client.asked["salt"] == "s"
    assert client.asked["ignore_eos"]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([chunk(5), chunk(usage=used(0))], "sent 1 of 2 tokens"),
        ([chunk(usage=used(0))], "sent 0 of 2 tokens"),
        ([chunk(5), chunk(6)], "does not count cached tokens"),
        ([chunk(5), chunk(6), chunk(usage=used(None))], "does not count cached tokens"),
    ],
)
def test_what_is_not_whole_is_no_answer(chunks: list[Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        Streaming(chunks).ask("b", (1,), "recompute", "s", 2)
