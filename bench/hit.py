"""`kvrelay bench hit`: what a relayed prefix costs, beside computing it and beside having it.

Agents `a` and `b` relay, `plain` has no connector, `peer` has vLLM's ExampleConnector. B's
prompt is what A computed plus 32 other tokens. The arms of a repeat, each with a prompt of its
own that begins like no other, run in random order:

    relay      a: P             -> save_s      then  b: P+32                    -> relay_s
    recompute  a: P             -> save_s      then  b: P+32, relay refused     -> recompute_s
    plain      plain: P         -> plain_miss_s  then  plain: P+32              -> local_hit_s
                                  then  a: Q   then  plain: P+32 others    -> local_hit_later_s
    miss       b: P             -> miss_s      then  a: P+32, not timed         -> bytes, copy_s
    peer       peer: P+32       -> peer_save_s then  a: Q  then  peer: P+32 others  -> peer_s

Q is another prompt of the same length. Right after computing P an engine finds P's KV, and
itself, in the processor's caches, which lie cold after another engine's turn: as B's do when
it relays, and as any engine's do that others share the machine with. So `local_hit_s` is the
absolute floor, `local_hit_later_s` the floor from where a relay starts, and where the peer does.

Before B is asked, the store has committed every block of A. Engines `a` and `b` are equals, so
the untimed request that brings the record of a relay may go the other way; the stream that is
timed has no field for it. The peer's engine is asked under two cache salts: its own prefix cache
minds them, ExampleConnector's files do not, so that it loads what it wrote.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench import engines
from kvrelay.bench.client import BenchClient
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.errors import Miscount
from kvrelay.bench.prompts import OTHER_TOKENS, PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.bench.settle import StoreWatch
from kvrelay.cluster.errors import ConfigError

A, B, PLAIN, PEER = "a", "b", "plain", "peer"
ARMS = ("relay", "recompute", "plain", "miss")
_PREFILLS = {"relay": 1, "recompute": 2, "plain": 2, "miss": 1, PEER: 2}
WARM_UP_TOKENS = 1024
Advance = Callable[[float], None]


def longest_tokens() -> int:
    """The longest shared prefix for which B's prompt and one output token fit."""
    return engines.MAX_MODEL_TOKENS - OTHER_TOKENS - 1


def prefill_estimate_s(tokens: int) -> float:
    """Roughly how long a prefill takes (two cores, demo model): weights of the progress bar."""
    return 0.85e-3 * tokens + 2.0e-7 * tokens**2


def blocks_saved(tokens: int, stored: int = 0) -> int:
    """Blocks that a prompt of `tokens` adds to a store that has its first `stored` tokens.

    Whole blocks, and the partial last one, which is another block for every length.
    """
    return -(-tokens // BLOCK_TOKENS) - stored // BLOCK_TOKENS


def local_hit_tokens(tokens: int) -> int:
    """What vLLM's own prefix cache has of `tokens` computed ones: whole blocks."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def peer_hit_tokens(tokens: int) -> int:
    """What ExampleConnector loads for a prompt of `tokens`."""
    return (tokens - 2) // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Bench:
    """One running cluster and what is needed to measure on it."""

    client: BenchClient
    store: StoreWatch
    prompts: PromptSource
    gate: QuietGate
    samples: list[Row]
    peer_folder: Path | None

    def run(
        self, lengths: Sequence[int], repeats: int, rng: random.Random, advance: Advance
    ) -> None:
        """Measure every arm at every length, as often as asked.

        Raises:
            Miscount: an engine reused other tokens than the arm claims.
            BenchError: an agent failed or blocks were not saved.
        """
        arms = [*ARMS, PEER] if self.peer_folder else list(ARMS)
        for repeat in range(repeats):
            for tokens in rng.sample(lengths, len(lengths)):
                for arm in rng.sample(arms, len(arms)):
                    self._arm(arm, tokens, repeat)
                    advance(_PREFILLS[arm] * prefill_estimate_s(tokens))

    def warm_up(self) -> None:
        """Let every engine compute, save, load and hit once; nothing of it is kept."""
        for arm in (*ARMS, PEER) if self.peer_folder else ARMS:
            self._arm(arm, WARM_UP_TOKENS, -1)
        self.samples.clear()

    def _arm(self, arm: str, tokens: int, repeat: int) -> None:
        prompt = self.prompts.take(tokens)
        factors = {"tokens": tokens, "repeat": repeat, "arm": arm}
        whole = tokens + OTHER_TOKENS
        first, second = blocks_saved(tokens), blocks_saved(whole, tokens)
        if arm == "relay":
            self._ask(factors, "save_s", A, prompt.shared, cached=0, saved=first)
            self._ask(factors, "relay_s", B, prompt.whole, cached=tokens, saved=second)
        elif arm == "recompute":
            self._ask(factors, "save_s", A, prompt.shared, cached=0, saved=first)
            self._ask(
                factors, "recompute_s", B, prompt.whole, cached=0, saved=second, mode="recompute"
            )
        elif arm == "plain":
            self._ask(factors, "plain_miss_s", PLAIN, prompt.shared, cached=0)
            hit = local_hit_tokens(tokens)
            self._ask(factors, "local_hit_s", PLAIN, prompt.whole, cached=hit)
            self._other_turn(factors)
            again = prompt.shared + prompt.other
            self._ask(factors, "local_hit_later_s", PLAIN, again, cached=hit)
        elif arm == "miss":
            self._ask(factors, "miss_s", B, prompt.shared, cached=0, saved=first)
            self._record(factors, A, prompt.whole, tokens, second)
        else:
            stored = prompt.shared + prompt.other
            self._ask(factors, "peer_save_s", PEER, stored, cached=0, salt="writer")
            self._other_turn(factors)
            hit = peer_hit_tokens(whole)
            self._ask(factors, "peer_s", PEER, prompt.whole, cached=hit, salt="reader")
            if self.peer_folder is not None:
                engines.empty(self.peer_folder)

    def _other_turn(self, factors: Mapping[str, Any]) -> None:
        """Another engine computes another prompt of the same length."""
        tokens = factors["tokens"]
        other = self.prompts.take(tokens).shared
        self._ask(factors, "save_s", A, other, cached=0, saved=blocks_saved(tokens))

    def _ask(
        self,
        factors: Mapping[str, Any],
        measure: str,
        agent: str,
        prompt: Sequence[int],
        *,
        cached: int,
        saved: int = 0,
        mode: str | None = None,
        salt: str | None = None,
    ) -> None:
        """Time one request, check what was reused, wait until what it adds is in the store."""
        since = self.store.committed()
        answer, watched = self.gate.watch(
            lambda: self.client.first_token(agent, prompt, mode, salt)
        )
        if answer.cached_tokens != cached:
            raise Miscount(
                f"{measure} at {factors['tokens']} tokens: vLLM of agent '{agent}' counts "
                f"{answer.cached_tokens} cached prompt tokens, expected {cached}; "
                "the figures would be worth nothing"
            )
        self.samples.append(
            {
                **factors,
                "measure": measure,
                "value": answer.ttft_s,
                "cached_tokens": answer.cached_tokens,
                **watched.to_dict(),
            }
        )
        if saved:
            self.store.wait(since, saved)

    def _record(
        self, factors: Mapping[str, Any], agent: str, prompt: Sequence[int], cached: int, saved: int
    ) -> None:
        """A relay that is not timed, for the record that its answer carries."""
        since = self.store.committed()
        self.gate.wait()
        record = self.client.record(agent, prompt)
        if record["relayed_tokens"] != cached:
            raise Miscount(
                f"at {cached} tokens agent '{agent}' relayed {record['relayed_tokens']} "
                f"({record['reason']})"
            )
        for measure, name in (
            ("bytes", "num_bytes"),
            ("copy_s", "copy_s"),
            ("load_s", "load_s"),
            ("load_path", "load_path"),
        ):
            self.samples.append({**factors, "measure": measure, "value": record[name]})
        self.store.wait(since, saved)


def total_estimate_s(lengths: Sequence[int], repeats: int, with_peer: bool) -> float:
    """What `Bench.run` advances to."""
    prefills = sum(_PREFILLS[arm] for arm in (*ARMS, *([PEER] if with_peer else [])))
    return repeats * prefills * sum(map(prefill_estimate_s, lengths))


def check_lengths(lengths: Sequence[int]) -> None:
    """Fail on lengths that cannot be measured.

    Raises:
        ConfigError: naming the length and the limits.
    """
    for tokens in lengths:
        if not BLOCK_TOKENS <= tokens <= longest_tokens():
            limits = f"{BLOCK_TOKENS} to {longest_tokens()}"
            raise ConfigError(f"--tokens {tokens}: lengths can be {limits}")
