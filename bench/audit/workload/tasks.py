"""A task with known answers for small models: which value belongs to a key of a table.

    context   text ... The box amber holds copper.  The box birch holds silver.  ... text
    question  The box birch holds

The context is what A reads and B's prompt begins with, the question is B's own. Where the answer
stands in the context only, B needs what A has computed (regime `need`); where the question
repeats the row, it does not (`no_need`). An audit of what a cache carries compares both: a cache
of another example must cost accuracy in the first and none in the second
(Cheng, Das and Ramnath, arXiv 2608.04893).

The answer is the likeliest of the values, whatever else the model would rather say. All tasks
have the same keys and values, every value comes once, and which belongs to which is drawn anew.
So chance is one in the number of values, also for a model that reads another task's table or
prefers a value; one that reads no table may list none of them, and is below chance then. The
text around the table is of either language; the table is English, which the demo model knows best.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.bench.errors import BenchError

Tokens = tuple[int, ...]

KEYS = ("amber", "birch", "cedar", "daisy")
VALUES = ("copper", "silver", "paper", "sugar")
_TITLE = "\n\nContents of the boxes:\n"
_ROW = "The box {key} holds {value}.\n"
_QUESTION = "\nThe box {key} holds"
_NOTE = "\nNote: The box {key} holds {value}.\n"
# How much of the text stands before the table.
_DEPTH = 0.5


class Regime(StrEnum):
    """Whether B needs what A has read."""

    NEED = "need"
    NO_NEED = "no_need"


@dataclass(frozen=True, slots=True)
class Task:
    """A question with one right answer out of a few.

    Attributes:
        context: token ids that A reads and B's prompt begins with.
        question: token ids that follow in B's prompt.
        options: the first token of each possible answer, no two alike.
        answer: which of them is right.
    """

    context: Tokens
    question: Tokens
    options: Tokens
    answer: int

    @property
    def prompt(self) -> Tokens:
        """B's prompt; the answer is the token after it."""
        return self.context + self.question

    @property
    def chance(self) -> float:
        """Share of right answers of whoever knows nothing."""
        return 1 / len(self.options)

    def is_correct(self, logprobs: Mapping[int, float]) -> bool:
        """Whether the right option is the likeliest.

        Args:
            logprobs: of the likeliest next tokens; an option that is not among them is less
                likely than one that is. A tie, and none of them, count as wrong.
        """
        scores = [logprobs.get(token, -math.inf) for token in self.options]
        best = scores[self.answer]
        others = scores[: self.answer] + scores[self.answer + 1 :]
        return best > max(others)


def make_task(
    library: Library, language: Language, num_tokens: int, regime: Regime, seed: int
) -> Task:
    """A task; the same arguments give the same one, and both regimes the same context.

    The first of `make_tasks`, which says what it takes and raises.
    """
    return make_tasks(library, language, num_tokens, regime, seed)[0]


def make_tasks(
    library: Library, language: Language, num_tokens: int, regime: Regime, seed: int
) -> tuple[Task, ...]:
    """Tasks about one context, one for each key; which of them is the first is drawn.

    Args:
        library: the texts in the model's tokens.
        language: of the text around the table.
        num_tokens: length of the context.
        regime: whether the question repeats the row.
        seed: another seed, another table in another text.

    Raises:
        BenchError: the table does not fit in, there is too little text, or two values begin
            with the same token.
    """
    rng = random.Random(f"task {language} {num_tokens} {seed}")
    values = rng.sample(VALUES, len(VALUES))
    pairs = list(zip(rng.sample(KEYS, len(KEYS)), values, strict=True))
    rows = "".join(_ROW.format(key=key, value=value) for key, value in pairs)
    table = tuple(library.encode(f"{_TITLE}{rows}\n"))
    around = num_tokens - len(table)
    if around < 0:
        raise BenchError(f"the table alone has {len(table)} tokens, over {num_tokens}")
    text = library.passage(language, around, seed)
    before = round(around * _DEPTH)
    context = (*text[:before], *table, *text[before:])

    first = rng.choice(pairs)
    found = options(library)

    def task(key: str, value: str) -> Task:
        note = _NOTE.format(key=key, value=value) if regime is Regime.NO_NEED else ""
        question = (*library.encode(note), *library.encode(_QUESTION.format(key=key)))
        return Task(context, question, found, VALUES.index(value))

    return tuple(task(*pair) for pair in [first, *(pair for pair in pairs if pair != first)])


def options(library: Library) -> Tokens:
    """The first tokens of the values, as they come after the question.

    Raises:
        BenchError: two begin with the same token, so that the first does not tell them apart.
    """
    first = tuple(library.encode(f" {value}")[0] for value in VALUES)
    if len(set(first)) < len(first):
        raise BenchError("two values begin with the same token in this model's vocabulary")
    return first


def chance_p_value(num_correct: int, num_tasks: int, chance: float) -> float:
    """Probability of at least so many right answers by chance: the exact binomial tail."""
    return math.fsum(
        math.comb(num_tasks, k) * chance**k * (1 - chance) ** (num_tasks - k)
        for k in range(num_correct, num_tasks + 1)
    )
