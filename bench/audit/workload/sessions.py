"""Multi-agent sessions: who speaks after whom, and what prompts that makes.

    pipeline     draft -> analyse -> write -> review     each goes on from the one before
    fan_out      plan -> work 1..n -> join               all go on from the plan; one joins them
    shared       read 1, read 2, ...                     each asks its own of the same document

Prompts are append-only (agents/layout.py): a turn's prompt begins with the prompt and the output
of the turn that it extends, token for token, and nothing else of it can be reused. A join extends
one worker and quotes the others, whose text then stands at another position.

The state of a session knows no clock and no client: `ready` says which turns can be asked,
`prompt` what to ask, `finish` takes the output. Arms of a comparison get the same prompts if
`finish` is given the same outputs: those of the control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvrelay.bench.audit.workload.quality import common_prefix
from kvrelay.bench.audit.workload.text import Language
from kvrelay.bench.errors import BenchError

_INSTRUCTIONS: Mapping[Language, Mapping[str, tuple[str, ...]]] = {
    Language.ENGLISH: {
        "pipeline": (
            "List the main statements of the text.",
            "Explain which of these statements depend on each other.",
            "Write a short summary for somebody who is new to the subject.",
            "Name what the summary leaves out, and correct what is wrong in it.",
        ),
        "plan": ("Divide the text into parts that can be studied separately.",),
        "work": ("Study part {number} and report what it says.",),
        "join": ("Combine your report with these:\n{reports}",),
        "shared": (
            "Which causes does the text name?",
            "Which numbers does the text give, and what do they measure?",
            "What could go wrong according to the text?",
            "What would you ask the author of the text?",
        ),
    },
    Language.CHINESE: {
        "pipeline": (
            "请列出文中的主要论点。",
            "请说明这些论点中哪些互相依赖。",
            "请为初次接触这个题目的读者写一段简短的摘要。",
            "请指出摘要遗漏了什么，并改正其中的错误。",
        ),
        "plan": ("请把文章分成可以分别研究的几个部分。",),
        "work": ("请研究第{number}部分，并报告它的内容。",),
        "join": ("请把你的报告和下面的报告合在一起：\n{reports}",),
        "shared": (
            "文中提到了哪些原因？",
            "文中给出了哪些数字，它们衡量什么？",
            "按照文章的说法，什么地方可能出错？",
            "你想向文章的作者提什么问题？",
        ),
    },
}


class Layout(Protocol):
    """What is needed of `agents.layout.ChatLayout`."""

    def open(self, context: str, instruction: str) -> list[int]:
        """The first prompt over a context."""

    def extend(self, prompt: Sequence[int], output: Sequence[int], instruction: str) -> list[int]:
        """A prompt that goes on from another one and its output."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of a session.

    Attributes:
        name: unique in its session.
        agent: who takes it.
        instruction: what is asked; `{reports}` stands for the outputs of the turns in `quotes`.
        extends: the turn that its prompt begins with; None: it opens with the context.
        quotes: turns whose outputs are written out in its instruction.
        after: turns that must have ended before, although nothing of them is in the prompt.
    """

    name: str
    agent: str
    instruction: str
    extends: str | None = None
    quotes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """The turns that have to end before it."""
        extended = () if self.extends is None else (self.extends,)
        return frozenset((*extended, *self.quotes, *self.after))


@dataclass(frozen=True, slots=True)
class Session:
    """A context and the turns over it, each after those that it needs.

    Raises:
        BenchError: a name comes twice, or a turn needs one that does not stand before it.
    """

    kind: str
    context: str
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        names: set[str] = set()
        for turn in self.turns:
            if turn.name in names or not turn.needs <= names:
                raise BenchError(f"turn '{turn.name}' comes twice, or before one that it needs")
            names.add(turn.name)


def pipeline(context: str, agents: Sequence[str], language: Language) -> Session:
    """Four turns in a row; with two agents or more every turn changes the agent."""
    turns: list[Turn] = []
    for i, instruction in enumerate(_INSTRUCTIONS[language]["pipeline"]):
        before = turns[-1].name if turns else None
        turns.append(Turn(f"step{i + 1}", agents[i % len(agents)], instruction, before))
    return Session("pipeline", context, tuple(turns))


def fan_out(context: str, agents: Sequence[str], language: Language, width: int) -> Session:
    """A plan, `width` workers that all go on from it, and one turn that joins their reports.

    The first agent plans; the workers are the others in turn, or the planner if it is alone; the
    planner joins. Whoever joins goes on from the first worker.

    Raises:
        BenchError: under two workers there is nothing to join.
    """
    if width < 2:
        raise BenchError(f"a fan-out needs at least two workers, got {width}")
    words = {name: each[0] for name, each in _INSTRUCTIONS[language].items()}
    workers = agents[1:] or agents
    turns = [Turn("plan", agents[0], words["plan"])]
    for i in range(width):
        task = words["work"].format(number=i + 1)
        turns.append(Turn(f"work{i + 1}", workers[i % len(workers)], task, "plan"))
    others = tuple(turn.name for turn in turns[2:])
    turns.append(Turn("join", agents[0], words["join"], "work1", others))
    return Session("fan_out", context, tuple(turns))


def shared_document(context: str, agents: Sequence[str], language: Language) -> Session:
    """Every agent asks its own question about the same document.

    The first reads alone, so that the document has been computed when the others come; they
    come together.
    """
    questions = _INSTRUCTIONS[language]["shared"]
    turns = [
        Turn(f"read{i + 1}", agent, questions[i % len(questions)], after=("read1",) if i else ())
        for i, agent in enumerate(agents)
    ]
    return Session("shared_document", context, tuple(turns))


class SessionState:
    """How far a session has come."""

    def __init__(self, session: Session, layout: Layout) -> None:
        """Begin; `layout` is of the model that all agents run."""
        self._layout = layout
        self._waiting = {turn.name: turn for turn in session.turns}
        self._context = session.context
        self._agents: dict[str, str] = {}
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}

    @property
    def finished(self) -> bool:
        """Whether no turn is left."""
        return not self._waiting

    def ready(self) -> list[Turn]:
        """The turns that can be asked now, in the session's order.

        One that has been asked and has not ended is among them still.
        """
        return [turn for turn in self._waiting.values() if turn.needs <= self._outputs.keys()]

    def prompt(self, turn: Turn) -> tuple[int, ...]:
        """A turn's prompt in token ids.

        Raises:
            BenchError: a turn that it needs has not ended.
        """
        if not turn.needs <= self._outputs.keys():
            raise BenchError(f"turn '{turn.name}' needs {sorted(turn.needs)}, not all have ended")
        reports = "\n\n".join(self._layout.decode(self._outputs[name]) for name in turn.quotes)
        # Not str.format: an output may hold braces.
        instruction = turn.instruction.replace("{reports}", reports)
        if turn.extends is None:
            return tuple(self._layout.open(self._context, instruction))
        prompt, output = self._prompts[turn.extends], self._outputs[turn.extends]
        return tuple(self._layout.extend(prompt, output, instruction))

    def finish(self, turn: Turn, output: Sequence[int]) -> None:
        """Take a turn's output in token ids.

        Raises:
            BenchError: it has ended already, or could not have been asked.
        """
        if turn.name not in self._waiting:
            raise BenchError(f"turn '{turn.name}' has ended already or is none of this session")
        self._prompts[turn.name] = self.prompt(turn)
        self._outputs[turn.name] = tuple(output)
        self._agents[turn.name] = turn.agent
        del self._waiting[turn.name]

    def shared_tokens(self, turn: Turn) -> int:
        """How many of a prompt's first tokens other agents have read or written.

        This is what a relay could bring at most; the agent's own cache may have some of it too.
        """
        prompt = self.prompt(turn)
        known = [
            (*self._prompts[name], *self._outputs[name])
            for name, agent in self._agents.items()
            if agent != turn.agent
        ]
        return max((common_prefix(prompt, each) for each in known), default=0)
