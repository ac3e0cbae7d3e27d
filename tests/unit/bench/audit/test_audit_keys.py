"""What each key finds in small traces whose right answers are known."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrelay.bench.audit.controls import keys
from kvrelay.bench.audit.controls.keys import FIRST_TOKENS, SEMANTIC_TOKENS, Key, Reuse

BLOCK = 16
WHOLE, FIRST, SEMANTIC, OURS = range(4)


def text(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


def replayed(*prompts: list[int]) -> list[tuple[float, float | None]]:
    rows = keys.replay(prompts, keys.all_keys(BLOCK))
    assert [row["n"] for row in rows] == [len(prompts)] * 4
    return [(row["hit_rate"], row["wrong_reuse_rate"]) for row in rows]


def test_the_same_prompt_again() -> None:
    prompt = text(1, 100)
    assert replayed(prompt, list(prompt)) == [(0.5, 0.0)] * 4


def test_a_prompt_that_extends_an_earlier_one() -> None:
    """What a digest of everything misses, and first tokens find rightly."""
    prompt = text(2, 400)
    found = replayed(prompt, prompt + text(3, 8))
    assert found == [(0.0, None), (0.5, 0.0), (0.5, 0.0), (0.5, 0.0)]


def test_prompts_that_only_begin_alike() -> None:
    """First tokens take over the rest of another prompt; ours stops where they part."""
    begin = text(4, FIRST_TOKENS)
    found = replayed(begin + text(5, 200), begin + text(6, 200))
    assert found == [(0.0, None), (0.5, 1.0), (0.0, None), (0.5, 0.0)]


def test_prompts_that_are_like_each_other_but_not_equal() -> None:
    """One token of 400 is another one, behind the first few: like enough for a semantic hash."""
    prompt = text(7, 400)
    other = [*prompt[:SEMANTIC_TOKENS], 50_001, *prompt[SEMANTIC_TOKENS + 1 :]]
    assert replayed(prompt, other) == [(0.0, None), (0.0, None), (0.5, 1.0), (0.0, None)]
    late = [*prompt[:300], 50_001, *prompt[301:]]
    assert replayed(prompt, late) == [(0.0, None), (0.5, 1.0), (0.5, 1.0), (0.5, 0.0)]


def test_a_short_prefix_guards_a_semantic_hash_a_little() -> None:
    prompt = text(8, 400)
    other = [50_001, *prompt[1:]]
    assert replayed(prompt, other)[SEMANTIC] == (0.0, None)


def test_prompts_that_have_nothing_in_common() -> None:
    assert replayed(*(text(seed, 120) for seed in range(10, 30))) == [(0.0, None)] * 4


def test_an_earlier_prompt_that_is_longer_lends_only_as_much_as_fits() -> None:
    prompt = text(9, 300)
    key = keys.FirstTokens()
    assert key.find_and_add(0, prompt) is None
    assert key.find_and_add(1, prompt[:120]) == Reuse(0, 119)
    assert key.find_and_add(2, prompt) == Reuse(1, 120)


def test_ours_finds_blocks_of_several_prompts_and_names_who_has_the_last() -> None:
    prompt = text(30, 4 * BLOCK)
    key = keys.PrefixBlocks(BLOCK)
    assert key.find_and_add(0, prompt[: 2 * BLOCK + 3]) is None
    assert key.find_and_add(1, prompt[: 3 * BLOCK]) == Reuse(0, 2 * BLOCK)
    assert key.find_and_add(2, prompt) == Reuse(1, 3 * BLOCK)
    assert key.find_and_add(3, prompt) == Reuse(2, 3 * BLOCK), "one token has to be computed"
    assert key.find_and_add(4, [*prompt, 1]) == Reuse(3, 4 * BLOCK)


def test_only_right_reuse_counts_as_tokens() -> None:
    begin = text(31, FIRST_TOKENS)
    prompts = [begin + text(32, 50), begin + text(33, 50)]
    rows = keys.replay(prompts, keys.all_keys(BLOCK))
    assert rows[FIRST]["right_token_rate"] == 0
    assert rows[OURS]["right_token_rate"] == 3 * BLOCK / 200


@pytest.mark.parametrize("prompts", [[], [[1], []]])
def test_nothing_to_replay(prompts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="needs prompts"):
        keys.replay(prompts, keys.all_keys(BLOCK))


def test_the_judge_sees_a_key_that_lies() -> None:
    class Liar(Key):
        name = "whoever was first"

        def find_and_add(self, number: int, prompt: Any) -> Reuse | None:
            return Reuse(0, 5) if number else None

    (row,) = keys.replay([text(34, 9), text(35, 9), text(34, 9)], [Liar()])
    assert (row["hit_rate"], row["wrong_reuse_rate"]) == (2 / 3, 0.5)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=25))
def test_whole_prompts_and_prefix_blocks_are_never_wrong(prompts: list[list[int]]) -> None:
    rows = keys.replay(prompts, [keys.WholePrompt(), keys.PrefixBlocks(4)])
    assert all(not row["wrong_reuse_rate"] for row in rows)
    hits = 0
    for number, prompt in enumerate(prompts):
        before = prompts[:number]
        hits += any(p[:4] == prompt[:4] for p in before if len(p) >= 4) and len(prompt) > 4
    assert rows[1]["hit_rate"] == hits / len(prompts)
