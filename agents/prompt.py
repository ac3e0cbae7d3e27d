"""How an agent's own prompt and defaults enter a request. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# `max_tokens` is the older name of `max_completion_tokens`: a request that brings either
# has said how long the answer may be.
_SAME_MEANING = {"max_tokens": ("max_tokens", "max_completion_tokens")}
_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """What an agent adds to requests.

    Attributes:
        system_prompt: inserted into chats that bring no system message.
        sampling: applied to requests that bring none, by request field.
    """

    system_prompt: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def with_system_prompt(
    messages: Sequence[Mapping[str, Any]], system_prompt: str | None
) -> list[Mapping[str, Any]]:
    """The messages, led by the agent's system prompt if they bring no system message."""
    if system_prompt is None or any(m.get("role") in _SYSTEM_ROLES for m in messages):
        return list(messages)
    return [{"role": "system", "content": system_prompt}, *messages]


def missing_sampling(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that a request does not bring itself.

    Args:
        request: the fields that the caller gave; null counts as not given.
        defaults: the agent's sampling defaults by request field.
    """
    return {
        name: value
        for name, value in defaults.items()
        if all(request.get(same) is None for same in _SAME_MEANING.get(name, (name,)))
    }


def plain_messages(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The messages as dictionaries whose contents can be read more than once.

    Args:
        messages: as vLLM parses them: mappings, some with an iterator for content, or objects.

    Raises:
        ValueError, TypeError: a part is not what a part may be, which pydantic finds out only
            when such an iterator is read.
    """
    return [_plain(m if isinstance(m, Mapping) else m.model_dump()) for m in messages]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    return {**message, "content": list(content)}


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The texts of a chat with their roles, to compare prompts; no template makes them so."""
    return "".join(f"{m.get('role')}\n{_content_text(m.get('content'))}\n" for m in messages)


def _content_text(content: str | Sequence[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def single_prompt(prompt: Any) -> str | list[int] | None:
    """The prompt of a completion request, as text or token ids; None if it has several or none."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        return None
    if isinstance(prompt[0], int):
        return prompt
    return single_prompt(prompt[0]) if len(prompt) == 1 else None
