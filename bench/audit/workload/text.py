"""Real text for the audit's prompts, by theme: what two agents may read about one subject.

Two kinds, both prose on technical subjects:

    shipped   texts/*.txt, our own: every theme twice, the second time in other words
    found     English only: the language reference that CPython installs with itself
              (`pydoc_data.topics`); a theme's two texts are alternate paragraphs of one entry,
              so they share the subject but not the statements

Found themes only serve prompts for which the shipped ones are too short. They differ between
versions of Python, so a run writes down `digest`, and a run on another machine may compare it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvrelay.bench.errors import BenchError

Encode = Callable[[str], Sequence[int]]

_FOLDER = Path(__file__).with_name("texts")
_MARK = "== "
# About as long as a shipped theme, so that prompts are not made of a single found one.
_FOUND_CHARS = 1200
_MIN_PARAGRAPH_CHARS = 80


class Language(StrEnum):
    """What the texts are written in."""

    ENGLISH = "en"
    CHINESE = "zh"


@dataclass(frozen=True, slots=True)
class Theme:
    """One subject in two texts.

    Attributes:
        name: what it is called; unique within a language and a kind.
        one: a paragraph or several.
        two: the same in other words, or more on the same subject.
    """

    name: str
    one: str
    two: str


def shipped(language: Language) -> tuple[Theme, ...]:
    """The project's own themes, the same names in every language.

    Raises:
        BenchError: the file is not there, or a theme in it does not have two paragraphs.
    """
    file = _FOLDER / f"{language}.txt"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{file} cannot be read: {error}") from error
    return parse_themes(text)


def parse_themes(text: str) -> tuple[Theme, ...]:
    """Themes in the form of texts/*.txt: a line `== name`, then one line for each paragraph.

    Raises:
        BenchError: a theme does not have two paragraphs, or a name comes twice.
    """
    sections = f"\n{text}".split(f"\n{_MARK}")[1:]
    themes: dict[str, Theme] = {}
    for section in sections:
        name, *paragraphs = [line.strip() for line in section.splitlines() if line.strip()]
        if len(paragraphs) != 2 or name in themes:
            raise BenchError(f"theme '{name}' needs a name of its own and two paragraphs")
        themes[name] = Theme(name, *paragraphs)
    return tuple(themes.values())


def found(language: Language) -> tuple[Theme, ...]:
    """Themes from texts that every installation has; none in Chinese."""
    if language is not Language.ENGLISH:
        return ()
    from pydoc_data.topics import topics

    return alternating(topics.items())


def alternating(entries: Iterable[tuple[str, str]]) -> tuple[Theme, ...]:
    """Themes from longer texts: one takes the odd paragraphs of each, two the even ones.

    No paragraph is used twice, although entries may quote each other; what is then too short
    for two texts is left out.

    Args:
        entries: names and texts, whose paragraphs are separated by empty lines.
    """
    seen: set[str] = set()
    themes = []
    # The short ones first: a long entry is often made of others.
    for name, text in sorted(entries, key=lambda entry: (len(entry[1]), entry[0])):
        paragraphs = [" ".join(each.split()) for each in text.split("\n\n")]
        paragraphs = [each for each in paragraphs if len(each) >= _MIN_PARAGRAPH_CHARS]
        new = [each for each in dict.fromkeys(paragraphs) if each not in seen]
        one, two = _up_to(new[0::2]), _up_to(new[1::2])
        if min(len(one), len(two)) * 2 < _FOUND_CHARS:
            continue
        seen.update(new)
        themes.append(Theme(name, one, two))
    return tuple(themes)


def _up_to(paragraphs: Sequence[str]) -> str:
    """Paragraphs until there are _FOUND_CHARS; cut in the middle of the last."""
    return "\n".join(paragraphs)[:_FOUND_CHARS].rstrip()


def digest(themes: Iterable[Theme]) -> str:
    """SHA-256 of texts: equal digests, equal prompts."""
    state = hashlib.sha256()
    for theme in themes:
        for part in (theme.name, theme.one, theme.two):
            raw = part.encode()
            state.update(len(raw).to_bytes(8, "big") + raw)
    return state.hexdigest()


class Library:
    """The themes of both languages in the tokens of one model; each is encoded once."""

    def __init__(self, encode: Encode) -> None:
        """`encode` gives a text's token ids, without special tokens."""
        self.encode = encode
        self._shipped = {language: shipped(language) for language in Language}
        self._found = {language: found(language) for language in Language}
        self._tokens: dict[str, tuple[int, ...]] = {}

    def themes(self, language: Language, rng: random.Random) -> list[Theme]:
        """All themes in random order, the shipped ones before the found ones."""
        return [
            theme
            for kind in (self._shipped[language], self._found[language])
            for theme in rng.sample(kind, len(kind))
        ]

    def tokens(self, text: str) -> tuple[int, ...]:
        """A paragraph's token ids, with the end of the paragraph."""
        if text not in self._tokens:
            self._tokens[text] = tuple(self.encode(text + "\n\n"))
        return self._tokens[text]

    def paragraphs(self, language: Language, num_tokens: int, seed: int) -> list[str]:
        """Paragraphs of at least so many tokens in all, none twice, from many themes first.

        Raises:
            BenchError: there is not so much text.
        """
        rng = random.Random(f"paragraphs {language} {num_tokens} {seed}")
        themes = self.themes(language, rng)
        chosen: list[str] = []
        count = 0
        for text in [theme.one for theme in themes] + [theme.two for theme in themes]:
            if count >= num_tokens:
                break
            chosen.append(text)
            count += len(self.tokens(text))
        if count < num_tokens:
            raise BenchError(f"{count} tokens of text in '{language}' make no {num_tokens}")
        return chosen

    def passage(self, language: Language, num_tokens: int, seed: int) -> tuple[int, ...]:
        """The first so many tokens of such paragraphs.

        Raises:
            BenchError: there is not so much text.
        """
        paragraphs = self.paragraphs(language, num_tokens, seed)
        return tuple(token for each in paragraphs for token in self.tokens(each))[:num_tokens]

    def document(self, language: Language, num_tokens: int, seed: int) -> str:
        """Such paragraphs as one text, to be cut to size (`ChatLayout.truncate`).

        Raises:
            BenchError: there is not so much text.
        """
        return "\n\n".join(self.paragraphs(language, num_tokens, seed))

    def digest(self) -> str:
        """SHA-256 of all texts, to be written down with a run."""
        return digest(
            theme
            for language in Language
            for kind in (self._shipped[language], self._found[language])
            for theme in kind
        )
