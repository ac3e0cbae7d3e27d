"""Append-only prompts in token ids: what one agent read and wrote is how the next one begins.

    head  context  instruction 1  tail  output 1  between  instruction 2  tail  output 2 ...
    \\________________ step 1 ________/                                        |
    \\________________________________ step 2 ________________________/

`head`, `tail` and `between` are the model's chat template around the texts: the user turn's
opening, its end with the assistant's opening, the assistant's end with the user's opening.
Pieces are tokenised once, apart, and then only carried along: an output that is turned into
text and tokenised again may split differently, and no prefix would match any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvrelay.agents.errors import WorkflowError

_CONTEXT, _OUTPUT, _INSTRUCTION = "kvrelaycontext", "kvrelayoutput", "kvrelayinstruction"


class ChatLayout:
    """Turns texts into the token ids of an append-only conversation."""

    def __init__(self, tokenizer: Any) -> None:
        """Take the template's pieces from a transformers tokenizer.

        Raises:
            WorkflowError: the template rewrites earlier turns, or there is none.
        """
        self._tokenizer = tokenizer
        head, tail, between = _template_pieces(tokenizer)
        self._head = self._encode_template(head)
        self._tail = self._encode_template(tail)
        self._between = self._encode_template(between)

    @classmethod
    def load(cls, model: str | Path) -> ChatLayout:
        """The layout of the model in a folder, or of a Hugging Face id."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(str(model)))

    def open(self, context: str, instruction: str) -> list[int]:
        """The first step's prompt."""
        return [*self._head, *self.encode(context + "\n\n"), *self.encode(instruction), *self._tail]

    def extend(self, prompt: Sequence[int], output: Sequence[int], instruction: str) -> list[int]:
        """The next step's prompt: the whole of the last one, its output, an instruction.

        Args:
            prompt: the last step's prompt.
            output: the token ids it generated, with the end-of-turn token or without.
            instruction: what the next agent is asked.
        """
        between = self._between
        if output and output[-1] == between[0]:
            between = between[1:]
        return [*prompt, *output, *between, *self.encode(instruction), *self._tail]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text from outside: what looks like a special token stays text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [int(token) for token in ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def truncate(self, text: str, num_tokens: int) -> str:
        """The beginning of a text, of about that many tokens."""
        return self.decode(self.encode(text)[:num_tokens])

    def _encode_template(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return [int(token) for token in ids]


def _template_pieces(tokenizer: Any) -> tuple[str, str, str]:
    def render(*contents: str) -> str:
        roles = ("user", "assistant", "user")
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        options = {"tokenize": False, "add_generation_prompt": True}
        return str(tokenizer.apply_chat_template(messages, **options))

    try:
        first = render(_CONTEXT)
        second = render(_CONTEXT, _OUTPUT, _INSTRUCTION)
    except (ValueError, TypeError) as error:  # no template
        raise WorkflowError(f"the model has no usable chat template: {error}") from error
    head, _, tail = first.partition(_CONTEXT)
    rest = second.removeprefix(head + _CONTEXT + tail + _OUTPUT)
    between = rest.removesuffix(_INSTRUCTION + tail)
    if second != head + _CONTEXT + tail + _OUTPUT + between + _INSTRUCTION + tail or not between:
        raise WorkflowError(
            "the model's chat template changes earlier turns when one is added, "
            "so that prompts cannot be extended without changing what was computed"
        )
    return head, tail, between
