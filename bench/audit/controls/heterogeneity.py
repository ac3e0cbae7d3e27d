"""Engines that differ, on one store: whether KV crosses between them, and what a look-up costs.

Engine A computes an example's context, and its KV goes into a store of the controls' own. Engine B,
of one kind, is then asked for the context and a question, in two ways:

    relay        relay is offered, and forced if there is anything to relay
    recompute    relay is off for this request

Before either, everything is forgotten and A computes the context anew: both start from the same
state. Which way comes first changes from example to example. The tokens of the context match in any
case. Whether their KV does is what the fingerprint of the model decides (relay/fingerprint.py),
which is part of every block's key: all of it for an engine of the same kind, else none.

That nothing was relayed would prove nothing if B could relay nothing at all. So B is first asked
beside the KV that it has made itself, and has to take it. That request also warms it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.controls.other_engines import OTHER_BLOCK_TOKENS, prepared
from kvrelay.bench.audit.controls.trials import (
    STORE_BYTES,
    Example,
    ask,
    check_count,
    check_examples,
    check_nothing_left,
    forget,
    isolated_engine,
)
from kvrelay.bench.driven import DrivenEngine
from kvrelay.bench.engines import DTYPE
from kvrelay.bench.errors import BenchError
from kvrelay.bench.own_store import own_store
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore

_Way = Literal["relay", "recompute"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One example, asked both ways.

    Attributes:
        example: its number.
        matching_tokens: of B's prompt, those whose KV A had put into the store.
        relayed_tokens: of these, those that B took over, by vLLM's own count.
        reason: of relay.
        is_same_answer: whether the greedy tokens are those that B computes without relay.
        are_same_logprobs: whether the most likely tokens and their log probabilities are, at every
            place and to the last bit.
        ttft_s: seconds to the first token, relay offered.
        recompute_ttft_s: the same, relay off.
    """

    example: int
    matching_tokens: int
    relayed_tokens: int
    reason: str
    is_same_answer: bool
    are_same_logprobs: bool
    ttft_s: float
    recompute_ttft_s: float


@dataclass(frozen=True, slots=True)
class Pairing:
    """Engine A beside an engine B.

    Attributes:
        kind: in what B differs from A.
        own_tokens: what B took over of a context that it had computed itself.
        trials: in the order of the examples.
    """

    kind: Kind
    own_tokens: int
    trials: tuple[Trial, ...]


def measure(
    model: Path | str,
    examples: Sequence[Example],
    kinds: Sequence[Kind],
    folder: Path,
    *,
    dtype: str = DTYPE,
    advance: Callable[[float], None] = lambda _: None,
) -> list[Pairing]:
    """Put an engine of each kind beside engine A, one after another, and ask it all examples.

    Args:
        model: of A; what vLLM loads, none of several ranks or of hybrid attention.
        examples: their contexts have one length, whole blocks of every kind.
        kinds: of B.
        folder: for models that are made for it; there is none before and none afterwards.
        dtype: of A.
        advance: told of each trial.

    Returns:
        One pairing for each kind, in their order.

    Raises:
        BenchError: the examples do not fit, an engine failed, or A's KV was not saved.
        Miscount: relay claims other tokens than vLLM counts.
    """
    check_examples(examples)
    if len(examples[0].context) % OTHER_BLOCK_TOKENS:
        raise BenchError(f"give contexts a length that is a multiple of {OTHER_BLOCK_TOKENS}")
    try:
        with (
            own_store(STORE_BYTES) as (server, address),
            isolated_engine(model, address, dtype=dtype) as a,
        ):
            a.wait_ready()
            pairings = []
            for kind in kinds:
                with (
                    prepared(kind, model, dtype, folder) as other,
                    isolated_engine(other.model, address, **other.arguments) as b,
                ):
                    b.wait_ready()
                    pairings.append(_Beside(a, b, server).pairing(kind, examples, advance))
            return pairings
    except RuntimeError as error:  # of an engine's process, with its traceback
        raise BenchError(f"an engine beside another failed: {error}") from error


class _Beside:
    """Both engines and their store."""

    def __init__(self, a: DrivenEngine, b: DrivenEngine, server: StoreServer) -> None:
        self._a, self._b, self._server = a, b, server

    def pairing(
        self, kind: Kind, examples: Sequence[Example], advance: Callable[[float], None]
    ) -> Pairing:
        """All trials."""
        own = self._ask(self._b, examples[0], "relay")
        trials = []
        for number, example in enumerate(examples):
            trials.append(self._trial(number, example))
            advance(1)
        for engine in (self._a, self._b):
            check_nothing_left(engine)
        return Pairing(kind, own["cached"], tuple(trials))

    def _trial(self, number: int, example: Example) -> Trial:
        ways: tuple[_Way, _Way] = ("relay", "recompute")
        order = ways if number % 2 == 0 else ways[::-1]
        answers = {way: self._ask(self._a, example, way) for way in order}
        return trial(number, len(example.context), answers["relay"], answers["recompute"])

    def _ask(self, source: DrivenEngine, example: Example, way: _Way) -> dict[str, Any]:
        """B's answer beside the KV that `source` has just made of the context, and nothing else."""
        self._server.call(StoreCore.clear)
        forget(source)
        source.one(list(example.context), kvrelay={"mode": "recompute"})
        held = self._server.call(held_tokens)
        if held != len(example.context):
            raise BenchError(f"of {len(example.context)} tokens that were computed {held} are held")
        forget(self._b)
        return ask(self._b, example, way)


def held_tokens(core: StoreCore) -> int:
    """Tokens of all blocks that a store holds, whatever engine they are of."""
    return sum(len(shelf.sealed) * shelf.slab.geometry.block_tokens for shelf in core.shelves)


def trial(
    number: int, matching_tokens: int, offered: dict[str, Any], recomputed: dict[str, Any]
) -> Trial:
    """A trial from both answers of a driven engine.

    Raises:
        BenchError: the answer without relay is none.
        Miscount: relay claims other tokens than vLLM counts.
    """
    for answer in (offered, recomputed):
        check_count(answer)
    if recomputed["cached"]:
        raise BenchError(f"{recomputed['cached']} tokens were to be recomputed and were not")
    return Trial(
        example=number,
        matching_tokens=matching_tokens,
        relayed_tokens=offered["cached"],
        reason=offered["record"]["reason"],
        is_same_answer=offered["tokens"] == recomputed["tokens"],
        are_same_logprobs=offered["logprobs"] == recomputed["logprobs"],
        ttft_s=offered["ttft_s"],
        recompute_ttft_s=recomputed["ttft_s"],
    )
