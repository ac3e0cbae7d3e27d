"""Pairs of prompts, A's and B's, at three levels of similarity; lengths exact in tokens.

             |<-- shared: B's first tokens -->|<---- rest ---->|
    high     A is exactly this                 B goes on: B strictly extends A
    medium   both                              A: some themes; B: the same in other words
    low      both                              A: some themes; B: others

The shared part is equal token for token and the token after it differs (in `high` A has ended),
so it is all that a relay can reuse. The level is only what the rest is like: with the shared
fraction held, similarity by any measure changes and what can be reused does not.

Every pair opens with a code of its own, which lies within the first engine block: two pairs share
no block by accident, whatever texts they draw. Runs keep arms apart by salts besides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvrelay.bench.alike import cosine_of_texts
from kvrelay.bench.audit.workload.text import Language, Library, Theme
from kvrelay.bench.errors import BenchError
from kvrelay.cluster.embedding import Encoder
from kvrelay.policies.similarity import Floats, jaccard, prompt_words, signature

Decode = Callable[[Sequence[int]], str]
Tokens = tuple[int, ...]

_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_CODE_LENGTH = 8
# Another draw when the rests happen to begin with the same token: rarely more than two.
_DRAWS = 100
# all-MiniLM-L6-v2 reads 256 word pieces: more than this many characters of English.
_WINDOW_CHARS = 800


class Level(StrEnum):
    """How alike two prompts are beyond what they share."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class PromptPair:
    """What A computes, and what B is asked then.

    Attributes:
        first: A's prompt.
        second: B's prompt.
        shared_tokens: length of their common prefix.
    """

    first: Tokens
    second: Tokens
    shared_tokens: int

    @property
    def shared_prefix_fraction(self) -> float:
        """Of B's prompt."""
        return self.shared_tokens / len(self.second)


@dataclass(frozen=True, slots=True)
class Similarity:
    """A pair by the three measures, each in 0 to 1.

    Attributes:
        shared_prefix_fraction: of B's prompt, exact.
        jaccard: index of the sets of 5-token shingles, estimated as the ingress does.
        cosine: of embeddings of the whole texts; None without an embedding model.
    """

    shared_prefix_fraction: float
    jaccard: float
    cosine: float | None


def pair(
    library: Library,
    level: Level,
    language: Language,
    num_tokens: int,
    shared_prefix_fraction: float,
    *,
    seed: int,
) -> PromptPair:
    """Two prompts; the same arguments give the same ones.

    Args:
        library: the texts in the model's tokens.
        level: what the rest is like.
        language: of both prompts.
        num_tokens: length of B's prompt, and of A's unless the level is high.
        shared_prefix_fraction: of B's prompt, at least 0 and under 1; over 0 if the level is high.
        seed: another seed, another pair.

    Raises:
        BenchError: the fraction cannot be had at this length, or there is too little text.
    """
    shared = round(num_tokens * shared_prefix_fraction)
    least = 1 if level is Level.HIGH else 0
    if not least <= shared < num_tokens:
        raise BenchError(
            f"a prompt of {num_tokens} tokens at level '{level}' cannot share a prefix of {shared}"
        )
    for draw in range(_DRAWS):
        rng = random.Random(f"{level} {language} {num_tokens} {shared} {seed} {draw}")
        first, second = _draw(_Supply(library, language, rng), level, num_tokens, shared)
        if len(first) == shared or first[shared] != second[shared]:
            return PromptPair(first, second, shared)
    raise BenchError(f"every text in '{language}' begins alike; no prefix can end at {shared}")


def _draw(themes: _Supply, level: Level, num_tokens: int, shared: int) -> tuple[Tokens, Tokens]:
    opening = themes.opening()
    if level is Level.HIGH:
        whole = themes.fill(opening, num_tokens)
        return whole[:shared], whole
    common = themes.fill(opening, shared) if shared else ()
    begin: tuple[Tokens, Tokens] = ((), ()) if shared else (opening, themes.opening())
    rest = num_tokens - shared
    if level is Level.LOW:
        ends = themes.fill(begin[0], rest), themes.fill(begin[1], rest)
    else:
        ends = themes.fill_both(begin, rest)
    return common + ends[0], common + ends[1]


class _Supply:
    """Themes in random order, none of them twice in a pair of prompts."""

    def __init__(self, library: Library, language: Language, rng: random.Random) -> None:
        self._library = library
        self._language = language
        self._rng = rng
        self._themes: Iterator[Theme] = iter(library.themes(language, rng))

    def opening(self) -> Tokens:
        """A code that no other prompt is likely to begin with."""
        code = "".join(self._rng.choices(_CODE_LETTERS, k=_CODE_LENGTH))
        return tuple(self._library.encode(f"{code}\n\n"))

    def fill(self, begin: Tokens, count: int) -> Tokens:
        """So many tokens: what is given, then themes."""
        tokens = list(begin)
        while len(tokens) < count:
            theme = self._next(count)
            tokens += self._library.tokens(theme.one) + self._library.tokens(theme.two)
        return tuple(tokens[:count])

    def fill_both(self, begin: tuple[Tokens, Tokens], count: int) -> tuple[Tokens, Tokens]:
        """So many tokens twice, about the same themes."""
        ones, twos = list(begin[0]), list(begin[1])
        while min(len(ones), len(twos)) < count:
            theme = self._next(count)
            ones += self._library.tokens(theme.one)
            twos += self._library.tokens(theme.two)
        return tuple(ones[:count]), tuple(twos[:count])

    def _next(self, count: int) -> Theme:
        theme = next(self._themes, None)
        if theme is None:
            raise BenchError(f"too little text in '{self._language}' for prompts with {count} more")
        return theme


def measure(prompts: PromptPair, decode: Decode, encoder: Encoder | None = None) -> Similarity:
    """A pair by the three measures.

    Args:
        prompts: the pair.
        decode: the text of token ids.
        encoder: gives a text's unit vector; `whole_text` makes one that reads all of it.
    """
    angle = None
    if encoder is not None:
        angle = cosine_of_texts(encoder, decode(prompts.first), decode(prompts.second))
    index = _shingle_index(prompts.first, prompts.second)
    return Similarity(prompts.shared_prefix_fraction, index, angle)


def _shingle_index(first: Tokens, second: Tokens) -> float:
    one, two = (signature(prompt_words(list(each))) for each in (first, second))
    if one is None or two is None:
        raise ValueError("a prompt has at least one token")
    return float(jaccard(one[None, :], two)[0])


def whole_text(encoder: Encoder) -> Encoder:
    """An encoder whose vector stands for all of a text: the mean over its windows.

    Embedding models read only a text's beginning, so that two prompts with a long common prefix
    have a cosine of one whatever comes after it, and nothing could be told of similarity apart
    from the prefix.
    """

    def encode(text: str) -> Floats:
        starts = range(0, max(1, len(text)), _WINDOW_CHARS)
        windows = [text[at : at + _WINDOW_CHARS] for at in starts]
        vectors = [encoder(window) for window in windows]
        mean = np.average(vectors, axis=0, weights=[max(1, len(window)) for window in windows])
        vector: Floats = mean / max(float(np.linalg.norm(mean)), np.finfo(np.float32).tiny)
        return vector

    return encode
