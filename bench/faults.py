"""`kvrelay bench faults`: what goes wrong, what may be said about it, and the plan of a run.

    node-2: engine A, its store  -- wire -->  node-1: B's store, engine B, who is asked
            engine C, of other weights

An injection: A computes a prompt and B's store hears of it; B is asked for the prompt and eight
tokens more; while the blocks come over, or before, the fault strikes. B must answer, with the
tokens that it says when it computes all by itself, and with a reason that the fault explains.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvrelay.policies import Reason
from kvrelay.relay.routes import Way

NIXL, SPLIT, PLASMA = Way("nixl", "raw"), Way("nixl", "split"), Way("plasma", "raw")
WAYS = (NIXL, SPLIT, PLASMA)
# The fault strikes when so many blocks have landed. NIXL reads 1, 2, 4, ... blocks at a time.
MOMENTS = (0, 1, 3, 7, 15)
_CUT_OFF = frozenset({Reason.LOAD_DEADLINE, Reason.TRANSFER_FAILED})


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a fault.

    Attributes:
        name: which.
        reasons: those that B's record may give.
        ways: how the blocks may be on their way.
    """

    name: str
    reasons: frozenset[Reason]
    ways: tuple[Way, ...] = WAYS


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        variants: its forms, which take turns.
        in_transfer: strikes while blocks come over, else before B is asked.
        share: how many of the injections are of this fault, relative to others.
        seconds: what an injection takes, roughly.
    """

    variants: tuple[Variant, ...]
    in_transfer: bool = True
    share: float = 4.0
    seconds: float = 5.0


def _one(*reasons: Reason) -> tuple[Variant, ...]:
    return (Variant("", frozenset(reasons)),)


FAULTS: Mapping[str, Fault] = {
    "link_down": Fault(_one(*_CUT_OFF), seconds=9),
    # A store may finish what it moves before it finds that its Ray is gone.
    "node_lost": Fault(
        (Variant("raylet", _CUT_OFF | {Reason.RELAYED}), Variant("machine", _CUT_OFF)),
        share=1,
        seconds=45,
    ),
    "store_killed": Fault(
        (
            Variant("source", _CUT_OFF, (NIXL, SPLIT)),
            # Ray may have the objects on their way, and gives them out without their owner.
            Variant("owner", _CUT_OFF | {Reason.RELAYED}, (PLASMA,)),
            Variant("sink", frozenset({Reason.STORE_UNAVAILABLE})),
        ),
        seconds=12,
    ),
    # What it has computed is the store's: nothing is lost with it.
    "engine_killed": Fault(_one(Reason.RELAYED), share=2, seconds=25),
    "directory_killed": Fault(_one(Reason.RELAYED)),
    # Plasma's bytes are moved by Ray, which goes on.
    "source_stopped": Fault(
        (
            Variant("store", frozenset({Reason.LOAD_DEADLINE}), (NIXL, SPLIT)),
            Variant("mover", frozenset({Reason.LOAD_DEADLINE}), (NIXL, SPLIT)),
        ),
        seconds=9,
    ),
    "corrupt_bytes": Fault(_one(Reason.LOAD_CORRUPT), in_transfer=False),
    "truncated_payload": Fault(
        (
            Variant("offer", frozenset({Reason.TRANSFER_FAILED}), (NIXL,)),
            Variant("encoding", frozenset({Reason.LOAD_CORRUPT}), (SPLIT,)),
            Variant("object", frozenset({Reason.TRANSFER_FAILED}), (PLASMA,)),
        ),
        in_transfer=False,
    ),
    "wrong_fingerprint": Fault(_one(Reason.NO_SOURCE), in_transfer=False),
    # What has been read by then, or is read before its slot is written to, is good.
    "eviction_race": Fault(
        (
            Variant("source", frozenset({Reason.RELAYED, Reason.SOURCE_LOST, Reason.LOAD_CORRUPT})),
            Variant("sink", frozenset({Reason.RELAYED, Reason.LOAD_EVICTED})),
        )
    ),
    "out_of_capacity": Fault(
        (
            Variant("source", frozenset({Reason.NO_SOURCE})),
            Variant("sink", frozenset({Reason.NO_ROOM})),
        ),
        in_transfer=False,
    ),
    "slow_peer": Fault(_one(Reason.LOAD_DEADLINE), seconds=9),
    # A source that believes a loan to be over may lend the memory of its encodings again.
    "clock_jump": Fault(
        (
            Variant(
                "source", frozenset({Reason.RELAYED, Reason.LOAD_DEADLINE, Reason.LOAD_CORRUPT})
            ),
            Variant("sink", frozenset({Reason.LOAD_DEADLINE})),
        )
    ),
}


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that is to strike once.

    Attributes:
        fault: a name in `FAULTS`.
        variant: its form.
        way: how the blocks come.
        after_blocks: it strikes when so many have landed; None if before B is asked.
    """

    fault: str
    variant: Variant
    way: Way
    after_blocks: int | None

    @property
    def seconds(self) -> float:
        """What it takes, roughly."""
        return FAULTS[self.fault].seconds

    def earlier(self) -> Injection:
        """The same, so that it strikes in time where this one came too late."""
        moment = self.after_blocks
        return self if moment is None else replace(self, after_blocks=moment // 2)


def contradiction(
    record: Mapping[str, Any], variant: Variant, num_tokens: int, cached_tokens: int
) -> str | None:
    """What in B's record the fault does not explain; None if all of it is as it has to be.

    Args:
        record: B's.
        variant: what struck.
        num_tokens: of the prompt that could be relayed.
        cached_tokens: those that vLLM counts as not computed, after a whole relay.
    """
    reason, relayed = Reason(record["reason"]), record["relayed_tokens"]
    if reason not in variant.reasons:
        return f"reason {reason}, expected {' or '.join(sorted(variant.reasons))}"
    whole = relayed == num_tokens
    if whole != (reason is Reason.RELAYED):
        return f"{relayed} of {num_tokens} tokens are relayed, but the reason is {reason}"
    if relayed + record["local_tokens"] + record["recomputed_tokens"] != record["prompt_tokens"]:
        return "the record's tokens are not those of the prompt"
    if whole and (record["load_path"], cached_tokens) != ("nodes", num_tokens):
        return f"vLLM counts {cached_tokens} tokens, from {record['load_path']}"
    return None


def plan(count: int, seed: int) -> list[Injection]:
    """That many injections, each fault at least once, in random order.

    Raises:
        ValueError: there are more faults than injections.
    """
    rng = random.Random(seed)
    injections = []
    for name, number in counts(count).items():
        fault = FAULTS[name]
        kinds = [(variant, way) for variant in fault.variants for way in variant.ways]
        rng.shuffle(kinds)
        # Every form once before any comes by its second way.
        in_turn = itertools.cycle(sorted(kinds, key=partial(_turn, kinds)))
        for variant, way in itertools.islice(in_turn, number):
            moment = rng.choice(MOMENTS) if fault.in_transfer else None
            injections.append(Injection(name, variant, way, moment))
    rng.shuffle(injections)
    return injections


def counts(count: int) -> dict[str, int]:
    """How many injections of each fault: by shares, each at least once, `count` in all.

    Raises:
        ValueError: there are more faults than injections.
    """
    if count < len(FAULTS):
        raise ValueError(f"{len(FAULTS)} faults need as many injections, got {count}")
    total = sum(fault.share for fault in FAULTS.values())
    wanted = {name: count * fault.share / total for name, fault in FAULTS.items()}
    given = {name: max(1, int(share)) for name, share in wanted.items()}
    by_need = sorted(wanted, key=lambda name: given[name] - wanted[name])
    for name in itertools.islice(itertools.cycle(by_need), max(0, count - sum(given.values()))):
        given[name] += 1
    # Those that were given their one although their share is less are paid for by the largest.
    while sum(given.values()) > count:
        given[max(given, key=lambda name: given[name])] -= 1
    return given


def _turn(kinds: Sequence[tuple[Variant, Way]], kind: tuple[Variant, Way]) -> int:
    """The number of this kind among those of its variant."""
    return [way for variant, way in kinds if variant == kind[0]].index(kind[1])
