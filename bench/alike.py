"""How alike prompts of token ids are to an embedding model, as `similarity` would be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvrelay.cluster.embedding import Encoder
from kvrelay.policies.similarity import cosine

Cosine = Callable[[Sequence[int], Sequence[int]], float]


def cosine_of_texts(encoder: Encoder, one: str, other: str) -> float:
    """From 0 to 1; what points the other way is not alike at all."""
    first, second = encoder(one), encoder(other)
    return min(1.0, max(0.0, float(cosine(first[None, :], second)[0])))


def cosine_of_tokens(model: str | Path, encoder: Encoder | None) -> Cosine | None:
    """What gives the cosine of two prompts; None without an encoder.

    Args:
        model: whose tokens they are: its folder or Hugging Face id.
        encoder: gives a text's unit vector.
    """
    if encoder is None:
        return None
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(str(model)).decode
    return lambda one, other: cosine_of_texts(encoder, decode(list(one)), decode(list(other)))
