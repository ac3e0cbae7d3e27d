"""An agent's own prompt and sampling defaults."""

from typing import Any

import pytest

from kvrelay.agents.prompt import (
    chat_text,
    missing_sampling,
    plain_messages,
    single_prompt,
    with_system_prompt,
)

USER = {"role": "user", "content": "Hi"}


def test_system_prompt_leads_a_chat_that_brings_none() -> None:
    assert with_system_prompt([USER], "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        USER,
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_of_the_request_wins(role: str) -> None:
    messages = [{"role": role, "content": "Mine."}, USER]
    assert with_system_prompt(messages, "Be brief.") == messages


def test_no_system_prompt_changes_nothing() -> None:
    assert with_system_prompt([USER], None) == [USER]


@pytest.mark.parametrize(
    ("request_fields", "applied"),
    [
        ({}, {"temperature": 0.0, "max_tokens": 8}),
        ({"temperature": 1.0}, {"max_tokens": 8}),
        ({"temperature": None}, {"temperature": 0.0, "max_tokens": 8}),
        ({"max_completion_tokens": 3}, {"temperature": 0.0}),
        ({"max_tokens": 3, "temperature": 0.5}, {}),
    ],
)
def test_defaults_fill_only_what_is_missing(
    request_fields: dict[str, Any], applied: dict[str, Any]
) -> None:
    defaults = {"temperature": 0.0, "max_tokens": 8}
    assert missing_sampling(request_fields, defaults) == applied


def test_contents_can_be_read_again() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = plain_messages([USER, {"role": "user", "content": iter(parts)}, {"role": "tool"}])
    assert messages[0] is USER
    assert messages[1]["content"] == parts
    assert chat_text(messages) == "user\nHi\nuser\nLook:\ntool\n\n"
    with pytest.raises(TypeError):
        plain_messages([{"role": "user", "content": 3}])


@pytest.mark.parametrize(
    ("prompt", "single"),
    [
        ("Hi", "Hi"),
        ([1, 2], [1, 2]),
        (["Hi"], "Hi"),
        ([[1, 2]], [1, 2]),
        (["Hi", "Ho"], None),
        ([[1], [2]], None),
        ([], None),
        ([[]], None),
        (None, None),
    ],
)
def test_the_one_prompt_of_a_completion(prompt: Any, single: Any) -> None:
    assert single_prompt(prompt) == single
