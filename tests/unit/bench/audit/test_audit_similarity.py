"""Pairs of prompts: exact lengths and prefixes, three levels, three measures."""

from __future__ import annotations

import statistics
import zlib
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.workload.quality import common_prefix, units
from kvrelay.bench.audit.workload.similarity import Level, measure, pair, whole_text
from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.bench.errors import BenchError
from kvrelay.policies.similarity import Floats

TOKENS = 600
BLOCK = 32
COMMON = frozenset(
    units("的是在了和有就也把被会一不从而它这那要得 the a of and is in to it that as")
)


def bag(text: str) -> Floats:
    """A stand-in for an embedding: which words a text has, without the most common ones."""
    vector = np.zeros(4096)
    for unit in units(text.lower()):
        if unit not in COMMON and unit.isalnum():
            vector[zlib.crc32(unit.encode()) % len(vector)] += 1
    norm: Floats = vector / max(1.0, float(np.linalg.norm(vector)))
    return norm


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("fraction", [0.001, 0.25, 0.5, 0.95])
def test_lengths_and_prefixes_are_exact(
    library: Library, level: Level, language: Language, fraction: float
) -> None:
    for num_tokens in (100, 2048):
        shared = round(num_tokens * fraction)
        if not shared and level is Level.HIGH:
            continue
        prompts = pair(library, level, language, num_tokens, fraction, seed=5)
        assert len(prompts.second) == num_tokens
        assert len(prompts.first) == (shared if level is Level.HIGH else num_tokens)
        assert prompts.shared_tokens == shared
        assert common_prefix(prompts.first, prompts.second) == shared
        assert prompts.shared_prefix_fraction == pytest.approx(fraction, abs=0.5 / num_tokens)


@pytest.mark.parametrize("level", [Level.MEDIUM, Level.LOW])
def test_nothing_may_be_shared(library: Library, level: Level) -> None:
    for seed in range(20):
        prompts = pair(library, level, Language.CHINESE, 200, 0.0, seed=seed)
        assert prompts.shared_tokens == 0
        assert prompts.first[0] != prompts.second[0]


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("level", Level)
def test_a_seed_repeats_its_pair_and_no_other(
    library: Library, level: Level, language: Language
) -> None:
    made = [pair(library, level, language, 256, 0.5, seed=seed) for seed in range(30)]
    assert pair(library, level, language, 256, 0.5, seed=3) == made[3]
    blocks = [prompts.second[:BLOCK] for prompts in made]
    assert len(set(blocks)) == len(blocks)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_high_needs_something_shared_and_something_more(library: Library, fraction: float) -> None:
    with pytest.raises(BenchError, match="cannot share a prefix"):
        pair(library, Level.HIGH, Language.ENGLISH, 100, fraction, seed=1)


def test_prompts_past_the_text_are_an_error(library: Library) -> None:
    with pytest.raises(BenchError, match="too little text in 'zh'"):
        pair(library, Level.LOW, Language.CHINESE, 1_000_000, 0.5, seed=1)


def test_texts_that_all_begin_alike_are_an_error() -> None:
    # No draw can end the common prefix where it should.
    same = Library(lambda text: [7] * len(text))
    with pytest.raises(BenchError, match="begins alike"):
        pair(same, Level.LOW, Language.ENGLISH, 100, 0.5, seed=1)


@pytest.mark.parametrize("language", Language)
def test_the_levels_differ_by_what_they_are_named_for(
    library: Library, words: Any, language: Language
) -> None:
    """Without a common prefix; with one that is held, only the rest can differ."""

    def means(level: Level, fraction: float) -> tuple[float, float]:
        found = [
            measure(
                pair(library, level, language, TOKENS, fraction, seed=seed),
                words.decode,
                whole_text(bag),
            )
            for seed in range(8)
        ]
        cosines = [each.cosine for each in found if each.cosine is not None]
        assert len(cosines) == len(found)
        return statistics.fmean(each.jaccard for each in found), statistics.fmean(cosines)

    high, medium, low = means(Level.HIGH, 0.9), means(Level.MEDIUM, 0.0), means(Level.LOW, 0.0)
    assert high[0] > 0.8 and high[1] > 0.9
    # Other words: no more shingles in common than unrelated texts, but the same subject.
    assert medium[0] < 0.1 and low[0] < 0.1
    assert high[1] > medium[1] > low[1] + 0.1
    medium, low = means(Level.MEDIUM, 0.3), means(Level.LOW, 0.3)
    assert medium[1] > low[1] + 0.05


def test_measures_of_a_known_pair(library: Library, words: Any) -> None:
    prompts = pair(library, Level.HIGH, Language.ENGLISH, 400, 0.5, seed=1)
    seen = measure(prompts, words.decode)
    assert (seen.shared_prefix_fraction, seen.cosine) == (0.5, None)
    # 196 of 396 shingles.
    assert seen.jaccard == pytest.approx(196 / 396, abs=0.15)


def test_a_whole_text_is_more_than_its_beginning() -> None:
    beginning = "the tide comes in and goes out again " * 40

    def reads_little(text: str) -> Floats:
        return bag(text[:800])

    one, two = beginning + "copper " * 200, beginning + "violins " * 200
    assert reads_little(one) @ reads_little(two) == pytest.approx(1.0)
    vectors = [whole_text(reads_little)(text) for text in (one, two)]
    assert vectors[0] @ vectors[1] < 0.9
    assert [float(np.linalg.norm(each)) for each in vectors] == pytest.approx([1.0, 1.0])
    short = whole_text(reads_little)("copper")
    assert short == pytest.approx(reads_little("copper"))
