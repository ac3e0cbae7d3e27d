"""The cosine of prompts of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import transformers

from kvrelay.bench import alike
from kvrelay.policies.similarity import Floats


def test_it_is_that_of_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {"a": np.array([1.0, 0.0]), "a b": np.array([0.6, 0.8]), "c": np.array([-1.0, 0.0])}

    def encode(text: str) -> Floats:
        found: Floats = vectors[text]
        return found

    def decode(tokens: Sequence[int]) -> str:
        return " ".join("abc"[token] for token in tokens)

    monkeypatch.setattr(alike, "packaged_encoder", lambda: (encode, None))
    tokenizer = SimpleNamespace(from_pretrained=lambda model: SimpleNamespace(decode=decode))
    monkeypatch.setattr(transformers, "AutoTokenizer", tokenizer)
    cosine, reason = alike.cosine_of_tokens("any")
    assert cosine is not None and reason is None
    assert cosine((0,), (0, 1)) == pytest.approx(0.6)
    assert cosine((0,), (0,)) == 1.0
    assert cosine((0,), (2,)) == 0.0


def test_without_the_extra_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "packaged_encoder", lambda: (None, "not installed"))
    assert alike.cosine_of_tokens("any") == (None, "not installed")
