"""Prompts of real text in token ids, each with an exact length and none like another.

The text is the source code of Python's standard library, which everybody has. Every prompt
begins with a token that no earlier prompt began with, so that two prompts have no common
prefix at all and nothing is found in a cache by accident.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench.errors import BenchError

TEXT_CHARS = 1_500_000
OTHER_TOKENS = 32
_TRIES = 100_000


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one comparison asks.

    Attributes:
        shared: what the first engine computes.
        own: what the engine that is measured has besides; `OTHER_TOKENS` tokens.
        other: a different ending of the same length, for an engine that needs one.
    """

    shared: tuple[int, ...]
    own: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The prompt of the engine that is measured."""
        return self.shared + self.own


class PromptSource:
    """Cuts prompts out of one long stream of tokens, at random places."""

    def __init__(self, stream: Sequence[int], seed: int) -> None:
        """Take a stream of token ids that is much longer than any prompt."""
        self._stream = tuple(stream)
        self._rng = random.Random(seed)
        self._used: set[int] = set()

    @classmethod
    def load(cls, model: str | Path, seed: int) -> PromptSource:
        """The standard library in the tokens of a model: its folder or Hugging Face id."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model))

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

        return cls(standard_library_tokens(encode), seed)

    def take(self, num_tokens: int) -> Prompt:
        """A prompt whose shared part has exactly that many tokens.

        Raises:
            BenchError: the text is too short, or all beginnings are used up.
        """
        last_start = len(self._stream) - num_tokens
        if num_tokens < 1 or last_start < 1:
            raise BenchError(f"no prompt of {num_tokens} tokens in {len(self._stream)} of text")
        for _ in range(_TRIES):
            start = self._rng.randrange(last_start)
            if self._stream[start] not in self._used:
                break
        else:
            raise BenchError("the text has no more distinct beginnings; run fewer repeats")
        self._used.add(self._stream[start])
        shared = self._stream[start : start + num_tokens]
        own = self._cut(OTHER_TOKENS)
        other = self._cut(OTHER_TOKENS)
        while other[0] == own[0]:
            other = self._cut(OTHER_TOKENS)
        return Prompt(shared, own, other)

    def some(self, num_tokens: int) -> tuple[int, ...]:
        """A piece of text that may begin like another one: for what a salt keeps apart.

        Raises:
            BenchError: the text is too short.
        """
        if not 0 < num_tokens < len(self._stream):
            raise BenchError(f"no prompt of {num_tokens} tokens in {len(self._stream)} of text")
        return self._cut(num_tokens)

    def _cut(self, num_tokens: int) -> tuple[int, ...]:
        start = self._rng.randrange(len(self._stream) - num_tokens)
        return self._stream[start : start + num_tokens]


def standard_library_tokens(
    encode: Callable[[str], list[int]], num_chars: int = TEXT_CHARS
) -> list[int]:
    """Token ids of the standard library's modules, in order of their names."""
    stream: list[int] = []
    num_read = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        stream += encode(text)
        num_read += len(text)
        if num_read >= num_chars:
            break
    return stream
