"""Prompts by stratum and seed: the lengths and shares that a plan names."""

from __future__ import annotations

import importlib.util
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit import material as material_module
from kvrelay.bench.audit.material import FRACTIONS, Material, encoder_of
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape
from kvrelay.bench.audit.workload.text import Library
from kvrelay.cluster import embedding
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.similarity import Floats


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


def bag(text: str) -> Floats:
    """A stand-in for an embedding: how often a text has which words, of length one."""
    vector = np.zeros(512)
    for word in text.split():
        vector[zlib.crc32(word.encode()) % len(vector)] += 1
    found: Floats = vector / float(np.linalg.norm(vector))
    return found


def test_an_embedding_model_adds_the_cosine_and_changes_nothing_else(material: Material) -> None:
    labelled = Material(material._library, material._decode, bag)
    for similarity, least in (("high", 0.8), ("low", 0.0)):
        stratum = Stratum("same-node", 512, "idle", similarity, "en")
        made = labelled.pair(stratum, 3)
        assert made.cosine is not None and least <= made.cosine <= 1.0
        assert replace(made, cosine=None) == material.pair(stratum, 3)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The extra is installed; the models that are loaded."""
    names: list[str] = []

    def load(name: str) -> Any:
        names.append(name)
        if name == "missing":
            raise ConfigError("relay.embedding_model: 'missing' cannot be loaded: no such model")
        return bag

    monkeypatch.setattr(embedding, "unavailable", lambda: None)
    monkeypatch.setattr(embedding, "load_encoder", load)
    monkeypatch.setattr(material_module, "load_encoder", load)
    return names


def test_the_packaged_model_is_taken_unless_the_plan_names_one(loaded: list[str]) -> None:
    for named in (None, "other/model"):
        encoder, reason = encoder_of(named)
        assert encoder is not None and reason is None
        assert encoder("one two") == pytest.approx(bag("one two"))
    assert loaded == ["minilm", "other/model"]


def test_without_the_extra_there_is_a_reason_and_no_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    encoder, reason = encoder_of(None)
    assert encoder is None
    assert reason == "sentence-transformers is not installed; pip install 'kvrelay[embed]'"
    with pytest.raises(ConfigError, match=r"relay\.embedding_model: sentence-transformers is not"):
        encoder_of("minilm")


def test_a_model_that_is_named_has_to_be_there(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'missing' cannot be loaded"):
        encoder_of("missing")
    # The packaged one need not be: sentence-transformers may have come without the extra.
    monkeypatch.setattr(embedding, "PACKAGED", "missing")
    encoder, reason = encoder_of(None)
    assert encoder is None and reason is not None
    assert "'missing' cannot be loaded" in reason and "pip install 'kvrelay[embed]'" in reason


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
