"""Sessions of several agents: the order of turns, and prompts that only ever grow."""

from __future__ import annotations

from typing import Any

import pytest

from kvrelay.agents.layout import ChatLayout
from kvrelay.bench.audit.workload.quality import common_prefix
from kvrelay.bench.audit.workload.sessions import (
    Session,
    SessionState,
    Turn,
    fan_out,
    pipeline,
    shared_document,
)
from kvrelay.bench.audit.workload.text import Language
from kvrelay.bench.errors import BenchError

CONTEXT = "The tide comes in twice a day."
END = 1


class Characters:
    """One token per character, in ChatML's shape."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [END if sign == "\x01" else ord(sign) for sign in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(token) for token in ids if token != END)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"{m['role']}:{m['content']}\x01" for m in messages) + "assistant:"


LAYOUT = ChatLayout(Characters())


def output(turn: Turn) -> tuple[int, ...]:
    return (*map(ord, f"[{turn.name} says {{this}}]"), END)


def run(session: Session) -> tuple[list[list[str]], dict[str, tuple[int, ...]], dict[str, int]]:
    """Waves of turns that are asked together, the prompts, and what other agents knew of them."""
    state = SessionState(session, LAYOUT)
    waves, prompts, shared = [], {}, {}
    while not state.finished:
        wave = state.ready()
        assert wave, "a session must not get stuck"
        for turn in wave:
            prompts[turn.name] = state.prompt(turn)
            shared[turn.name] = state.shared_tokens(turn)
        for turn in wave:
            state.finish(turn, output(turn))
        waves.append([turn.name for turn in wave])
    return waves, prompts, shared


def text(prompt: tuple[int, ...]) -> str:
    return LAYOUT.decode(prompt)


@pytest.mark.parametrize("language", Language)
def test_a_pipeline_grows(language: Language) -> None:
    session = pipeline(CONTEXT, ["a", "b"], language)
    waves, prompts, shared = run(session)
    assert waves == [["step1"], ["step2"], ["step3"], ["step4"]]
    assert [turn.agent for turn in session.turns] == ["a", "b", "a", "b"]
    assert shared["step1"] == 0
    for before, turn in zip(session.turns, session.turns[1:], strict=False):
        known = (*prompts[before.name], *output(before))
        assert prompts[turn.name][: len(known)] == known
        assert shared[turn.name] == len(known)
        assert turn.instruction in text(prompts[turn.name][len(known) :])


@pytest.mark.parametrize("language", Language)
def test_a_fan_out_goes_on_from_one_plan_and_joins(language: Language) -> None:
    session = fan_out(CONTEXT, ["a", "b"], language, width=3)
    waves, prompts, shared = run(session)
    assert waves == [["plan"], ["work1", "work2", "work3"], ["join"]]
    assert [turn.agent for turn in session.turns] == ["a", "b", "b", "b", "a"]
    plan, *workers, _ = session.turns
    known = (*prompts["plan"], *output(plan))
    for turn in workers:
        assert prompts[turn.name][: len(known)] == known
        assert shared[turn.name] == len(known)
    assert len({prompts[turn.name] for turn in workers}) == 3
    # The first worker's turn is the beginning; what the others said is quoted, braces and all.
    first = (*prompts["work1"], *output(workers[0]))
    assert common_prefix(prompts["join"], first) == len(first) == shared["join"]
    added = text(prompts["join"][len(first) :])
    assert "[work2 says {this}]" in added and "[work3 says {this}]" in added
    assert "{reports}" not in added and "{number}" not in text(prompts["work2"])


def test_one_agent_alone_has_nobody_to_take_over_from() -> None:
    for session in (
        pipeline(CONTEXT, ["a"], Language.ENGLISH),
        fan_out(CONTEXT, ["a"], Language.ENGLISH, width=2),
    ):
        _, _, shared = run(session)
        assert set(shared.values()) == {0}


@pytest.mark.parametrize("language", Language)
def test_a_shared_document_is_read_by_one_and_then_by_all(language: Language) -> None:
    session = shared_document(CONTEXT, ["a", "b", "c", "a", "b"], language)
    waves, prompts, shared = run(session)
    assert waves == [["read1"], ["read2", "read3", "read4", "read5"]]
    head = len(text(prompts["read1"]).partition(CONTEXT)[0]) + len(CONTEXT)
    assert shared["read2"] >= head
    assert shared["read2"] == common_prefix(prompts["read1"], prompts["read2"])
    assert shared["read4"] == 0, "the same agent read it before"
    assert len({prompts[name] for name in ("read1", "read2", "read3", "read4")}) == 4


def test_equal_outputs_make_equal_prompts() -> None:
    one = run(fan_out(CONTEXT, ["a", "b"], Language.ENGLISH, 2))[1]
    two = run(fan_out(CONTEXT, ["b", "a"], Language.ENGLISH, 2))[1]
    assert one == two


def test_turns_stand_after_what_they_need() -> None:
    with pytest.raises(BenchError, match="turn 'b'"):
        Session("x", CONTEXT, (Turn("b", "a", "go", extends="a"), Turn("a", "a", "go")))
    with pytest.raises(BenchError, match="turn 'a' comes twice"):
        Session("x", CONTEXT, (Turn("a", "a", "go"), Turn("a", "a", "go")))
    with pytest.raises(BenchError, match="at least two workers"):
        fan_out(CONTEXT, ["a", "b"], Language.ENGLISH, width=1)


def test_turns_are_asked_and_finished_in_order() -> None:
    session = pipeline(CONTEXT, ["a", "b"], Language.ENGLISH)
    state = SessionState(session, LAYOUT)
    first, second, *_ = session.turns
    for act in (state.prompt, state.shared_tokens, lambda turn: state.finish(turn, ())):
        with pytest.raises(BenchError, match="turn 'step2' needs"):
            act(second)
    assert state.ready() == [first]
    state.finish(first, (5,))
    assert state.ready() == [second]
    with pytest.raises(BenchError, match="ended already"):
        state.finish(first, (5,))
