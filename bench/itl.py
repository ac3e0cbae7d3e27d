"""What saving costs a request that is being answered: ITL with saving switched per request.

One long request runs on engine `b`. Beside it, prompts come that `b` computes in full, with
relay refused; only whether they are *saved* differs: a prompt that the store has already,
because engine `a` computed it before, is not saved again. On the other side `a` computes another
prompt before, since what it does leaves the machine's caches and cores as they are then. So both
sides of the comparison do the same work in the same engines but for the saving.
"""

from __future__ import annotations

import bisect
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrelay.bench.client import BenchClient
from kvrelay.bench.errors import BenchError, Miscount
from kvrelay.bench.hit import blocks_saved, prefill_estimate_s
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.report import Row
from kvrelay.bench.settle import StoreWatch

PROMPT_TOKENS = 512
RUNNING_TOKENS = 64
# As much as the context holds; a new running request is started before that.
MAX_TOKENS = 7900
RENEW_AT_TOKENS = 7000
# Saving goes on for a moment after the prompt's answer.
AFTER_S = 0.5
# What the other engine's work leaves behind must be over before a prompt is sent.
REST_S = 0.3
START_TIMEOUT_S = 120.0


class RunningRequest:
    """A long answer that arrives while other things are measured."""

    def __init__(self, url: str, agent: str, prompt: Sequence[int], max_tokens: int) -> None:
        self.times_s: list[float] = []
        self._stop = threading.Event()
        self._arguments = (agent, tuple(prompt), max_tokens)
        self._client = BenchClient(url)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bench-itl", daemon=True)

    def __enter__(self) -> RunningRequest:
        self._thread.start()
        start_s = time.monotonic()
        while len(self.times_s) < 2:
            self.check()
            if time.monotonic() - start_s > START_TIMEOUT_S:
                raise BenchError("the running request does not run")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_TIMEOUT_S)
        self._client.close()

    @property
    def num_tokens(self) -> int:
        """How many tokens have arrived."""
        return len(self.times_s)

    def check(self) -> None:
        """Fail if it has ended.

        Raises:
            BenchError: it failed, or it came to its end.
        """
        if self._error is not None:
            raise BenchError(f"the running request failed: {self._error}") from self._error
        if not self._thread.is_alive():
            raise BenchError("the running request has come to its end too early")

    def _run(self) -> None:
        agent, prompt, max_tokens = self._arguments
        try:
            for time_s in self._client.token_times_s(agent, prompt, max_tokens, self._stop.is_set):
                self.times_s.append(time_s)
        except Exception as error:
            self._error = error


def gaps_s(times_s: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """Times between tokens, of the tokens that arrived in (start, end]."""
    first = max(1, bisect.bisect_right(times_s, start_s))
    last = bisect.bisect_right(times_s, end_s)
    return [times_s[i] - times_s[i - 1] for i in range(first, last)]


@dataclass(frozen=True, slots=True)
class Bench:
    """Two engines with the connector, and what is needed to measure on them."""

    url: str
    client: BenchClient
    store: StoreWatch
    prompts: PromptSource
    samples: list[Row]
    other: str = "a"
    agent: str = "b"

    def run(self, alternations: int, rng: random.Random, advance: Callable[[float], None]) -> None:
        """Alternate between saving and not, in random order within each alternation.

        Raises:
            Miscount: a prompt was not computed in full.
            BenchError: the running request failed.
        """
        number = 0
        while number < alternations:
            prompt = self.prompts.take(RUNNING_TOKENS).shared
            with RunningRequest(self.url, self.agent, prompt, MAX_TOKENS) as running:
                while number < alternations and running.num_tokens < RENEW_AT_TOKENS:
                    for saving in rng.sample((True, False), 2):
                        self._ask(running, number, saving)
                        advance(self.estimate_s() / 2)
                    number += 1

    @staticmethod
    def estimate_s() -> float:
        """Roughly how long one alternation takes."""
        return 2 * (2 * prefill_estimate_s(PROMPT_TOKENS) + AFTER_S + REST_S)

    def _ask(self, running: RunningRequest, number: int, saving: bool) -> None:
        prompt = self.prompts.take(PROMPT_TOKENS).shared
        before = self.prompts.take(PROMPT_TOKENS).shared if saving else prompt
        # The running request commits a block now and then: its tokens are looked at, not the
        # count, so one block more does no harm.
        since = self.store.committed()
        self.client.first_token(self.other, before)
        self.store.wait(since, blocks_saved(PROMPT_TOKENS))
        time.sleep(REST_S)
        sent_s = time.perf_counter()
        answer = self.client.first_token(self.agent, prompt, mode="recompute")
        answered_s = time.perf_counter()
        time.sleep(AFTER_S)
        running.check()
        if answer.cached_tokens:
            raise Miscount(f"'{self.agent}' had {answer.cached_tokens} tokens of a prompt cached")
        after = gaps_s(running.times_s, answered_s, answered_s + AFTER_S)
        during = gaps_s(running.times_s, sent_s, answered_s + AFTER_S)
        if not after:
            raise BenchError("the running request stood still")
        factors = {"alternation": number, "saving": saving}
        for measure, value in (
            ("itl_s", statistics.fmean(after)),
            ("itl_worst_after_s", max(after)),
            ("itl_worst_s", max(during)),
        ):
            self.samples.append({**factors, "measure": measure, "value": value})
