"""Prompts by stratum and seed: the lengths and shares that a plan names."""

from __future__ import annotations

import pytest

from kvrelay.bench.audit.material import FRACTIONS, Material
from kvrelay.bench.audit.strata import Stratum

text = pytest.importorskip("kvrelay.bench.audit.text")


@pytest.fixture(scope="module")
def material() -> Material:
    """A token for each character."""
    library = text.Library(lambda words: [ord(letter) for letter in words])
    return Material(library, lambda tokens: "".join(map(chr, tokens)))


@pytest.mark.parametrize("similarity", ["high", "medium", "low"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_prompts_have_what_their_stratum_says(
    material: Material, similarity: str, language: str
) -> None:
    stratum = Stratum("same-node", 512, "idle", similarity, language)
    for seed in range(6):
        made = material.pair(stratum, seed)
        assert len(made.second) == 512
        assert made.shared_tokens in {round(512 * share) for share in FRACTIONS[similarity]}
        assert made.first[: made.shared_tokens] == made.second[: made.shared_tokens]
        assert made.extends == (similarity == "high")
        assert made.jaccard is not None and 0 <= made.jaccard <= 1 and made.cosine is None
        assert material.pair(stratum, seed) == made
        assert material.pair(stratum, seed + 100).second != made.second
