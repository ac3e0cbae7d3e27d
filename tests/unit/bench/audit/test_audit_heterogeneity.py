"""Engines beside engine A without any: in what state they are asked, and what a trial is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from kvrelay.bench.audit.controls import heterogeneity, trials
from kvrelay.bench.audit.controls.heterogeneity import _Beside, held_tokens, trial
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.controls.other_engines import OTHER_BLOCK_TOKENS
from kvrelay.bench.audit.controls.trials import Block, Example
from kvrelay.bench.driven import BLOCK_TOKENS
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.relay.keys import pack_tokens
from kvrelay.relay.store import StoreCore

CONTEXT = tuple(range(2 * OTHER_BLOCK_TOKENS))
EXAMPLES = [Example(CONTEXT, (1,)), Example(CONTEXT[::-1], (2,)), Example(CONTEXT, (3,))]


class Store:
    """Stands for a store's thread: whose KV it has, and of how many tokens."""

    def __init__(self) -> None:
        self.owner, self.held = "", 0

    def call(self, function: Callable[[Any], Any]) -> int:
        if function is StoreCore.clear:
            self.owner, self.held = "", 0
        else:
            assert function is held_tokens
        return self.held


class Engine:
    """Finds the KV of those that it shares with; knows what it was asked since it last forgot."""

    def __init__(self, name: str, store: Store, shares: str, saves: int = len(CONTEXT)) -> None:
        self.name, self.store, self.shares, self.saves = name, store, shares, saves
        self.asked: list[tuple[int, str]] = []
        self.states: list[tuple[str, str]] = []
        self.forgets, self.left = True, 0

    def reset(self) -> bool:
        self.asked = []
        return self.forgets

    def state(self) -> dict[str, int]:
        return {"held": self.left}

    def one(self, prompt: list[int], **options: Any) -> dict[str, Any]:
        assert self.asked == [], "it was to forget what it knows"
        mode = options["kvrelay"]["mode"]
        self.asked.append((len(prompt), mode))
        found = self.store.held if mode == "relay" and self.store.owner in self.shares else 0
        if "max_tokens" in options:
            self.states.append((mode, self.store.owner))
        self.store.owner, self.store.held = self.name, self.saves
        return answer(cached=found, reason="relayed" if found else "no_source")


def answer(cached: int = 0, claimed: int | None = None, **changes: Any) -> dict[str, Any]:
    """What a driven engine answers."""
    reason = changes.pop("reason", "no_source")
    relayed = cached if claimed is None else claimed
    return {
        "tokens": [7, 8],
        "logprobs": [[(7, -0.5)], [(8, -0.25)]],
        "cached": cached,
        "record": {"relayed_tokens": relayed, "reason": reason},
        "ttft_s": 0.5,
        **changes,
    }


def beside(shares: str, saves: int = len(CONTEXT)) -> tuple[Engine, Engine, Any]:
    store = Store()
    a, b = Engine("a", store, "a", saves), Engine("b", store, shares)
    engines: tuple[Any, Any, Any] = (a, b, store)
    return a, b, _Beside(*engines)


def test_an_engine_of_the_same_model_takes_all_that_a_has() -> None:
    advanced: list[float] = []
    pairing = beside("ab")[2].pairing(Kind.SAME, EXAMPLES, advanced.append)
    assert (pairing.kind, pairing.own_tokens) == (Kind.SAME, len(CONTEXT))
    assert [(t.example, t.matching_tokens, t.relayed_tokens) for t in pairing.trials] == [
        (number, len(CONTEXT), len(CONTEXT)) for number in range(3)
    ]
    assert sum(advanced) == 3


def test_another_one_takes_its_own_alone() -> None:
    _, b, both = beside("b")
    pairing = both.pairing(Kind.DTYPE, EXAMPLES, lambda _: None)
    assert pairing.own_tokens == len(CONTEXT)
    assert {(t.relayed_tokens, t.reason) for t in pairing.trials} == {(0, "no_source")}
    # Beside KV that A has just made, whichever way; and the ways take turns in coming first.
    assert b.states == [
        ("relay", "b"),
        *(("relay", "a"), ("recompute", "a")),
        *(("recompute", "a"), ("relay", "a")),
        *(("relay", "a"), ("recompute", "a")),
    ]


def test_kv_that_was_not_saved_proves_nothing() -> None:
    with pytest.raises(BenchError, match="of 128 tokens that were computed 96 are held"):
        beside("b", saves=96)[2].pairing(Kind.DTYPE, EXAMPLES, lambda _: None)


def test_an_engine_that_remembers_or_is_left_with_something_proves_nothing() -> None:
    a, _, both = beside("b")
    a.forgets = False
    with pytest.raises(BenchError, match="does not forget"):
        both.pairing(Kind.DTYPE, EXAMPLES, lambda _: None)
    a.forgets, a.left = True, 2
    with pytest.raises(BenchError, match=r"left with \{'held': 2\}"):
        both.pairing(Kind.DTYPE, EXAMPLES, lambda _: None)


def test_a_trial_sees_the_last_bit() -> None:
    made = trial(4, 128, answer(ttft_s=0.6), answer())
    assert (made.example, made.matching_tokens, made.relayed_tokens) == (4, 128, 0)
    assert (made.is_same_answer, made.are_same_logprobs) == (True, True)
    assert (made.ttft_s, made.recompute_ttft_s) == (0.6, 0.5)
    near = trial(4, 128, answer(logprobs=[[(7, -0.5)], [(8, -0.25000000000000006)]]), answer())
    assert (near.is_same_answer, near.are_same_logprobs) == (True, False)
    other = trial(4, 128, answer(tokens=[7, 9]), answer())
    assert (other.is_same_answer, other.are_same_logprobs) == (False, True)


def test_answers_that_cannot_be_compared_are_errors() -> None:
    with pytest.raises(Miscount, match="relay claims 0 tokens, vLLM counts 32"):
        trial(0, 128, answer(cached=32, claimed=0), answer())
    with pytest.raises(Miscount):
        trial(0, 128, answer(), answer(cached=32, claimed=0))
    with pytest.raises(BenchError, match="32 tokens were to be recomputed"):
        trial(0, 128, answer(), answer(cached=32))


def test_tokens_are_held_in_blocks_of_any_size() -> None:
    core = StoreCore(1 << 20, time.monotonic_ns)
    assert held_tokens(core) == 0
    for block_tokens in (4, 8):
        tokens, data = pack_tokens(range(block_tokens)), bytes(64 * block_tokens)
        checksum = xxhash.xxh3_128_digest(data)
        put = [Block(bytes([n]) * 32, bytes(32), tokens, checksum, data) for n in (1, 2, 3)]
        slab_id = core.open_slab(len(data), block_tokens)
        trials.publish(core, slab_id, put)
        assert held_tokens(core) == 3 * block_tokens
    core.close()


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([Example(CONTEXT[:BLOCK_TOKENS], (1,))], f"a multiple of {OTHER_BLOCK_TOKENS}"),
        ([Example(CONTEXT, ())], "without a question"),
        ([], "contexts of"),
    ],
)
def test_examples_that_do_not_fit_start_no_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, examples: list[Example], message: str
) -> None:
    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(heterogeneity, "isolated_engine", start)
    with pytest.raises(BenchError, match=message):
        heterogeneity.measure(tmp_path, examples, list(Kind), tmp_path / "made")
