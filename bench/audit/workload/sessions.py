"""Sessions of two agents: who takes which turn, and what prompts that makes. Pure.

Turn 1 is A's in every shape: it reads. What follows:

    pipeline         B, A, B, ...   each goes on from all that was before: prompt, answer, new text
    fan_out          B, B, B, ...   all go on from A's turn, each with a question of its own
    shared_document  B, A, B, ...   each asks its own of the document; no answer is carried

Two turns of a pipeline are one hand-over, the shortest session. Prompts only grow: one begins with
the prompt and the answer that it goes on from, token for token.

Where agents exchange text only, one that would go on from what another has read gets what that
one has written: its own past, then the answers since, then what is new. The document is A's: B gets
A's first answer instead.

The state of a session knows no clock and no client: `prompt` says what to ask, `answered` takes
what came. All that a session draws is drawn before (material.py); answers alone depend on the arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvrelay.bench.audit.workload.quality import common_prefix
from kvrelay.bench.audit.workload.tasks import Task
from kvrelay.bench.errors import BenchError

Tokens = tuple[int, ...]

FIRST, SECOND = 0, 1  # A and B
HAND_OVER = 2  # turns of the shortest session


class Shape(StrEnum):
    """How a session's turns depend on each other."""

    PIPELINE = "pipeline"
    FAN_OUT = "fan_out"
    SHARED_DOCUMENT = "shared_document"

    @property
    def carries(self) -> bool:
        """Whether prompts go on from those of other agents, answers included."""
        return self is not Shape.SHARED_DOCUMENT


@dataclass(frozen=True, slots=True)
class Step:
    """Who takes a turn.

    Attributes:
        agent: `FIRST` or `SECOND`.
        extends: number of the turn whose prompt and answer its own goes on from; None: it begins
            with the document.
    """

    agent: int
    extends: int | None = None


@dataclass(frozen=True, slots=True)
class Turn(Step):
    """A step with what is new in its prompt.

    Attributes:
        own: token ids; none for A's first turn, whose prompt is the session's opening.
        task: what is asked at their end; None without a known answer.
    """

    own: Tokens = ()
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Prompts of a session before anything is answered.

    Attributes:
        opening: A's first prompt.
        document: what a prompt begins with that extends none; A's opening does too.
        turns: all of them, A's first one included.
    """

    opening: Tokens
    document: Tokens
    turns: tuple[Turn, ...]


def steps(shape: Shape, turns: int) -> tuple[Step, ...]:
    """Who takes the turns of a session, and what each goes on from.

    Raises:
        BenchError: nothing is handed over in fewer than two turns.
    """
    if turns < HAND_OVER:
        raise BenchError(f"a session needs at least {HAND_OVER} turns, got {turns}")
    rest = range(2, turns + 1)
    if shape is Shape.FAN_OUT:
        return (Step(FIRST), *(Step(SECOND, 1) for _ in rest))
    before = {number: number - 1 if shape.carries else None for number in rest}
    return (Step(FIRST), *(Step((number + 1) % 2, before[number]) for number in rest))


def longest_prompt(
    shape: Shape,
    turns: int,
    tokens: int,
    *,
    own_tokens: int,
    first_tokens: int,
    answer_tokens: int,
) -> int:
    """Tokens of a session's longest prompt with its answer.

    Args:
        shape, turns: of the session.
        tokens: of the prompt of turn 2 without A's answer.
        own_tokens: new in each turn's prompt.
        first_tokens, answer_tokens: of A's first answer, and of every other.
    """
    carried = first_tokens if shape.carries else 0
    grown = (turns - HAND_OVER) * (answer_tokens + own_tokens) if shape is Shape.PIPELINE else 0
    return tokens + carried + grown + answer_tokens


class SessionState:
    """How far a session has come. Turns are counted from one."""

    def __init__(self, session: Session, text_only: bool = False) -> None:
        """Begin; `text_only` makes prompts of what others have written, not of what they read."""
        self._session, self._text_only = session, text_only
        self._answers: list[Tokens] = []

    def answered(self, tokens: Sequence[int]) -> None:
        """Take the answer of the next turn, in token ids."""
        self._answers.append(tuple(tokens))

    def prompt(self, number: int) -> Tokens:
        """A turn's prompt, as it is sent.

        Raises:
            BenchError: a turn before it has no answer yet.
        """
        self._check(number)
        return self._written(number) if self._text_only else self._whole(number)

    def planned(self, number: int) -> Tokens:
        """The prompt that a turn has wherever agents do not exchange text only.

        Raises:
            BenchError: as `prompt`.
        """
        self._check(number)
        return self._whole(number)

    def shared_tokens(self, number: int) -> int:
        """How many first tokens of a planned prompt the other agent has read or written.

        This is what a relay could bring at most; the agent's own cache may have some of it too.
        """
        prompt, turns = self.planned(number), self._session.turns
        known = [
            self._whole(other) + self._answers[other - 1]
            for other in range(1, number)
            if turns[other - 1].agent != turns[number - 1].agent
        ]
        return max((common_prefix(prompt, each) for each in known), default=0)

    def _check(self, number: int) -> None:
        if number > len(self._answers) + 1:
            raise BenchError(f"turn {number} comes after one that has no answer yet")

    def _whole(self, number: int) -> Tokens:
        if number == 1:
            return self._session.opening
        turn = self._session.turns[number - 1]
        if turn.extends is None:
            return self._session.document + turn.own
        return self._whole(turn.extends) + self._answers[turn.extends - 1] + turn.own

    def _written(self, number: int) -> Tokens:
        """The prompt of an agent that knows of others what they have written."""
        if number == 1:
            return self._session.opening
        turns = self._session.turns
        turn = turns[number - 1]
        if turn.extends is None:
            begin = self._session.document if turn.agent == FIRST else self._answers[0]
            return begin + turn.own
        told: Tokens = ()
        before: int | None = turn.extends
        while before is not None and turns[before - 1].agent != turn.agent:
            told = self._answers[before - 1] + told
            before = turns[before - 1].extends
        past = () if before is None else self._written(before) + self._answers[before - 1]
        return past + told + turn.own
