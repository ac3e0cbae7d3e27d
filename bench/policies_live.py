"""The live half of `kvrelay bench policies`: where one request's arm changes what others meet.

A round is a block of requests for each arm, in random order, each with the machine quiet before:

    recompute   mode `recompute`
    relay       mode `relay`: all that is held
    cost        mode `auto`: the engine's own policy decides, having learnt from what came before
    owner       the agent that has the prefix is asked, behind the block of `relay`; not for tails

The blocks of a round have the same prompts, coming after the same gaps, under salts of their own;
of each prompt A has computed the prefix before its block begins. So a round is to a live cell what
a pair is to an idle one, and each fixed rule decides all requests of a cell alike: its outcome is
that of the arm that it chooses. What an engine falls back to under load is part of the outcome.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kvrelay.bench.answers import Answer
from kvrelay.bench.errors import Miscount
from kvrelay.bench.policies import Bench, without_overhead
from kvrelay.bench.policies_plan import UTILISATION, num_requests
from kvrelay.bench.policies_rows import COST, PARTIAL, RECOMPUTE, RELAY, TAIL, Cell
from kvrelay.bench.report import Row
from kvrelay.bench.topology import NEAR, SAME_NODE, B
from kvrelay.policies.modes import Mode

OWNER = "owner"
_MODES = {RECOMPUTE: Mode.RECOMPUTE, RELAY: Mode.RELAY, COST: Mode.AUTO, OWNER: Mode.RECOMPUTE}
_SECONDS = {RECOMPUTE: "recompute_s", RELAY: "relay_s", COST: "cost_s", OWNER: "local_hit_s"}
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Live:
    """Measures live cells on a running cluster."""

    bench: Bench

    def round(self, cell: Cell, rng: random.Random) -> Row:
        """Measure all arms.

        Raises:
            Miscount: an engine reused what it should have computed.
            WrongPath: a relay did not go over its link.
            BenchError: an agent failed, or blocks were not saved or not heard of.
        """
        if self.bench.be_at(cell.link) and cell.link != SAME_NODE:
            self.bench.settle(cell)
        count = num_requests(cell)
        mean_gap_s = self.bench.alone_s[cell.tokens] / UTILISATION
        gaps_s = [0.0, *(rng.expovariate(1 / mean_gap_s) for _ in range(count - 1))]
        prompts = [self.bench.prompts.some(cell.tokens) for _ in range(count)]
        found: Row = {**cell.factors(), "gaps_s": gaps_s, "local_hit_s": None}
        found |= {"requests": {}, "watched": {}}
        for arm in rng.sample((RECOMPUTE, RELAY, COST), 3):
            self._block(found, cell, arm, prompts)
        records = [request["record"] for request in found["requests"][RELAY]]
        relayed = [record["relayed_tokens"] for record in records]
        one = relayed.index(cell.shared_tokens) if cell.shared_tokens in relayed else 0
        similarity = self.bench.similarity(cell, prompts[one])
        return {**found, "record": records[one], "similarity": similarity}

    def _block(self, found: Row, cell: Cell, arm: str, prompts: Prompts) -> None:
        salts = [self.bench.salt() for _ in prompts]
        if arm != RECOMPUTE and cell.shared_tokens:
            self._prime(cell, prompts, salts)
        before = self.bench.received_bytes()
        answers = self._ask(found, arm, B, prompts, salts)
        received = self.bench.received_bytes() - before
        for answer in answers:
            relayed = answer.record["relayed_tokens"]
            if answer.cached_tokens != relayed:
                raise Miscount(
                    f"agent '{B}' counts {answer.cached_tokens} cached prompt tokens where "
                    f"{relayed} were relayed: it had some of a new prompt"
                )
            if relayed and cell.load != PARTIAL:
                self.bench.check_path(cell, answer.record, received)
        if arm == RELAY and cell.load != TAIL and cell.shared_tokens:
            _, agent = self.bench.source(cell)
            self._ask(found, OWNER, agent, prompts, salts)

    def _prime(self, cell: Cell, prompts: Prompts, salts: Sequence[str]) -> None:
        self.bench.gate.wait()
        shared = cell.shared_tokens
        if cell.load == PARTIAL:
            for prompt, salt in zip(prompts, salts, strict=True):
                self.bench.compute(self.bench.here, NEAR, prompt[: shared // 2], salt)
        pairs = zip(prompts, salts, strict=True)
        self.bench.prime(cell, [(prompt[:shared], salt) for prompt, salt in pairs])

    def _ask(
        self, found: Row, arm: str, agent: str, prompts: Prompts, salts: Sequence[str]
    ) -> list[Answer]:
        """A block: its requests come after their gaps, whatever became of the others."""
        comes_s = list(accumulate(found["gaps_s"]))

        def block() -> list[Answer]:
            start_s = time.perf_counter()

            def ask(come_s: float, prompt: Sequence[int], salt: str) -> Answer:
                time.sleep(max(0.0, start_s + come_s - time.perf_counter()))
                return self.bench.client.answer(agent, prompt, mode=_MODES[arm], salt=salt)

            with ThreadPoolExecutor(len(prompts)) as pool:
                return list(pool.map(ask, comes_s, prompts, salts))

        answers, watched = self.bench.gate.watch(block)
        found[_SECONDS[arm]] = sum(answer.seconds for answer in answers) / len(answers)
        found["watched"][arm] = watched.to_dict()
        found["requests"][arm] = [_request(answer) for answer in answers]
        return answers


def _request(answer: Answer) -> dict[str, Any]:
    return {"seconds": answer.seconds, "record": without_overhead(answer.record)}
