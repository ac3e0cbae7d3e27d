"""A tokenizer made up for these tests: words with the space before them, and single signs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from kvrelay.bench.audit.workload.text import Library

_PIECES = re.compile(r" ?[a-zA-Z0-9]+|\n+|[\s\S]")


class Words:
    """Numbers the pieces of texts as they come."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in _PIECES.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
            ids.append(self._ids[piece])
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in token_ids)


@pytest.fixture(scope="session")
def words() -> Words:
    return Words()


@pytest.fixture(scope="session")
def library(words: Words) -> Library:
    return Library(words.encode)
