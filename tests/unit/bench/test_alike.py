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

    tokenizer = SimpleNamespace(from_pretrained=lambda model: SimpleNamespace(decode=decode))
    monkeypatch.setattr(transformers, "AutoTokenizer", tokenizer)
    cosine = alike.cosine_of_tokens("any", encode)
    assert cosine is not None
    assert cosine((0,), (0, 1)) == pytest.approx(0.6)
    assert cosine((0,), (0,)) == 1.0
    assert cosine((0,), (2,)) == 0.0


def test_without_an_encoder_there_is_none() -> None:
    assert alike.cosine_of_tokens("any", None) is None
