"""Prompts: exact lengths, and none that begins like another."""

from __future__ import annotations

import pytest

from kvrelay.bench.errors import BenchError
from kvrelay.bench.prompts import OTHER_TOKENS, PromptSource, standard_library_tokens

STREAM = [(i * 7919) % 5003 for i in range(40_000)]


@pytest.mark.parametrize("length", [1, 127, 128, 129, 7900])
def test_lengths_are_exact(length: int) -> None:
    prompt = PromptSource(STREAM, seed=1).take(length)
    assert len(prompt.shared) == length
    assert len(prompt.own) == len(prompt.other) == OTHER_TOKENS
    assert prompt.whole == prompt.shared + prompt.own
    assert prompt.own[0] != prompt.other[0]


def test_no_two_prompts_have_a_common_prefix() -> None:
    source = PromptSource(STREAM, seed=1)
    first = [source.take(64).shared[0] for _ in range(500)]
    assert len(set(first)) == len(first)


def test_a_seed_repeats_its_prompts() -> None:
    assert PromptSource(STREAM, 5).take(100) == PromptSource(STREAM, 5).take(100)
    assert PromptSource(STREAM, 5).take(100) != PromptSource(STREAM, 6).take(100)


def test_text_that_does_not_suffice_is_an_error() -> None:
    with pytest.raises(BenchError, match="no prompt of 100 tokens"):
        PromptSource(STREAM[:100], 1).take(100)
    source = PromptSource([1, 2] * 500, 1)
    source.take(10), source.take(10)
    with pytest.raises(BenchError, match="distinct beginnings"):
        source.take(10)


def test_the_text_is_the_standard_librarys() -> None:
    pieces: list[str] = []

    def encode(text: str) -> list[int]:
        pieces.append(text)
        return [len(text)]

    tokens = standard_library_tokens(encode, num_chars=100_000)
    assert tokens == [len(piece) for piece in pieces]
    assert sum(tokens) >= 100_000
    assert any("import" in piece for piece in pieces)
