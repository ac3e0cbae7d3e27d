"""The controls without an engine: what is put into a store, what the guard makes of it, scores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from kvrelay.bench.audit.controls import controls_child, trials
from kvrelay.bench.audit.controls.trials import Block, Content, Example, Trial
from kvrelay.bench.audit.controls.wrong_kv import KvShape
from kvrelay.bench.audit.workload.quality import Output
from kvrelay.bench.driven import BLOCK_TOKENS
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.policies import Reason
from kvrelay.relay.connector.blocks import HostBlocks
from kvrelay.relay.connector.loads import Loads
from kvrelay.relay.connector.metadata import LoadBlock, LoadJob, LoadOutcome
from kvrelay.relay.keys import pack_tokens
from kvrelay.relay.store import StoreCore

SHAPE = KvShape(2, 1, 16, "float32")
NUM_BLOCKS = 3


def blocks(seed: int) -> list[Block]:
    """What an engine would have published of a context."""
    rng = np.random.default_rng(seed)
    found = []
    parent = bytes([seed]) * 32
    for number in range(NUM_BLOCKS):
        key = bytes([seed, number]) * 16
        data = rng.standard_normal(SHAPE.slot_bytes // 4).astype(np.float32).tobytes()
        tokens = pack_tokens(range(seed * 100, seed * 100 + 4))
        checksum = xxhash.xxh3_128_digest(data)
        found.append(Block(key, parent, tokens, checksum, data))
        parent = key
    return found


class Bed:
    """A store and an engine's loads into memory of its own, without an engine."""

    def __init__(self) -> None:
        self.core = StoreCore(1 << 20, time.monotonic_ns)
        self.slab_id = self.core.open_slab(SHAPE.slot_bytes, 4)
        self.memory = np.zeros((NUM_BLOCKS, SHAPE.slot_bytes), np.uint8)
        size = SHAPE.slot_bytes
        attachment: Any = SimpleNamespace(slab=self.core.slab(self.slab_id))
        host = HostBlocks([(int(self.memory.ctypes.data), size, size)])
        self.loads = Loads(host, lambda: attachment)

    def publish(self, put: Sequence[Block]) -> None:
        trials.publish(self.core, self.slab_id, put)

    def load(self, keys: Sequence[bytes]) -> LoadOutcome:
        """Load what is held under these keys."""
        self.memory[:] = 0
        headers = [self.core.held(self.slab_id, key) for key in keys]
        jobs = tuple(
            LoadBlock(number, header.slot, header.state, header.checksum, header.key)
            for number, header in enumerate(headers)
            if header is not None
        )
        incarnation = self.core.slab(self.slab_id).incarnation
        self.loads.submit(LoadJob("r", incarnation, 5.0, jobs))
        while not (finished := self.loads.take_finished()):
            self.loads.help(0.05)
        return finished[0].outcome


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.loads.close()
    bed.core.close()


@pytest.mark.parametrize("content", trials.WRONG)
def test_wrong_bytes_are_refused_unless_the_guard_is_forced_off(bed: Bed, content: Content) -> None:
    own, donor = blocks(1), blocks(2)
    put = trials.contents(own, donor, SHAPE, np.random.default_rng(1))[content]
    keys = [block.key for block in own]
    bed.publish(put)
    refused = bed.load(keys)
    assert (refused.num_loaded, refused.failure) == (0, Reason.LOAD_CORRUPT)

    controls_child.ignore_checksums(bed.loads)
    taken = bed.load(keys)
    assert (taken.num_loaded, taken.failure) == (NUM_BLOCKS, None)
    assert bed.memory.tobytes() == b"".join(block.data for block in put)
    assert bed.memory.tobytes() != b"".join(block.data for block in own)

    controls_child.heed_checksums(bed.loads)
    assert bed.load(keys).failure is Reason.LOAD_CORRUPT


def test_correct_bytes_are_taken_by_the_same_way(bed: Bed) -> None:
    own = blocks(1)
    put = trials.contents(own, blocks(2), SHAPE, np.random.default_rng(1))[Content.CORRECT]
    bed.publish(put)
    assert bed.load([block.key for block in own]).num_loaded == NUM_BLOCKS
    assert bed.memory.tobytes() == b"".join(block.data for block in own)


def test_without_the_guard_a_slot_that_was_given_away_is_still_refused(bed: Bed) -> None:
    """Only the verdict of the checksum is passed over."""
    own = blocks(1)
    bed.publish(own)
    gate = threading.Event()
    address = bed.core.slab(bed.slab_id).address

    def held_back(slot: int) -> int:
        gate.wait(5)
        return address(slot)

    bed.core.slab(bed.slab_id).address = held_back  # type: ignore[method-assign]
    controls_child.ignore_checksums(bed.loads)
    jobs = []
    for number, block in enumerate(own):
        header = bed.core.held(bed.slab_id, block.key)
        assert header is not None
        jobs.append(LoadBlock(number, header.slot, header.state, header.checksum, header.key))
    incarnation = bed.core.slab(bed.slab_id).incarnation
    bed.loads.submit(LoadJob("r", incarnation, 5.0, tuple(jobs)))
    bed.core.clear()
    gate.set()
    while not (finished := bed.loads.take_finished()):
        bed.loads.help(0.05)
    assert finished[0].outcome.failure is Reason.LOAD_EVICTED


def test_what_was_published_before_is_gone(bed: Bed) -> None:
    bed.publish(blocks(1))
    bed.publish(blocks(2))
    assert set(bed.core.keys()) == {block.key for block in blocks(2)}
    bed.core.check_integrity()
    assert not bed.core.serves("controls")


def test_contents() -> None:
    own, donor = blocks(1), blocks(2)
    offers = trials.contents(own, donor, SHAPE, np.random.default_rng(1))
    assert set(offers) == set(Content)
    assert offers[Content.CORRECT] == own
    assert offers[Content.OFFERED] == donor
    for content in trials.WRONG:
        for block, right in zip(offers[content], own, strict=True):
            assert (block.key, block.parent, block.tokens) == (
                right.key,
                right.parent,
                right.tokens,
            )
            assert block.checksum == right.checksum
            assert len(block.data) == len(right.data)
            assert block.data != right.data
    assert [b.data for b in offers[Content.DERANGED]] == [b.data for b in donor]
    assert not any(any(b.data) for b in offers[Content.ZEROED])


def test_a_store_without_room_is_an_error() -> None:
    core = StoreCore(2 * SHAPE.slot_bytes, time.monotonic_ns)
    slab_id = core.open_slab(SHAPE.slot_bytes, 4)
    with pytest.raises(BenchError, match="takes 2 of 3 blocks"):
        trials.publish(core, slab_id, blocks(1))
    core.check_integrity()
    assert core.stats()["reserved"] == 0
    core.close()


WHOLE = tuple(range(2 * BLOCK_TOKENS))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], r"contexts of \[\] tokens"),
        ([Example((), (1,))] * 2, r"contexts of \[0\] tokens"),
        ([Example(WHOLE[:-1], (1,))] * 2, "a multiple of"),
        ([Example(WHOLE, (1,)), Example(WHOLE[:BLOCK_TOKENS], (1,))], "one length"),
        ([Example(WHOLE, (1,)), Example(WHOLE[::-1], ())], "without a question"),
        ([Example(WHOLE, (1,))], "of 1 examples 1 begin alike"),
        ([Example(WHOLE, (1,)), Example((*WHOLE[:-1], 7), (1,))], "of 2 examples 2 begin alike"),
    ],
    ids=["none", "empty", "part", "lengths", "question", "alone", "alike"],
)
def test_examples_that_cannot_be_deranged_start_no_engine(
    monkeypatch: pytest.MonkeyPatch, examples: list[Example], message: str
) -> None:
    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(trials, "DrivenEngine", start)
    with pytest.raises(BenchError, match=message):
        trials.measure(Path("nowhere"), examples, seed=1)


def answer(tokens: list[int], relayed: int, cached: int) -> dict[str, Any]:
    """What a driven engine answers."""
    return {
        "tokens": tokens,
        "logprobs": [[(token, -0.5), (token + 1, -1.5)] for token in tokens],
        "cached": cached,
        "record": {"relayed_tokens": relayed, "reason": "relayed"},
    }


def unguarded(example: Example, right: dict[str, Any], seen: dict[str, Any]) -> Trial:
    return trials._trial(3, example, right, seen, content=Content.RANDOM, is_guarded=False)


def is_seven(output: Output) -> bool:
    return output.tokens[0] == 7


def test_a_trial_is_compared_with_recompute() -> None:
    example = Example(WHOLE, (1,), is_seven)
    right, seen = answer([7, 8], 0, 0), answer([7, 9], len(WHOLE), len(WHOLE))
    trial = unguarded(example, right, seen)
    assert (trial.example, trial.content, trial.is_guarded) == (3, Content.RANDOM, False)
    assert (trial.injected_tokens, trial.context_tokens) == (len(WHOLE), len(WHOLE))
    assert trial.agreement == 0.5
    # 0, and then 1 of token 8, 1 of token 9 and, at least, 0 of token 10.
    assert trial.logprob_drift == pytest.approx((0 + 2 / 3) / 2)
    assert (trial.is_right, trial.recompute_is_right) == (True, True)
    judged = unguarded(example, right, answer([5, 8], 0, 0))
    assert (judged.is_right, judged.recompute_is_right) == (False, True)
    without = Example(WHOLE, (1,))
    assert unguarded(without, right, seen).is_right is None


def test_a_claim_that_the_engine_does_not_bear_out_is_an_error() -> None:
    right = answer([7], 0, 0)
    with pytest.raises(Miscount, match="relay claims 0 tokens, vLLM counts 32"):
        unguarded(Example(WHOLE, (1,)), right, answer([7], 0, 32))
