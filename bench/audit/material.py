"""Prompts of a pair of agents: what A reads, and what B is asked, by stratum and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench.audit.design import rng_of
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Session, Shape, Turn, steps
from kvrelay.bench.audit.workload.similarity import Level, PromptPair, measure, pair, whole_text
from kvrelay.bench.audit.workload.tasks import Regime, Task, make_task, make_tasks
from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.cluster.embedding import Encoder, load_encoder, packaged_encoder

# Shares of B's prompt that A has read too, drawn for each pair. High: B goes on where A ends.
# Levels overlap, so that similarity can be told apart from what is shared.
FRACTIONS = {"high": (0.75, 0.95), "medium": (0.25, 0.5), "low": (0.0, 0.25)}
# Under it there is no room for a task's table.
_LEAST_CONTEXT = 192


@dataclass(frozen=True, slots=True)
class Prompts:
    """What the two agents are asked, as token ids.

    Attributes:
        first: A's prompt.
        second: B's, of the nominal length.
        shared_tokens: with which both begin.
        jaccard, cosine: how much they are alike; None if nobody has measured it.
        task: what B is asked in the end, of what A has read; None without a known answer.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    shared_tokens: int
    jaccard: float | None = None
    cosine: float | None = None
    task: Task | None = None

    @property
    def extends(self) -> bool:
        """Whether B's prompt goes on where A's ends."""
        return self.shared_tokens == len(self.first)

    @property
    def own(self) -> tuple[int, ...]:
        """What only B reads."""
        return self.second[self.shared_tokens :]

    def second_after(self, message: Sequence[int]) -> tuple[int, ...]:
        """B's prompt where it gets what A has written, in token ids, instead of what A has read."""
        return (*message, *self.own)


class Material:
    """Pairs of prompts in the tokens of one model, measured by how much they are alike."""

    def __init__(
        self,
        library: Library,
        decode: Callable[[Sequence[int]], str],
        encoder: Encoder | None = None,
    ) -> None:
        """Take the texts (`text.Library`) and, for the cosine, what makes vectors of texts."""
        self._library, self._decode, self._encoder = library, decode, encoder

    @classmethod
    def load(cls, model: str | Path, encoder: Encoder | None = None) -> Material:
        """The project's texts in the tokens of a model: its folder or Hugging Face id.

        Raises:
            BenchError: the texts are not there.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model))

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

        return cls(Library(encode), lambda tokens: str(tokenizer.decode(list(tokens))), encoder)

    def pair(self, stratum: Stratum, text: int) -> Prompts:
        """The prompts of one seed: the same each time, others for another seed.

        Raises:
            BenchError: there is too little text for them.
        """
        level, language = Level(stratum.similarity), Language(stratum.language)
        share = fraction(stratum, text)
        made = pair(self._library, level, language, stratum.tokens, share, seed=text)
        task = self._task(made, level, language, text)
        if task is not None:
            own = made.second[made.shared_tokens : stratum.tokens - len(task.question)]
            made = PromptPair(
                task.context, (*task.context, *own, *task.question), made.shared_tokens
            )
        alike = measure(made, self._decode, self._encoder)
        return Prompts(
            made.first, made.second, made.shared_tokens, alike.jaccard, alike.cosine, task
        )

    def session(
        self, stratum: Stratum, text: int, prompts: Prompts, shape: Shape, turns: int
    ) -> Session:
        """The session of one seed that begins with its pair of prompts.

        Every turn after the second has as much new text as B's own in the pair, and where that
        ends with a question of known answer, another question of the same context.

        Raises:
            BenchError: there is too little text.
        """
        own = len(prompts.own)
        tasks = self._tasks(stratum, text, prompts)
        planned = steps(shape, turns)
        found = [Turn(planned[0].agent)]
        for number, step in enumerate(planned[1:], HAND_OVER):
            # Prompts that do not go on from A's have the document alone in common.
            extends = step.extends if prompts.extends else None
            task = tasks[(number - HAND_OVER) % len(tasks)] if tasks else None
            new = prompts.own
            if number > HAND_OVER:
                question = task.question if task is not None else ()
                new = (*self._more(stratum, text, number, own - len(question)), *question)
            found.append(Turn(step.agent, extends, new, task))
        document = prompts.second[: prompts.shared_tokens]
        return Session(prompts.first, document, tuple(found))

    def _tasks(self, stratum: Stratum, text: int, prompts: Prompts) -> tuple[Task, ...]:
        """Questions of the pair's context for which there is room, its own first."""
        if prompts.task is None:
            return ()
        language = Language(stratum.language)
        shared = prompts.shared_tokens
        made = make_tasks(self._library, language, shared, Regime.NEED, seed=text)
        return tuple(task for task in made if len(task.question) <= len(prompts.own))

    def _more(self, stratum: Stratum, text: int, number: int, count: int) -> tuple[int, ...]:
        """So many tokens of text for a turn; their beginning tells it from other turns."""
        language = Language(stratum.language)
        begin = self._library.encode(f"\n\n{number}. ")
        seed = rng_of(text, "turn", number).getrandbits(48)
        return (*begin, *self._library.passage(language, count, seed))[:count]

    def _task(self, made: PromptPair, level: Level, language: Language, text: int) -> Task | None:
        """A question whose answer A has read: where B goes on with that, and there is room."""
        if level is not Level.HIGH or made.shared_tokens < _LEAST_CONTEXT:
            return None
        task = make_task(self._library, language, made.shared_tokens, Regime.NEED, seed=text)
        return task if len(task.question) <= len(made.second) - made.shared_tokens else None


def encoder_of(embedding_model: str | None) -> tuple[Encoder | None, str | None]:
    """What makes vectors of whole texts, for the cosine of prompts; else why there is none.

    A model that the plan names has to be there. If it names none, the packaged one is taken where
    the extra `embed` is installed: the cosine is a label of rows, and no reason to fail.

    Raises:
        ConfigError: the model that is named cannot be loaded.
    """
    if embedding_model is not None:
        return whole_text(load_encoder(embedding_model)), None
    encoder, reason = packaged_encoder()
    return (whole_text(encoder) if encoder is not None else None), reason


def fraction(stratum: Stratum, text: int) -> float:
    """The share of B's prompt that A has read, by lot."""
    return rng_of(text, "fraction").choice(FRACTIONS[stratum.similarity])
