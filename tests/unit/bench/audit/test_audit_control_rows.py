"""Rows of the controls: they pass where they should, and each fails for its own reason alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvrelay.bench.audit.controls.controls_rows import rows, sign_test
from kvrelay.bench.audit.controls.trials import WRONG, Content, Trial
from kvrelay.bench.errors import BenchError

TOKENS = 64
Change = Callable[[Trial], Trial]
DERANGED_OFF = "deranged KV, guard off"


def trials(num_examples: int = 6, judged: bool = True) -> list[Trial]:
    """As they come from a guard that holds and measures that see what it keeps away."""
    found = []
    for example in range(num_examples):
        for is_guarded in (False, True):
            for content in Content:
                is_wrong = content in WRONG and not is_guarded
                is_taken = is_wrong or content is Content.CORRECT
                trial = Trial(
                    example=example,
                    content=content,
                    is_guarded=is_guarded,
                    context_tokens=TOKENS,
                    injected_tokens=TOKENS if is_taken else 0,
                    reason="relayed" if is_taken else "load_corrupt",
                    agreement=0.125 if is_wrong else 1.0,
                    logprob_drift=3.0 if is_wrong else 0.0,
                    is_right=not is_wrong if judged else None,
                    recompute_is_right=True if judged else None,
                )
                found.append(trial)
    return found


def failed(found: list[Trial]) -> list[str]:
    return [row["name"] for row in rows(found) if not row["passed"]]


def changed(content: Content, is_guarded: bool, change: Change, first: bool = False) -> list[Trial]:
    found = trials()
    for n, trial in enumerate(found):
        if (trial.content, trial.is_guarded) == (content, is_guarded):
            found[n] = change(trial)
            if first:
                break
    return found


def test_all_pass() -> None:
    found = rows(trials())
    assert all(row["passed"] for row in found)
    names = [row["name"] for row in found]
    assert len(names) == len(set(names)) == 12
    assert all(set(row) == {"name", "expected", "seen", "passed"} for row in found)
    json.dumps(found)
    (collapsed,) = (row for row in found if row["name"] == DERANGED_OFF)
    assert collapsed["expected"] == (
        "whole context injected, agreement at most 0.500, log probabilities further off than "
        "correct KV's in every example, at most 3 right answers"
    )
    assert collapsed["seen"] == (
        "64 of 64 tokens injected, agreement 0.125, log probabilities at least 3.000 off, "
        "0 of 6 answers right (recomputed 6)"
    )
    assert found[-2]["seen"] == "+0.875 (p = 0.016, 6 examples)"


def test_examples_without_known_answers_have_no_row_for_them() -> None:
    found = rows(trials(judged=False))
    assert all(row["passed"] for row in found)
    assert len(found) == 11
    assert not any("answers" in row["seen"] + row["expected"] for row in found)


@pytest.mark.parametrize("content", WRONG)
def test_one_block_that_slips_through_the_guard_fails(content: Content) -> None:
    def slips(trial: Trial) -> Trial:
        return replace(trial, injected_tokens=32)

    assert failed(changed(content, True, slips, first=True)) == [f"{content} KV, guard on"]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_blocks_found_under_another_key_fail(is_guarded: bool) -> None:
    found = changed(
        Content.OFFERED, is_guarded, lambda t: replace(t, injected_tokens=TOKENS), first=True
    )
    guard = "on" if is_guarded else "off"
    assert failed(found) == [f"another example's blocks under their own keys, guard {guard}"]


def test_one_wrong_answer_behind_the_guard_fails() -> None:
    found = changed(Content.ZEROED, True, lambda t: replace(t, agreement=0.9375), first=True)
    assert failed(found) == ["zeroed KV, guard on"]


def test_wrong_kv_that_was_not_injected_proves_nothing() -> None:
    found = changed(Content.RANDOM, False, lambda t: replace(t, injected_tokens=0), first=True)
    assert failed(found) == ["random KV, guard off"]


def test_a_measure_that_does_not_see_wrong_kv_fails() -> None:
    found = changed(Content.DERANGED, False, lambda t: replace(t, agreement=1.0))
    assert failed(found) == [DERANGED_OFF, "content-attributable gain in agreement"]


def test_log_probabilities_that_do_not_see_wrong_kv_fail() -> None:
    found = changed(Content.DERANGED, False, lambda t: replace(t, logprob_drift=0.0), first=True)
    assert failed(found) == [DERANGED_OFF]


def test_a_task_that_does_not_need_the_context_fails() -> None:
    found = changed(Content.DERANGED, False, lambda t: replace(t, is_right=True))
    assert failed(found) == [DERANGED_OFF, "content-attributable gain in right answers"]


def test_a_task_that_nobody_can_do_fails() -> None:
    found = [replace(trial, is_right=False) for trial in trials()]
    names = [f"{content} KV, guard off" for content in WRONG]
    assert failed(found) == [*names, "content-attributable gain in right answers"]


def test_correct_kv_that_changes_answers_fails() -> None:
    found = changed(Content.CORRECT, True, lambda t: replace(t, agreement=0.8))
    assert failed(found) == ["correct KV, guard on"]


def test_too_few_examples_show_no_gain() -> None:
    assert failed(trials(num_examples=4)) == [
        "content-attributable gain in agreement",
        "content-attributable gain in right answers",
    ]


def test_missing_trials_are_an_error() -> None:
    with pytest.raises(BenchError, match="no trial of random KV, guard off"):
        rows([t for t in trials() if t.content is not Content.RANDOM or t.is_guarded])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0] * 5, 1 / 32),
        ([1.0, 1.0, -1.0], 0.5),
        ([0.0, 0.0, 2.0], 0.5),
        ([0.0], 1.0),
        ([-1.0, -1.0], 1.0),
    ],
)
def test_the_sign_test(differences: list[float], p: float) -> None:
    assert sign_test(differences) == p
