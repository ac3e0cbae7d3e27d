"""Audit rows of what was seen of a unit's requests (schema.py says what the columns mean). Pure.

Beside the columns of the schema a row has these, as further factors:

    turn, session_shape   its number in its session, A's first being 1; the session's shape
    not_quiet             the machine was not: why a row is left out, if the plan excludes that
    place                 of its block in the unit: what came before it there; a turn is one
    cached_tokens         prompt tokens that the engine did not compute, by vLLM's own count
    wire_bytes            moved between nodes
    decode_tokens_per_s   rate of the answer's tokens after the first
    block_s, drain_s      from the block's first arrival to its last, and until all were answered
    others_cores, steal_cores    load by others meanwhile
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.audit.arms import ARMS, CONTROL, Asked
from kvrelay.bench.audit.asking import Reply
from kvrelay.bench.audit.design import Ask, Unit
from kvrelay.bench.audit.material import Prompts
from kvrelay.bench.audit.workload import quality
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.quiet import Watched
from kvrelay.bench.report import Row


@dataclass(frozen=True, slots=True)
class Seen:
    """One request of B's, or of either agent's in a session.

    Attributes:
        ask: what was planned; `prompts`, what it came to.
        prompt_tokens: of its prompt as it was sent.
        time_s: when it came, since the run's start.
        in_flight: how many others were being answered then.
        first_s: how long A's turn had taken.
        answer: None if there was none; then `failed_s` is after how long.
        record: of relay; empty without an answer.
        agent: whose engine was asked.
        turn: its number in its session; None where there is none.
        asked_before: whether its engine has been asked in this session.
        kept_blocks: of KV that engines keep of its session so far; None to tell it by `kv_blocks`.
    """

    ask: Ask
    prompts: Prompts
    prompt_tokens: int
    time_s: float
    in_flight: int
    first_s: float
    answer: Reply | None
    failed_s: float
    record: Mapping[str, Any]
    agent: str
    turn: int | None = None
    asked_before: bool = False
    kept_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What was seen of a whole block.

    Attributes:
        watched: the machine meanwhile.
        block_s: from the first arrival to the last one; `drain_s`, from there to the last answer.
        relay_cpu_s: of the stores and connectors, for each request; None if nobody can tell.
        engine_bytes: resident memory of one engine.
        kv_block_bytes: of one block of KV; None if no relay has told it yet.
    """

    watched: Watched
    block_s: float
    drain_s: float
    relay_cpu_s: float | None
    engine_bytes: int
    kv_block_bytes: float | None


def rows_of(unit: Unit, blocks: Sequence[tuple[Sequence[Seen], Around]]) -> list[Row]:
    """All rows of a unit; of a session, each turn is a block."""
    found: list[tuple[Seen, Row]] = []
    of_session: Row = {}
    if unit.design == "sessions":
        of_session["session_s"] = _session_s(unit, blocks)
        of_session["tokens_per_s"] = _throughput(blocks)
        of_session["session_shape"] = str(unit.shape)
    for place, (requests, around) in enumerate(blocks):
        of_block: Row = {"tokens_per_s": _throughput([(requests, around)])}
        for number, seen in enumerate(requests):
            row = _row(unit, place, number, seen, around) | of_block
            if of_session:
                row |= {"turn": seen.turn, **of_session}
            found.append((seen, row))
    if unit.design in ("paired", "aa"):
        _compare(found)
    return [row for _, row in found]


def kv_blocks(seen: Seen) -> int:
    """Blocks of KV that engines keep: of a session so far, else of A's turn and B's."""
    if seen.kept_blocks is not None:
        return seen.kept_blocks
    first, second = (-(-n // BLOCK_TOKENS) for n in (len(seen.prompts.first), seen.prompt_tokens))
    arm = ARMS[seen.ask.arm]
    one_engine = arm.asked in (Asked.OWNER, Asked.POOL)
    return first + second - (seen.prompts.shared_tokens // BLOCK_TOKENS if one_engine else 0)


def kept_blocks(prompts: Mapping[str, Sequence[Sequence[int]]]) -> int:
    """Blocks of KV that engines keep of prompts, by engine; what two begin with counts once."""
    total = 0
    for of_engine in prompts.values():
        kept: dict[tuple[int, tuple[int, ...]], int] = {}
        for prompt in of_engine:
            before = -1
            for at in range(0, len(prompt), BLOCK_TOKENS):
                block = before, tuple(prompt[at : at + BLOCK_TOKENS])
                before = kept.setdefault(block, len(kept))
        total += len(kept)
    return total


def _session_s(unit: Unit, blocks: Sequence[tuple[Sequence[Seen], Around]]) -> float | None:
    """Of all turns, one after another, without the waits between them; None if it broke off."""
    turns = [seen for requests, _ in blocks for seen in requests]
    if len(turns) < unit.requests or any(seen.answer is None for seen in turns):
        return None
    return turns[0].first_s + sum(seen.answer.e2e_s for seen in turns if seen.answer is not None)


def _throughput(blocks: Sequence[tuple[Sequence[Seen], Around]]) -> float | None:
    """Tokens of these blocks, prompts and answers, over the time that they took."""
    total = sum(
        seen.prompt_tokens + len(seen.answer.tokens)
        for requests, _ in blocks
        for seen in requests
        if seen.answer is not None
    )
    seconds = sum(around.block_s + around.drain_s for _, around in blocks)
    return total / seconds if total and seconds > 0 else None


def _row(unit: Unit, place: int, number: int, seen: Seen, around: Around) -> Row:
    ask, answer, record, arm = seen.ask, seen.answer, seen.record, ARMS[seen.ask.arm]
    relayed = int(record.get("relayed_tokens", 0))
    e2e_s = seen.failed_s if answer is None else answer.e2e_s
    session = unit.key if unit.block is None else f"{unit.key}/{place}.{number}"
    pair = unit.pair if unit.block is not None else f"{unit.key}/{number}"
    return {
        "session": session,
        "request": f"{unit.key}/{place}.{number}",
        "time_s": seen.time_s,
        "design": unit.design,
        "pair": pair if unit.design in ("paired", "aa", "switchback") else None,
        "block": unit.block,
        "unit": seen.agent if unit.design == "staggered" else None,
        "saturation": unit.saturation,
        "place": place,
        "arm": ask.arm,
        "propensity": ask.propensity,
        "completed": relayed > 0,
        **unit.stratum.factors(),
        "heterogeneity": "same",
        "prompt_tokens": seen.prompt_tokens,
        "shared_prefix_fraction": seen.prompts.shared_tokens / len(seen.prompts.second),
        "jaccard": seen.prompts.jaccard,
        "cosine": seen.prompts.cosine,
        "in_flight": seen.in_flight,
        "ttft_s": e2e_s if answer is None else answer.ttft_s,
        "e2e_s": e2e_s,
        "session_s": seen.first_s + e2e_s,
        "decode_tokens_per_s": None if answer is None else answer.tokens_per_s,
        "prefill_s": prefill_s(record),
        "relayed_tokens": relayed,
        "bytes_moved": int(record.get("num_bytes", 0)),
        "wire_bytes": int(record.get("wire_bytes", 0)),
        "wire_s": record.get("transfer_s") if record.get("wire_bytes") else None,
        "kv_bytes": _kv_bytes(seen, around),
        "memory_bytes": around.engine_bytes * arm.engines,
        "relay_cpu_s": around.relay_cpu_s,
        "failed": answer is None,
        "cached_tokens": 0 if answer is None else answer.cached_tokens,
        **_quality(seen),
        **_decided(ask.arm, record),
        "not_quiet": not around.watched.quiet,
        "block_s": around.block_s,
        "drain_s": around.drain_s,
        "others_cores": around.watched.others_cores,
        "steal_cores": around.watched.steal_cores,
    }


def prefill_s(record: Mapping[str, Any]) -> float | None:
    """Seconds to the first token without those of the load: computing, and waiting for it."""
    first_token_s = record.get("first_token_s")
    if first_token_s is None:
        return None
    return max(0.0, float(first_token_s) - float(record.get("load_s") or 0.0))


def _kv_bytes(seen: Seen, around: Around) -> int | None:
    if around.kv_block_bytes is None:
        return None
    return round(kv_blocks(seen) * around.kv_block_bytes)


def _decided(arm: str, record: Mapping[str, Any]) -> Row:
    """What the engine's policy predicted, and where it was left to decide, what it decided."""
    decision = record.get("decision") or {}
    decides = arm == "policy" and bool(decision)
    return {
        "predicted_recompute_s": _finite(decision.get("recompute_s")),
        "predicted_relay_s": _finite(decision.get("relay_s")),
        "decided": decision.get("arm") if decides else None,
        "reason": record.get("reason") if decides else None,
    }


def _quality(seen: Seen) -> Row:
    """What an answer tells by itself."""
    if seen.answer is None:
        return {}
    found: Row = {"perplexity": quality.output_perplexity(seen.answer.output)}
    if seen.prompts.task is not None:
        found["correct"] = float(seen.prompts.task.is_correct(seen.answer.output.logprobs[0]))
    return found


def _finite(value: float | None) -> float | None:
    """A prediction; none where it is that this would never end."""
    return value if value is not None and math.isfinite(value) else None


def _compare(found: Sequence[tuple[Seen, Row]]) -> None:
    """Fill in what the same request under another arm tells."""
    by_text: dict[int, list[tuple[Seen, Row]]] = {}
    for seen, row in found:
        by_text.setdefault(seen.ask.text, []).append((seen, row))
    for same in by_text.values():
        reference = next((s.answer for s, row in same if row["arm"] == CONTROL), None)
        for name in ("predicted_recompute_s", "predicted_relay_s"):
            # Predictions are of before the arm, but recomputing asks for none.
            known = [row[name] for _, row in same if row[name] is not None]
            for _, row in same:
                row[name] = row[name] if row[name] is not None else next(iter(known), None)
        for seen, row in same:
            if seen.answer is not None and reference is not None:
                row["agreement"] = quality.agreement(seen.answer.tokens, reference.tokens)
                row["logprob_drift"] = quality.logprob_drift(seen.answer.output, reference.output)
                row["bleu"] = quality.bleu(seen.answer.text, reference.text)
                row["rouge_l"] = quality.rouge_l(seen.answer.text, reference.text)
