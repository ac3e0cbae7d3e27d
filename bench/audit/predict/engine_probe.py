"""Times the first token of somebody's engine, for prompts of several lengths, over its OpenAI API.

Each prompt is random words behind a random one, so no cache knows any. A ladder of lengths is
climbed as far as time allows, and then walked again and again in random order, so that what else
the machine does hits all lengths alike. How many tokens a prompt has, and how many of those the
engine had cached (a chat template, at most), is what the engine itself says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvrelay.bench.audit.predict.endpoint import Endpoint, TooLong
from kvrelay.bench.errors import BenchError

SHORTEST, LONGEST = 128, 8192
ROUNDS = 12
MIN_RUNGS = 3
# Of the time that is left: a rung that may take longer is not climbed.
_SHARE = 0.3
# Attention at its worst: twice the tokens, four times the seconds.
_GROWTH = 4.0
# Words are not tokens, and a chat template has some of its own.
_CONTEXT_SHARE = 0.95
_TEXT = (
    "able about above after again all along also and any area around back base below best body "
    "book both call car case city clear close cold come cost country day deep door down early "
    "earth east end even every eye face fact far fast few field find fire first five food foot "
    "form four free front full game give glass gold good great green ground group half hand hard"
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed prompt.

    Attributes:
        rung: the length that was aimed at, the same for those to be compared.
        tokens: of the prompt.
        cached: of these, what the engine did not compute.
        seconds: to the first token.
    """

    rung: int
    tokens: int
    cached: int
    seconds: float


def measure(
    endpoint: Endpoint,
    budget_s: float,
    longest: int = LONGEST,
    tell: Callable[[float], None] = lambda _: None,
    clock_s: Callable[[], float] = time.perf_counter,
) -> list[Sample]:
    """Samples, for as long as the budget lasts or each length has been measured often enough.

    Args:
        endpoint: the engine.
        budget_s: most seconds, but for a prompt that takes longer than thought.
        longest: no longer prompts, in tokens.
        tell: gets seconds of the budget as they go; all of them in the end.
        clock_s: for what is left of the budget.

    Raises:
        BenchError: the engine does not answer, or is too slow for enough lengths.
    """
    probe = _Probe(endpoint, clock_s, clock_s() + budget_s, tell)
    context = endpoint.max_tokens
    if context is not None:
        longest = min(longest, int(_CONTEXT_SHARE * context))
    # What an engine does only once, such as compiling, is no measurement.
    probe.ask(SHORTEST)
    samples: list[Sample] = []
    rungs: list[int] = []
    rung = min(SHORTEST, longest)
    while rung > 0:
        try:
            sample = probe.ask(rung)
        except TooLong:
            break
        samples.append(sample)
        rungs.append(rung)
        if rung >= longest or _GROWTH * sample.seconds > _SHARE * probe.left_s:
            break
        rung = min(2 * rung, longest)
    if len(rungs) < MIN_RUNGS:
        raise BenchError(
            f"only {len(rungs)} lengths of prompt could be timed, and a curve needs {MIN_RUNGS}: "
            "the engine is too slow or its context too short; give more --seconds"
        )
    expected = {sample.rung: sample.seconds for sample in samples}
    shuffler = random.Random(0)
    for _ in range(ROUNDS - 1):
        shuffler.shuffle(rungs)
        for rung in rungs:
            if expected[rung] <= probe.left_s:
                samples.append(probe.ask(rung))
    tell(max(0.0, budget_s - probe.told_s))
    return samples


class _Probe:
    def __init__(
        self,
        endpoint: Endpoint,
        clock_s: Callable[[], float],
        end_s: float,
        tell: Callable[[float], None],
    ) -> None:
        self._endpoint, self._clock_s, self._end_s, self._tell = endpoint, clock_s, end_s, tell
        self._tokens_per_word = 1.0
        self._words: dict[int, int] = {}  # of each length, so that its samples can be compared
        self._rng = random.SystemRandom()  # not the words of an earlier probe, which are cached
        self.told_s = 0.0

    @property
    def left_s(self) -> float:
        return self._end_s - self._clock_s()

    def ask(self, tokens: int) -> Sample:
        words = self._words.setdefault(tokens, max(1, round(tokens / self._tokens_per_word)))
        before_s = self.left_s
        first = self._endpoint.first_token(self._prompt(words))
        self._tokens_per_word = first.prompt_tokens / words
        took_s = min(before_s - self.left_s, max(before_s, 0.0))
        self.told_s += took_s
        self._tell(took_s)
        return Sample(tokens, first.prompt_tokens, first.cached_tokens, first.seconds)

    def _prompt(self, words: int) -> str:
        first = f"{self._rng.getrandbits(32):08x}"
        return " ".join([first, *self._rng.choices(_WORDS, k=words - 1)])
