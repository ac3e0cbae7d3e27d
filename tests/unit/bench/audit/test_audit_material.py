"""Prompts by stratum and seed: the lengths and shares that a plan names."""

from __future__ import annotations

import re

import pytest

from kvrelay.bench.audit.material import FRACTIONS, Material
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.text import Library


@pytest.fixture(scope="module")
def material() -> Material:
    """A token for each word, or for what lies between words."""
    ids: dict[str, int] = {}

    def encode(words: str) -> list[int]:
        pieces = re.findall(r" ?[a-zA-Z0-9]+|[\s\S]", words)
        return [ids.setdefault(piece, len(ids)) for piece in pieces]

    return Material(Library(encode), lambda tokens: " ".join(map(str, tokens)))


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


def test_who_goes_on_is_asked_what_the_other_has_read(material: Material) -> None:
    made = material.pair(Stratum("same-node", 512, "idle", "high", "en"), 3)
    assert made.task is not None
    assert made.first == made.task.context and made.second[-len(made.task.question) :] == (
        made.task.question
    )
    right = {made.task.options[made.task.answer]: -0.1}
    assert made.task.is_correct(right)
    assert made.second_after((7,), True)[-len(made.task.question) :] == made.task.question
    for similarity, tokens in (("low", 512), ("medium", 512), ("high", 160)):
        stratum = Stratum("same-node", tokens, "idle", similarity, "en")
        assert material.pair(stratum, 3).task is None
