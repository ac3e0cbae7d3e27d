"""Questions that the context answers, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelay.bench.audit.controls.controls_examples import STATEMENT, of_tasks, stated_numbers
from kvrelay.bench.audit.controls.trials import check_examples
from kvrelay.bench.audit.workload.quality import Output
from kvrelay.bench.audit.workload.tasks import Task
from kvrelay.bench.driven import BLOCK_TOKENS

LENGTH = 16 * BLOCK_TOKENS


def encode(text: str) -> list[int]:
    return [ord(char) for char in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def says(text: str) -> Output:
    tokens = tuple(encode(text))
    return Output(tokens, tuple({token: -0.1} for token in tokens))


def test_the_number_is_stated_once_and_asked_for() -> None:
    examples = stated_numbers(encode, decode, 5, LENGTH, seed=3)
    check_examples(examples)
    assert len({example.context[0] for example in examples}) == 5
    codes = set()
    for example in examples:
        assert len(example.context) == LENGTH
        assert decode(example.question) == STATEMENT
        text = decode(example.context)
        assert text.count(STATEMENT) == 1
        code = text.partition(STATEMENT)[2][1:5]
        codes.add(code)
        assert example.is_right is not None
        assert example.is_right(says(f" {code}. And so on"))
        assert not example.is_right(says(f" 0{code}"))
        assert not example.is_right(says(" no number"))
    assert len(codes) == 5
    assert all(code.isdigit() for code in codes)


def test_a_seed_repeats_its_examples() -> None:
    first, again, other = (stated_numbers(encode, decode, 2, LENGTH, seed) for seed in (1, 1, 2))
    assert [e.context for e in first] == [e.context for e in again]
    assert [e.context for e in first] != [e.context for e in other]


def test_tasks_are_judged_by_the_first_token() -> None:
    tasks = [Task((1,), (2,), options=(5, 6), answer=n) for n in (0, 1)]
    output = Output((9, 6), ({9: -0.1, 5: -1.0, 6: -2.0}, {6: -0.1}))
    judged = [e.is_right(output) for e in of_tasks(tasks) if e.is_right is not None]
    assert judged == [True, False]
