"""Controls of the quality measures and of the guard: KV that is not the request's own.

One engine in a process of its own, with a store that nobody else can find. It computes each
example's context; that is the correct KV. Then every trial empties store and engine, puts blocks
into the store, and asks for the context and a question:

    correct    the example's own blocks                      quality stays
    deranged   another example's bytes under its keys  \\
    zeroed     zeros under its keys                     }   guard on: refused, the answer right
    random     noise of its moments under its keys     /    guard off: quality collapses
    offered    another example's blocks as they are          not even found

The checksums are those of the correct bytes in all trials, as they would be after a fault that
writes to the arena. With the guard off the same bytes are asked for by the same request, and only
the verdict of the checksum is passed over (controls_child.py). So a difference is the guard's.

If the measures of quality did not see what deranged KV does, they could not be believed where they
see nothing; and what correct KV brings beyond deranged KV is owed to its content and not to the
presence of a cache ("When Does Latent Communication Pay?", arXiv:2608.04893; the gain is called
content-attributable in arXiv:2607.26773).

What this guard cannot see: a publisher that signs wrong bytes with their own checksum. It would
have to be a process of the same user, or a fault before the bytes are published.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from kvrelay.bench.audit.controls.derange import deranged
from kvrelay.bench.audit.controls.wrong_kv import KvShape, moment_matched, shape_of
from kvrelay.bench.audit.workload.quality import Output, agreement, logprob_drift
from kvrelay.bench.driven import BLOCK_TOKENS, DrivenEngine
from kvrelay.bench.engines import DTYPE
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.bench.own_store import own_store
from kvrelay.relay.blocks import BlockChain
from kvrelay.relay.keys import root_key
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import Entry, StoreCore

ANSWER_TOKENS = 16
TOP_LOGPROBS = 20
STORE_BYTES = 256 << 20
ENGINE: dict[str, Any] = {
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 128 << 20,
    "block_size": BLOCK_TOKENS,
}
_CHILD = "from kvrelay.bench.audit.controls import controls_child\n"
Judge = Callable[[Output], bool]


class Content(StrEnum):
    """What is in the blocks that a request finds."""

    CORRECT = "correct"
    DERANGED = "deranged"
    ZEROED = "zeroed"
    RANDOM = "random"
    OFFERED = "offered"


WRONG = (Content.DERANGED, Content.ZEROED, Content.RANDOM)


@dataclass(frozen=True, slots=True)
class Example:
    """A context that is relayed, and a question about it.

    Attributes:
        context: token ids, whole blocks of `BLOCK_TOKENS`.
        question: token ids that come after it; at least one.
        is_right: whether an answer is the known one; None if none is known.
    """

    context: tuple[int, ...]
    question: tuple[int, ...]
    is_right: Judge | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One request, compared with the same one recomputed.

    Attributes:
        example: its number.
        content: of the blocks that it found.
        is_guarded: False where checksums were passed over.
        context_tokens: what there was to relay.
        injected_tokens: what the engine took over, by vLLM's own count.
        reason: of relay.
        agreement: share of the greedy tokens that are recompute's.
        logprob_drift: a lower bound, see `quality`.
        is_right: whether the known answer came; None if none is known.
        recompute_is_right: the same of recompute.
    """

    example: int
    content: Content
    is_guarded: bool
    context_tokens: int
    injected_tokens: int
    reason: str
    agreement: float
    logprob_drift: float
    is_right: bool | None
    recompute_is_right: bool | None


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it is published; `data` need not be what `checksum` was taken of."""

    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes
    data: bytes


def measure(
    model: Path | str,
    examples: Sequence[Example],
    seed: int,
    dtype: str = DTYPE,
    advance: Callable[[float], None] = lambda _: None,
) -> list[Trial]:
    """Put all examples through all controls, in an engine that is gone afterwards.

    Args:
        model: what vLLM loads; none of several ranks or of hybrid attention.
        examples: at least two; their contexts have one length.
        seed: of the derangement and of the noise.
        dtype: of the engine.
        advance: told of each trial.

    Returns:
        For every example, with the guard off and then on: one of each content.

    Raises:
        BenchError: no derangement is possible, or the engine failed.
        Miscount: relay claims other tokens than vLLM counts.
    """
    check_examples(examples)
    donors = deranged([each.context[:BLOCK_TOKENS] for each in examples], random.Random(seed))
    try:
        with (
            own_store(STORE_BYTES) as (server, address),
            isolated_engine(model, address, dtype=dtype) as engine,
        ):
            isolated = _Isolated(engine, server)
            trials = isolated.trials(examples, donors, np.random.default_rng(seed), advance)
            check_nothing_left(engine)
            return trials
    except RuntimeError as error:  # of the engine's process, with its traceback
        raise BenchError(f"the isolated engine failed: {error}") from error


def check_examples(examples: Sequence[Example]) -> None:
    """Whether one example's KV can stand in for another's.

    Raises:
        BenchError: contexts of several lengths, or not of whole blocks; or no question.
    """
    lengths = sorted({len(each.context) for each in examples})
    if len(lengths) != 1 or not lengths[0] or lengths[0] % BLOCK_TOKENS:
        raise BenchError(
            f"contexts of {lengths} tokens: give all of them one length, a multiple of "
            f"{BLOCK_TOKENS}"
        )
    if not all(each.question for each in examples):
        raise BenchError("an example without a question: one token has to be computed")


def ask(engine: DrivenEngine, example: Example, mode: str) -> dict[str, Any]:
    """An engine's answer to an example's context and question, in a mode of relay."""
    answer: dict[str, Any] = engine.one(
        [*example.context, *example.question],
        max_tokens=ANSWER_TOKENS,
        logprobs=TOP_LOGPROBS,
        kvrelay={"mode": mode},
    )
    return answer


def forget(engine: DrivenEngine) -> None:
    """Have an engine forget its prefix cache.

    Raises:
        BenchError: it does not.
    """
    if not engine.reset():
        raise BenchError("an isolated engine does not forget its prefix cache")


def check_count(answer: dict[str, Any]) -> None:
    """Whether relay and vLLM agree on how many tokens an answer did not need to compute.

    Raises:
        Miscount: they do not.
    """
    claimed, counted = answer["record"]["relayed_tokens"], answer["cached"]
    if claimed != counted:
        raise Miscount(f"relay claims {claimed} tokens, vLLM counts {counted}")


def check_nothing_left(engine: DrivenEngine) -> None:
    """Whether an engine has come through without a fault.

    Raises:
        BenchError: something is held, or a hook of relay failed.
    """
    left = {name: count for name, count in engine.state().items() if count}
    if left:
        raise BenchError(f"the isolated engine was left with {left}")


def publish(core: StoreCore, slab_id: int, blocks: Sequence[Block]) -> None:
    """Make these all that a store holds. Runs in the store's thread.

    Raises:
        BenchError: it has no room for them.
    """
    core.clear()
    client_id = core.connect("controls")
    try:
        granted, _ = core.reserve(client_id, slab_id, [block.key for block in blocks])
        if len(granted) < len(blocks):
            raise BenchError(f"the store takes {len(granted)} of {len(blocks)} blocks")
        slots = dict(granted)
        slab = core.slab(slab_id)
        entries = []
        for block in blocks:
            slot = slots[block.key]
            slab.data(slot)[:] = block.data
            entries.append(Entry(slot, block.key, block.parent, block.tokens, block.checksum))
        core.commit(client_id, slab_id, entries)
    finally:
        core.disconnect(client_id)


def contents(
    own: Sequence[Block], donor: Sequence[Block], shape: KvShape, rng: np.random.Generator
) -> dict[Content, list[Block]]:
    """What is put into the store in each kind of trial."""
    noise = moment_matched([block.data for block in own], shape, rng)
    return {
        Content.CORRECT: list(own),
        Content.DERANGED: [
            replace(mine, data=other.data) for mine, other in zip(own, donor, strict=True)
        ],
        Content.ZEROED: [replace(block, data=bytes(len(block.data))) for block in own],
        Content.RANDOM: [replace(block, data=data) for block, data in zip(own, noise, strict=True)],
        Content.OFFERED: list(donor),
    }


class _Isolated:
    """The engine and the store of the controls."""

    def __init__(self, engine: DrivenEngine, server: StoreServer) -> None:
        self._engine, self._server = engine, server
        identity = engine.wait_ready().identity()
        self._root = root_key(identity["fingerprint"])
        slot_bytes = identity["slot_bytes"]
        shapes = engine.execute(_CHILD + "result = controls_child.kv_shapes(driver)")
        self._shape = shape_of(shapes, BLOCK_TOKENS, slot_bytes)
        slab_id = server.call(lambda core: core.find_slab(slot_bytes, BLOCK_TOKENS))
        if slab_id is None:
            raise BenchError("relay is off in the isolated engine: it has opened no slab")
        self._slab_id = slab_id

    def trials(
        self,
        examples: Sequence[Example],
        donors: Sequence[int],
        rng: np.random.Generator,
        advance: Callable[[float], None],
    ) -> list[Trial]:
        """All trials of all examples."""
        computed = [self._compute(example) for example in examples]
        found = []
        for number, example in enumerate(examples):
            self._empty()
            right = ask(self._engine, example, "recompute")
            own, donor = computed[number], computed[donors[number]]
            offers = contents(own, donor, self._shape, rng)
            for is_guarded in (False, True):
                self._guard(is_guarded)
                for content, blocks in offers.items():
                    self._empty()
                    self._put(blocks)
                    seen = ask(self._engine, example, "relay")
                    trial = _trial(
                        number, example, right, seen, content=content, is_guarded=is_guarded
                    )
                    found.append(trial)
                    advance(1)
        return found

    def _compute(self, example: Example) -> list[Block]:
        self._empty()
        self._engine.one(list(example.context), kvrelay={"mode": "recompute"})
        chain = BlockChain(self._root, BLOCK_TOKENS)
        num_blocks = len(example.context) // BLOCK_TOKENS
        chain.extend(example.context, num_blocks)
        keys = [chain.key(number) for number in range(num_blocks)]
        return self._server.call(lambda core: _read(core, self._slab_id, keys))

    def _put(self, blocks: Sequence[Block]) -> None:
        self._server.call(lambda core: publish(core, self._slab_id, blocks))

    def _empty(self) -> None:
        """Neither the engine nor the store knows anything, least of all what wrong KV has made."""
        self._server.call(StoreCore.clear)
        forget(self._engine)

    def _guard(self, is_on: bool) -> None:
        name = "heed_checksums" if is_on else "ignore_checksums"
        self._engine.execute(f"{_CHILD}controls_child.{name}(driver.worker_half._loads)")


@contextlib.contextmanager
def isolated_engine(model: Path | str, address: str, **arguments: Any) -> Iterator[DrivenEngine]:
    """An engine on the store at an address; `arguments` are vLLM's, over `ENGINE`."""
    # It says of every refused block that it is corrupt, which here it is meant to be.
    with tempfile.TemporaryFile() as log:
        settings = {"agent": "controls"}
        engine = DrivenEngine(Path(model), address, settings, log=log, **(ENGINE | arguments))
        try:
            yield engine
        finally:
            engine.close()


def _read(core: StoreCore, slab_id: int, keys: Sequence[bytes]) -> list[Block]:
    slab = core.slab(slab_id)
    blocks = []
    for key in keys:
        held = core.held(slab_id, key)
        if held is None:
            raise BenchError("the isolated engine has not saved what it has computed")
        tokens, data = slab.tokens(held), bytes(slab.data(held.slot))
        blocks.append(Block(key, held.parent, tokens, held.checksum, data))
    return blocks


def _trial(
    number: int,
    example: Example,
    right: dict[str, Any],
    seen: dict[str, Any],
    *,
    content: Content,
    is_guarded: bool,
) -> Trial:
    check_count(seen)
    judge = example.is_right
    output, reference = _output(seen), _output(right)
    return Trial(
        example=number,
        content=content,
        is_guarded=is_guarded,
        context_tokens=len(example.context),
        injected_tokens=seen["cached"],
        reason=seen["record"]["reason"],
        agreement=agreement(output.tokens, reference.tokens),
        logprob_drift=logprob_drift(output, reference),
        is_right=None if judge is None else judge(output),
        recompute_is_right=None if judge is None else judge(reference),
    )


def _output(answer: dict[str, Any]) -> Output:
    return Output(tuple(answer["tokens"]), tuple(dict(step) for step in answer["logprobs"]))
