"""Examples whose answer is in the context alone: the receiver needs what was relayed.

Each context is a piece of source code with a number in a comment at its middle, and the question
is that comment up to the number. A model that has no copy of the context can only guess it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from kvrelay.bench.audit.controls import Example
from kvrelay.bench.prompts import PromptSource, standard_library_tokens

TEXT_CHARS = 300_000
STATEMENT = "\n# The access code of the archive is"
LEAST_CODE, END_CODE = 1000, 10_000


def stated_numbers(
    model: Path | str, num_examples: int, num_tokens: int, seed: int
) -> list[Example]:
    """Examples for a model whose tokenizer is in its folder.

    Args:
        model: folder or Hugging Face id.
        num_examples: how many; no two begin alike or state the same number.
        num_tokens: of each context.
        seed: of texts and numbers.

    Raises:
        BenchError: the text is too short.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    source = PromptSource(standard_library_tokens(encode, TEXT_CHARS), seed)
    codes = random.Random(seed).sample(range(LEAST_CODE, END_CODE), num_examples)
    question = tuple(encode(STATEMENT))
    examples = []
    for code in codes:
        stated = tuple(encode(f"{STATEMENT} {code}.\n"))
        text = source.take(num_tokens - len(stated)).shared
        half = len(text) // 2

        def is_right(tokens: Sequence[int], answer: str = str(code)) -> bool:
            return str(tokenizer.decode(list(tokens))).strip().startswith(answer)

        examples.append(Example(text[:half] + stated + text[half:], question, is_right))
    return examples
