"""Tasks with known answers: exact lengths, where the answer stands, and what chance is."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest

from kvrelay.bench.audit.workload.tasks import (
    KEYS,
    VALUES,
    Regime,
    Task,
    chance_p_value,
    make_task,
)
from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.bench.errors import BenchError

ROW = re.compile(r"The box (\w+) holds (\w+)\.")
ASKED = re.compile(r"The box (\w+) holds$")


def make(library: Library, regime: Regime = Regime.NEED, seed: int = 1, tokens: int = 300) -> Task:
    return make_task(library, Language.ENGLISH, tokens, regime, seed)


def table(task: Task, words: Any) -> dict[str, str]:
    return dict(ROW.findall(words.decode(task.context)))


def asked(task: Task, words: Any) -> str:
    found = ASKED.search(words.decode(task.question))
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("tokens", [128, 1000, 2048])
def test_contexts_have_exact_lengths(library: Library, language: Language, tokens: int) -> None:
    for regime in Regime:
        task = make_task(library, language, tokens, regime, seed=3)
        assert len(task.context) == tokens
        assert task.prompt == task.context + task.question
        assert task == make_task(library, language, tokens, regime, seed=3)


def test_the_table_says_every_value_once(library: Library, words: Any) -> None:
    for seed in range(10):
        rows = table(make(library, seed=seed), words)
        assert set(rows) == set(KEYS)
        assert Counter(rows.values()) == dict.fromkeys(VALUES, 1)


def test_the_answer_is_the_tables(library: Library, words: Any) -> None:
    for seed in range(10):
        task = make(library, seed=seed)
        right = table(task, words)[asked(task, words)]
        assert VALUES[task.answer] == right
        assert words.decode([task.options[task.answer]]) == f" {right}"


def test_only_without_need_the_question_has_the_answer(library: Library, words: Any) -> None:
    for seed in range(10):
        need, other = (make(library, regime, seed) for regime in Regime)
        assert need.context == other.context
        assert (need.options, need.answer) == (other.options, other.answer)
        assert not set(need.options) & set(need.question)
        rows = ROW.findall(words.decode(other.question))
        assert rows == [(asked(other, words), VALUES[other.answer])]
        assert other.question[-len(need.question) :] == need.question


def test_another_tasks_table_is_right_by_chance_only(library: Library, words: Any) -> None:
    count = 400
    tasks = [make(library, seed=seed, tokens=100) for seed in range(count)]
    right = sum(
        table(tasks[i - 1], words)[asked(task, words)] == VALUES[task.answer]
        for i, task in enumerate(tasks)
    )
    deviation = math.sqrt(count * 0.25 * 0.75)
    assert abs(right - count / 4) < 4 * deviation
    # Nor does it help to say the same every time.
    answers = Counter(task.answer for task in tasks)
    assert all(abs(answers[i] - count / 4) < 4 * deviation for i in range(len(VALUES)))


def test_a_table_that_does_not_fit_is_an_error(library: Library) -> None:
    with pytest.raises(BenchError, match="the table alone has"):
        make(library, tokens=30)


def test_values_must_differ_in_their_first_token() -> None:
    letters = Library(lambda text: [ord(sign) for sign in text])
    with pytest.raises(BenchError, match="begin with the same token"):
        make(letters, tokens=1000)


def test_the_likeliest_option_is_the_answer() -> None:
    task = Task((1,), (2,), options=(10, 11, 12, 13), answer=2)
    assert task.chance == 0.25
    assert task.is_correct({99: -0.1, 12: -1.0, 10: -1.5})
    assert task.is_correct({12: -9.0})
    assert not task.is_correct({12: -1.0, 10: -0.5})
    assert not task.is_correct({12: -1.0, 13: -1.0})
    assert not task.is_correct({99: -0.1})


def test_the_binomial_tail() -> None:
    assert chance_p_value(0, 10, 0.5) == pytest.approx(1.0)
    assert chance_p_value(8, 10, 0.5) == pytest.approx(56 / 1024)
    assert chance_p_value(10, 10, 0.25) == pytest.approx(0.25**10)
