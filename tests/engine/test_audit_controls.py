"""Controls of the audit, on real engines: wrong KV is refused, and ruins answers if it is not."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from harness import BLOCK, text_tokens
from transformers import AutoTokenizer

from kvrelay.bench.audit.controls.controls_examples import stated_numbers
from kvrelay.bench.audit.controls.controls_rows import rows
from kvrelay.bench.audit.controls.trials import WRONG, Content, Example, Trial, measure
from kvrelay.cluster.model import ensure_model

pytestmark = pytest.mark.engine
EXAMPLES = 6
# Three of eight may be wrong with correct KV too: five gains are enough for the sign test.
QUESTIONS = 8


@pytest.fixture(scope="module")
def trials(model: Path) -> list[Trial]:
    before = psutil.Process().children()
    examples = [
        Example(tuple(text_tokens(600 + n, 4 * BLOCK)), tuple(text_tokens(700 + n, 5)))
        for n in range(EXAMPLES)
    ]
    advanced: list[float] = []
    found = measure(model, examples, 1, "float32", advanced.append)
    assert len(found) == sum(advanced) == EXAMPLES * 2 * len(Content)
    assert psutil.Process().children() == before, "the isolated engine has ended"
    return found


def test_the_guard_refuses_all_of_it(trials: list[Trial]) -> None:
    guarded = [t for t in trials if t.is_guarded]
    reasons = {(t.content, t.reason) for t in guarded}
    assert reasons == {
        (Content.CORRECT, "relayed"),
        *((content, "load_corrupt") for content in WRONG),
        (Content.OFFERED, "no_source"),
    }
    for trial in guarded:
        if trial.content is Content.CORRECT:
            assert trial.injected_tokens == trial.context_tokens == 4 * BLOCK
        else:
            assert trial.injected_tokens == 0
            assert (trial.agreement, trial.logprob_drift) == (1.0, 0.0), trial


def test_without_it_the_same_bytes_ruin_the_answers(trials: list[Trial]) -> None:
    forced = [t for t in trials if not t.is_guarded]
    correct = [t for t in forced if t.content is Content.CORRECT]
    assert all(t.logprob_drift < 0.01 for t in correct)
    for trial in forced:
        if trial.content in WRONG:
            assert (trial.injected_tokens, trial.reason) == (4 * BLOCK, "relayed")
            assert trial.logprob_drift > 0.01, trial
        elif trial.content is Content.OFFERED:
            assert (trial.injected_tokens, trial.reason) == (0, "no_source")


def test_every_control_passes(trials: list[Trial]) -> None:
    assert [row for row in rows(trials) if not row["passed"]] == []


def test_a_question_that_needs_the_context_is_answered_with_the_right_one_alone() -> None:
    model = ensure_model("demo")
    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    examples = stated_numbers(encode, tokenizer.decode, QUESTIONS, 8 * BLOCK, 1)
    found = rows(measure(model, examples, 1))
    assert [row for row in found if not row["passed"]] == []
    assert any("right answers" in row["name"] for row in found)
