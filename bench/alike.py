"""How alike prompts of token ids are to an embedding model, as `similarity` would be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvrelay.cluster.embedding import packaged_encoder
from kvrelay.policies.similarity import cosine

Cosine = Callable[[Sequence[int], Sequence[int]], float]


def cosine_of_tokens(model: str | Path) -> tuple[Cosine | None, str | None]:
    """What gives the cosine of two prompts; without the extra `embed` none, and the reason.

    Args:
        model: whose tokens they are: its folder or Hugging Face id.
    """
    encoder, reason = packaged_encoder()
    if encoder is None:
        return None, reason
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(str(model)).decode

    def of(one: Sequence[int], other: Sequence[int]) -> float:
        first, second = (encoder(decode(list(tokens))) for tokens in (one, other))
        return min(1.0, max(0.0, float(cosine(first[None, :], second)[0])))

    return of, None
