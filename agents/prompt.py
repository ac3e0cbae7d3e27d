"""How an agent's own prompt and defaults enter a request. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# `max_tokens` is the older name of `max_completion_tokens`: a request that brings either
# has said how long the answer may be.
_SAME_MEANING = {"max_tokens": ("max_tokens", "max_completion_tokens")}
_SYSTEM_ROLES = frozenset({"system", "developer"})


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
