"""By what key KV is looked for: the article's keys, and ours, replayed over a trace of prompts.

    whole prompt      a digest of all tokens
    first tokens      the first 50
    semantic          a bucket of MinHash signatures, and the first 8 tokens
    prefix blocks     a chain of digests, one for each block of tokens (kvrelay.relay.keys)

A hit reuses the KV of the earlier prompt, position by position, as far as both prompts go; with
prefix blocks, as far as blocks were found. KV of a position belongs to all tokens up to it. So a
reuse is wrong as soon as one of its tokens is another one than in the prompt that it is for. That
is judged by comparing the tokens of both prompts, for every key alike.

Memory has no end here, and a later prompt takes the place of an earlier one with the same key: what
differs between the keys is what they find.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from kvrelay.policies.similarity import NUM_MINIMA, prompt_words, signature
from kvrelay.relay.blocks import BlockChain
from kvrelay.relay.keys import KEY_BYTES, BlockKey, common_prefix_tokens, pack_tokens, root_key

FIRST_TOKENS = 50
SEMANTIC_TOKENS = 8
# Two prompts with Jaccard index s share one of b buckets of r minima with probability
# 1 - (1 - s^r)^b, half of it near (1/b)^(1/r): here 0.88, where the article speaks of high
# similarity from 0.85 on (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", 3.4.2).
BUCKET_MINIMA = 16
Tokens = Sequence[int]


class Reuse(NamedTuple):
    """What a hit takes over.

    Attributes:
        source: number of the prompt whose KV it is.
        num_tokens: how many of its first positions; at least one.
    """

    source: int
    num_tokens: int


class Key(ABC):
    """A way to look for KV, and all that it remembers."""

    name: str

    @abstractmethod
    def find_and_add(self, number: int, prompt: Tokens) -> Reuse | None:
        """What of earlier prompts would be reused for one, which is remembered from then on.

        At least one token of a prompt is left to compute. Prompts come in order of their numbers.
        """


class _Whole(Key):
    """Keys that stand for a whole earlier prompt, of which everything is taken."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, tuple[int, int]] = {}

    def find_and_add(self, number: int, prompt: Tokens) -> Reuse | None:
        keys = list(self.keys_of(prompt))
        source, length = max((self._latest[k] for k in keys if k in self._latest), default=(0, 0))
        self._latest.update(dict.fromkeys(keys, (number, len(prompt))))
        num_tokens = min(length, len(prompt) - 1)
        return Reuse(source, num_tokens) if num_tokens > 0 else None

    @abstractmethod
    def keys_of(self, prompt: Tokens) -> Iterable[Hashable]:
        """Under what a prompt is remembered, and looked for; any of them is a hit."""


class WholePrompt(_Whole):
    """A digest of the prompt."""

    name = "hash of the whole prompt"

    def keys_of(self, prompt: Tokens) -> Iterable[Hashable]:
        yield hashlib.blake2b(pack_tokens(prompt)).digest()


class FirstTokens(_Whole):
    """The first tokens, whatever comes after them."""

    name = f"first {FIRST_TOKENS} tokens"

    def keys_of(self, prompt: Tokens) -> Iterable[Hashable]:
        yield tuple(prompt[:FIRST_TOKENS])


class Semantic(_Whole):
    """Buckets of likeness, and the first few tokens."""

    name = f"semantic hash (MinHash) and first {SEMANTIC_TOKENS} tokens"

    def keys_of(self, prompt: Tokens) -> Iterable[Hashable]:
        minima = signature(prompt_words(list(prompt)))
        if minima is not None:
            begin = tuple(prompt[:SEMANTIC_TOKENS])
            for at in range(0, NUM_MINIMA, BUCKET_MINIMA):
                yield at, minima[at : at + BUCKET_MINIMA].tobytes(), begin


class PrefixBlocks(Key):
    """Ours: whole blocks under keys that stand for all tokens up to their ends."""

    def __init__(self, block_tokens: int) -> None:
        self.name = f"exact prefix, blocks of {block_tokens} tokens"
        self._block_tokens = block_tokens
        self._latest: dict[BlockKey, int] = {}

    def find_and_add(self, number: int, prompt: Tokens) -> Reuse | None:
        num_full = len(prompt) // self._block_tokens
        chain = BlockChain(root_key(bytes(KEY_BYTES)), self._block_tokens)
        chain.extend(prompt, num_full)
        found = None
        for block in range((len(prompt) - 1) // self._block_tokens):
            source = self._latest.get(chain.key(block))
            if source is None:
                break
            found = Reuse(source, (block + 1) * self._block_tokens)
        self._latest.update({chain.key(block): number for block in range(num_full)})
        return found


def all_keys(block_tokens: int) -> list[Key]:
    """The article's three and ours, which know nothing yet."""
    return [WholePrompt(), FirstTokens(), Semantic(), PrefixBlocks(block_tokens)]


def replay(prompts: Sequence[Tokens], keys: Sequence[Key]) -> list[dict[str, Any]]:
    """`keys` of the analysis: one row for each key.

    Args:
        prompts: token ids, in the order of the trace.
        keys: which know nothing yet.

    Returns:
        `key`, `hit_rate` (share of all prompts), `wrong_reuse_rate` (share of the hits; None
        without a hit), `right_token_rate` (share of all tokens whose KV is reused by hits that
        are not wrong), `n` (prompts).

    Raises:
        ValueError: there is no prompt, or an empty one.
    """
    if not prompts or not all(prompts):
        raise ValueError("a trace of prompts needs prompts, each of at least one token")
    packed = [pack_tokens(prompt) for prompt in prompts]
    num_tokens = sum(map(len, prompts))
    rows = []
    for key in keys:
        hits = wrong = right_tokens = 0
        for number, prompt in enumerate(prompts):
            reuse = key.find_and_add(number, prompt)
            if reuse is None:
                continue
            hits += 1
            if common_prefix_tokens(packed[reuse.source], packed[number]) < reuse.num_tokens:
                wrong += 1
            else:
                right_tokens += reuse.num_tokens
        rows.append(
            {
                "key": key.name,
                "hit_rate": hits / len(prompts),
                "wrong_reuse_rate": wrong / hits if hits else None,
                "right_token_rate": right_tokens / num_tokens,
                "n": len(prompts),
            }
        )
    return rows
