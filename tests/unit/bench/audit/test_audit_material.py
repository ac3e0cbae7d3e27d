"""Prompts by stratum and seed: the lengths and shares that a plan names."""

from __future__ import annotations

import re

import pytest

from kvrelay.bench.audit.material import FRACTIONS, Material
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape
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
    assert made.second_after((7,))[-len(made.task.question) :] == made.task.question
    for similarity, tokens in (("low", 512), ("medium", 512), ("high", 160)):
        stratum = Stratum("same-node", tokens, "idle", similarity, "en")
        assert material.pair(stratum, 3).task is None


def test_turns_ask_other_questions_of_the_same_context(material: Material) -> None:
    stratum = Stratum("same-node", 1024, "idle", "high", "en")
    made = material.pair(stratum, 3)
    session = material.session(stratum, 3, made, Shape.FAN_OUT, 6)
    assert session.opening == session.document == made.first
    _, second, *later = session.turns
    assert (second.own, second.task) == (made.own, made.task)
    assert {len(turn.own) for turn in later} == {len(made.own)}
    assert len({turn.own for turn in session.turns}) == 6
    questions = [turn.task.question for turn in (second, *later) if turn.task is not None]
    assert len(questions) == 5 and len(set(questions)) == 4  # as many as there are keys
    for turn in later:
        assert turn.task is not None and turn.task.context == made.first
        assert turn.own[-len(turn.task.question) :] == turn.task.question
    assert session == material.session(stratum, 3, made, Shape.FAN_OUT, 6)


def test_prompts_that_do_not_go_on_share_the_document_alone(material: Material) -> None:
    stratum = Stratum("same-node", 512, "idle", "medium", "zh")
    made = material.pair(stratum, 4)
    for shape, turns in ((Shape.SHARED_DOCUMENT, 4), (Shape.PIPELINE, HAND_OVER)):
        session = material.session(stratum, 4, made, shape, turns)
        assert session.opening == made.first
        assert session.document == made.first[: made.shared_tokens]
        assert session.document + session.turns[1].own == made.second
        assert {turn.extends for turn in session.turns} == {None}
        assert {turn.task for turn in session.turns} == {None}
