"""Prompts of a pair of agents: what A reads, and what B is asked, by stratum and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench.audit.design import rng_of
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.similarity import Level, PromptPair, measure, pair, whole_text
from kvrelay.bench.audit.workload.tasks import Regime, Task, make_task
from kvrelay.bench.audit.workload.text import Language, Library
from kvrelay.cluster.embedding import PACKAGED, Encoder, load_encoder, unavailable
from kvrelay.cluster.errors import ConfigError

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

    def second_after(self, message: Sequence[int], text_only: bool) -> tuple[int, ...]:
        """B's prompt in a session in which A has written a message.

        Args:
            message: token ids.
            text_only: B gets the message instead of what A has read.
        """
        if text_only:
            return (*message, *self.own)
        return (*self.first, *message, *self.own) if self.extends else self.second


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
    if reason := unavailable():
        return None, reason
    try:
        return whole_text(load_encoder(PACKAGED)), None
    except ConfigError as error:  # the library has come with something else than the extra
        return None, f"{error.message}; pip install 'kvrelay[embed]'"


def fraction(stratum: Stratum, text: int) -> float:
    """The share of B's prompt that A has read, by lot."""
    return rng_of(text, "fraction").choice(FRACTIONS[stratum.similarity])
