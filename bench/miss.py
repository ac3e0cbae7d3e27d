"""`kvrelay bench miss`: what the connector costs where it brings nothing.

Three engines play three parts: `connector`, `plain` and `control`, a second plain one. Each
repeat asks all three for a never-seen prompt of the same length, in random order, so that
connector / plain is a pair and control / plain is the same comparison between equals (A/A):
what that shows is noise and the engines' places, not the connector. The engines are started
three times with the parts rotated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.bench import idle
from kvrelay.bench.client import BenchClient
from kvrelay.bench.errors import Miscount
from kvrelay.bench.hit import blocks_saved, prefill_estimate_s
from kvrelay.bench.overhead import Overhead, between
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.bench.roles import CONNECTOR, ROLES, Cast
from kvrelay.bench.settle import StoreWatch

COMPANION_TOKENS = 256
Advance = Callable[[float], None]


@dataclass(slots=True)
class Bench:
    """One start of the engines and what is needed to measure on it."""

    session_id: str
    cast: Cast
    restart: int
    client: BenchClient
    store: StoreWatch
    prompts: PromptSource
    gate: QuietGate
    samples: list[Row]

    def warm_up(self, tokens: Sequence[int]) -> None:
        """Let every engine compute every length once; not timed."""
        for length in tokens:
            for agent in self.cast.agents:
                since = self.store.committed()
                prompt = self.prompts.take(length).shared
                self.client.first_token(agent, prompt)
                if self.cast.agents[agent] == CONNECTOR:
                    self.store.wait(since, blocks_saved(length))

    def measure(
        self, tokens: Sequence[int], repeats: int, rng: random.Random, advance: Advance
    ) -> Overhead:
        """Time all three engines `repeats` times at each length; the connector's cost meanwhile.

        Raises:
            Miscount: an engine had a never-seen prompt cached.
        """
        before = self._record()
        ttft_s = 0.0
        for repeat in range(repeats):
            for length in rng.sample(tokens, len(tokens)):
                for role in rng.sample(ROLES, len(ROLES)):
                    sample = self._ask(role, length, repeat)
                    ttft_s += sample["value"] if role == CONNECTOR else 0.0
                    advance(prefill_estimate_s(length))
        return between(before, self._record(), ttft_s)

    def measure_idle(self, duration_s: float) -> None:
        """CPU of each engine's processes, and of the store's, while nothing is asked."""
        self.gate.wait()
        groups = idle.trees(self.session_id, list(self.cast.agents))
        for name, cores in idle.idle_cores(groups, duration_s).items():
            role = self.cast.agents.get(name, name)
            self._keep("idle_cores", cores, role=role)

    def _ask(self, role: str, tokens: int, repeat: int) -> Row:
        agent = self.cast.who(role)
        prompt = self.prompts.take(tokens).shared
        since = self.store.committed()
        answer, watched = self.gate.watch(lambda: self.client.first_token(agent, prompt))
        if answer.cached_tokens:
            raise Miscount(f"'{agent}' had {answer.cached_tokens} tokens of a new prompt cached")
        if role == CONNECTOR:
            self.store.wait(since, blocks_saved(tokens))
        return self._keep(
            "ttft_s",
            answer.ttft_s,
            tokens=tokens,
            repeat=repeat,
            role=role,
            **watched.to_dict(),
        )

    def _record(self) -> Any:
        """An untimed request whose answer tells the connector's cost so far."""
        prompt = self.prompts.take(COMPANION_TOKENS).shared
        since = self.store.committed()
        record = self.client.record(self.cast.who(CONNECTOR), prompt)
        self.store.wait(since, blocks_saved(COMPANION_TOKENS))
        return record

    def _keep(self, measure: str, value: float, **factors: Any) -> Row:
        sample = {"restart": self.restart, **factors, "measure": measure, "value": value}
        self.samples.append(sample)
        return sample
