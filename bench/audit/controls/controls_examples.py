"""Examples of the controls: questions whose answer is in the relayed context alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from kvrelay.bench.audit.controls.trials import Example
from kvrelay.bench.audit.workload.quality import Output
from kvrelay.bench.audit.workload.tasks import Task
from kvrelay.bench.audit.workload.text import Encode
from kvrelay.bench.prompts import PromptSource, standard_library_tokens

Decode = Callable[[Sequence[int]], str]
TEXT_CHARS = 300_000
STATEMENT = "\n# The access code of the archive is"
LEAST_CODE, END_CODE = 1000, 10_000


def stated_numbers(
    encode: Encode, decode: Decode, num_examples: int, num_tokens: int, seed: int
) -> list[Example]:
    """Source code with a number in a comment at its middle; the question is that comment again.

    A model that has no copy of the context guesses one number of 9,000, so that few examples tell
    more than many tasks with a choice of answers.

    Args:
        encode, decode: text to token ids of the model, and back.
        num_examples: how many; no two begin alike or state the same number.
        num_tokens: of each context.
        seed: of texts and numbers.

    Raises:
        BenchError: the text is too short.
    """

    def example(code: int) -> Example:
        stated = tuple(encode(f"{STATEMENT} {code}.\n"))
        text = source.take(num_tokens - len(stated)).shared
        half = len(text) // 2

        def is_right(output: Output) -> bool:
            return decode(list(output.tokens)).strip().startswith(str(code))

        return Example(text[:half] + stated + text[half:], question, is_right)

    stream = standard_library_tokens(lambda text: list(encode(text)), TEXT_CHARS)
    source = PromptSource(stream, seed)
    question = tuple(encode(STATEMENT))
    codes = random.Random(seed).sample(range(LEAST_CODE, END_CODE), num_examples)
    return [example(code) for code in codes]


def of_tasks(tasks: Iterable[Task]) -> list[Example]:
    """Tasks of the audit: an answer is right if the right one of the options is the likeliest.

    Chance gets some of them right without any context, so that it takes dozens to see a collapse.
    """

    def example(task: Task) -> Example:
        return Example(task.context, task.question, lambda out: task.is_correct(out.logprobs[0]))

    return [example(task) for task in tasks]
