"""The audit's texts: what is shipped, what is found, and that none of it comes twice."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from kvrelay.bench.audit.workload.text import (
    Language,
    Library,
    Theme,
    alternating,
    digest,
    found,
    parse_themes,
    shipped,
)
from kvrelay.bench.errors import BenchError
from kvrelay.policies.similarity import jaccard, prompt_words, signature

IDEOGRAPHS = re.compile("[\u4e00-\u9fff]")


def likeness(one: str, two: str) -> float:
    rows: Sequence[Any] = [signature(prompt_words(each)) for each in (one, two)]
    return float(jaccard(rows[0][None, :], rows[1])[0])


def test_both_languages_ship_the_same_themes() -> None:
    names = {language: [theme.name for theme in shipped(language)] for language in Language}
    assert names[Language.ENGLISH] == names[Language.CHINESE]
    assert len(names[Language.ENGLISH]) >= 24


@pytest.mark.parametrize("language", Language)
def test_the_two_texts_of_a_theme_are_other_words(language: Language) -> None:
    for theme in shipped(language):
        assert likeness(theme.one, theme.two) < 0.1, theme.name


@pytest.mark.parametrize("language", Language)
def test_no_text_repeats_another(language: Language) -> None:
    texts = [text for theme in shipped(language) for text in (theme.one, theme.two)]
    texts += [text for theme in found(language) for text in (theme.one, theme.two)]
    assert len(set(texts)) == len(texts)
    starts = [text[:60] for text in texts]
    assert len(set(starts)) == len(starts)


def test_texts_are_in_their_language() -> None:
    for theme in shipped(Language.CHINESE):
        for text in (theme.one, theme.two):
            assert len(IDEOGRAPHS.findall(text)) > 0.8 * len(text), theme.name
    for theme in shipped(Language.ENGLISH):
        assert (theme.one + theme.two).isascii(), theme.name


@pytest.mark.parametrize(
    "text", ["== a\nonly one\n", "== a\none\ntwo\nthree\n", "== a\n1\n2\n== a\n3\n4\n"]
)
def test_a_theme_needs_a_name_and_two_texts(text: str) -> None:
    with pytest.raises(BenchError, match="theme 'a'"):
        parse_themes(text)


def test_themes_are_read_past_the_head() -> None:
    text = "# head\n\n== a\nfirst\n\nsecond == not a mark\n\n== b\n1\n2\n"
    assert parse_themes(text) == (Theme("a", "first", "second == not a mark"), Theme("b", "1", "2"))


def test_every_python_has_english_to_find() -> None:
    themes = found(Language.ENGLISH)
    assert len(themes) >= 20
    assert all(min(len(theme.one), len(theme.two)) >= 600 for theme in themes)
    assert found(Language.CHINESE) == ()


def paragraph(letter: str) -> str:
    return " ".join(letter * 9 for _ in range(70))


def test_paragraphs_alternate_and_none_is_used_twice() -> None:
    a, b, c, d, e, f = (paragraph(letter) for letter in "abcdef")
    whole = "\n\n".join([a, b, c, d, "short", e, f, e])
    themes = alternating([("long", whole), ("small", "\n\n".join([c, d, c])), ("none", b)])
    # The smaller entry is read first, and what it has is taken out of the longer one.
    cut = 1200
    assert themes == (
        Theme("small", c, d),
        Theme("long", f"{a}\n{e}"[:cut].rstrip(), f"{b}\n{f}"[:cut].rstrip()),
    )


def test_a_digest_tells_texts_apart() -> None:
    themes = [Theme("a", "b", "cd"), Theme("a", "bc", "d"), Theme("ab", "", "cd")]
    assert len({digest([theme]) for theme in themes}) == len(themes)
    assert digest(themes) == digest(list(themes))


@pytest.mark.parametrize("language", Language)
def test_paragraphs_are_enough_and_repeat_by_seed(language: Language, library: Library) -> None:
    chosen = library.paragraphs(language, 3000, seed=1)
    assert sum(len(library.tokens(text)) for text in chosen) >= 3000
    assert sum(len(library.tokens(text)) for text in chosen[:-1]) < 3000
    assert len(set(chosen)) == len(chosen)
    assert chosen == library.paragraphs(language, 3000, seed=1)
    assert chosen != library.paragraphs(language, 3000, seed=2)
    assert library.document(language, 3000, 1).split("\n\n") == chosen


def test_more_text_than_there_is_is_an_error(library: Library) -> None:
    with pytest.raises(BenchError, match="make no 10000000"):
        library.paragraphs(Language.CHINESE, 10_000_000, seed=1)


def test_shipped_themes_come_first(library: Library) -> None:
    names = [theme.name for theme in library.themes(Language.ENGLISH, random.Random(3))]
    ours = [theme.name for theme in shipped(Language.ENGLISH)]
    assert sorted(names[: len(ours)]) == sorted(ours)
    assert names[: len(ours)] != ours
    assert len(names) == len(ours) + len(found(Language.ENGLISH))
