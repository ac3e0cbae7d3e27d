"""Sessions of two agents: who takes which turn, and prompts that only ever grow."""

from __future__ import annotations

import pytest

from kvrelay.bench.audit.workload.quality import common_prefix
from kvrelay.bench.audit.workload.sessions import (
    FIRST,
    SECOND,
    Session,
    SessionState,
    Shape,
    Tokens,
    Turn,
    longest_prompt,
    steps,
)
from kvrelay.bench.errors import BenchError

DOCUMENT = tuple(range(100))


def own(number: int) -> Tokens:
    return tuple(range(1000 * number, 1000 * number + 20))


def answer(number: int) -> Tokens:
    return (-number,) * (8 if number == 1 else 4)


def session(shape: Shape, turns: int) -> Session:
    """With no two tokens alike in what is new."""
    first, *rest = steps(shape, turns)
    found = [Turn(first.agent)]
    found += [Turn(step.agent, step.extends, own(n)) for n, step in enumerate(rest, 2)]
    return Session(DOCUMENT, DOCUMENT, tuple(found))


def prompts(shape: Shape, turns: int, text_only: bool = False) -> tuple[list[Tokens], list[int]]:
    """Of all turns, and how much of each the other agent knew."""
    state = SessionState(session(shape, turns), text_only)
    asked, shared = [], []
    for number in range(1, turns + 1):
        asked.append(state.prompt(number))
        shared.append(state.shared_tokens(number))
        state.answered(answer(number))
    return asked, shared


def test_who_takes_turns() -> None:
    agents = {shape: [step.agent for step in steps(shape, 5)] for shape in Shape}
    in_turn = [FIRST, SECOND, FIRST, SECOND, FIRST]
    assert agents == {
        Shape.PIPELINE: in_turn,
        Shape.FAN_OUT: [FIRST, SECOND, SECOND, SECOND, SECOND],
        Shape.SHARED_DOCUMENT: in_turn,
    }
    assert [step.extends for step in steps(Shape.PIPELINE, 4)] == [None, 1, 2, 3]
    assert [step.extends for step in steps(Shape.FAN_OUT, 4)] == [None, 1, 1, 1]
    assert [step.extends for step in steps(Shape.SHARED_DOCUMENT, 4)] == [None] * 4
    with pytest.raises(BenchError, match="at least 2 turns, got 1"):
        steps(Shape.PIPELINE, 1)


def test_a_pipeline_grows_by_answer_and_message() -> None:
    asked, shared = prompts(Shape.PIPELINE, 4)
    assert asked[0] == DOCUMENT and shared[0] == 0
    for number in (2, 3, 4):
        known = asked[number - 2] + answer(number - 1)
        assert asked[number - 1] == known + own(number)
        # The other agent has taken the turn before: all of that is what a relay can bring.
        assert shared[number - 1] == len(known)


def test_a_fan_out_asks_its_questions_of_one_prompt() -> None:
    asked, shared = prompts(Shape.FAN_OUT, 4)
    known = DOCUMENT + answer(1)
    assert asked[1:] == [known + own(number) for number in (2, 3, 4)]
    assert shared == [0, *[len(known)] * 3]


def test_a_shared_document_carries_no_answer() -> None:
    asked, shared = prompts(Shape.SHARED_DOCUMENT, 4)
    assert asked == [DOCUMENT, *(DOCUMENT + own(number) for number in (2, 3, 4))]
    assert shared == [0, 100, 100, 100]


def test_who_exchanges_text_keeps_its_own_past() -> None:
    asked, shared = prompts(Shape.PIPELINE, 4, text_only=True)
    second = answer(1) + own(2)
    assert asked == [
        DOCUMENT,
        second,
        DOCUMENT + answer(1) + answer(2) + own(3),
        second + answer(2) + answer(3) + own(4),
    ]
    # A covariate is of what was planned before the arm was drawn.
    assert shared == prompts(Shape.PIPELINE, 4)[1]
    fan_out, _ = prompts(Shape.FAN_OUT, 3, text_only=True)
    assert fan_out[1:] == [answer(1) + own(2), answer(1) + own(3)]
    document, _ = prompts(Shape.SHARED_DOCUMENT, 3, text_only=True)
    assert document[1:] == [answer(1) + own(2), DOCUMENT + own(3)]


def test_two_turns_are_one_hand_over() -> None:
    for shape in (Shape.PIPELINE, Shape.FAN_OUT):
        assert prompts(shape, 2)[0] == [DOCUMENT, DOCUMENT + answer(1) + own(2)]


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("turns", [2, 3, 6])
def test_the_longest_prompt_is_known_before(shape: Shape, turns: int) -> None:
    asked, _ = prompts(shape, turns)
    longest = max(map(len, asked[1:])) + len(answer(turns))
    known = longest_prompt(shape, turns, 120, own_tokens=20, first_tokens=8, answer_tokens=4)
    assert known == longest


def test_turns_are_asked_in_order() -> None:
    state = SessionState(session(Shape.PIPELINE, 3))
    for act in (state.prompt, state.planned, state.shared_tokens):
        with pytest.raises(BenchError, match="turn 2 comes after one that has no answer"):
            act(2)
    state.answered(answer(1))
    assert common_prefix(state.prompt(2), DOCUMENT) == 100
