"""The endpoint through the real `openai` client: what it answers, and how it refuses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

HELLO: Any = [{"role": "user", "content": "Who are you?"}]


def test_models_are_the_agents(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"a", "b", "plain"}
    assert client.models.retrieve("a").owned_by == "kvrelay"


def test_chat_with_the_agents_own_defaults(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="a", messages=HELLO)
    assert answer.model == "a"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7  # the agent's max_tokens
    assert answer.choices[0].message.content


def test_the_system_prompt_applies_unless_the_request_brings_one(client: OpenAI) -> None:
    def prompt_tokens(agent: str, messages: Any) -> int:
        options: Any = {"model": agent, "messages": messages, "max_tokens": 1}
        usage = client.chat.completions.create(**options).usage
        assert usage is not None
        return int(usage.prompt_tokens)

    prompt = "You are a pirate. Always answer like a pirate."
    own: Any = [{"role": "system", "content": prompt}, *HELLO]
    other: Any = [{"role": "system", "content": "Yes."}, *HELLO]
    assert prompt_tokens("a", HELLO) == prompt_tokens("b", own)
    assert prompt_tokens("a", other) == prompt_tokens("b", other)
    assert prompt_tokens("a", HELLO) != prompt_tokens("b", HELLO)


def test_streaming_gives_the_same_text(client: OpenAI) -> None:
    options: Any = {"model": "a", "messages": HELLO}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert len(chunks) > 3  # token by token, not all at once


def test_completions_stream(client: OpenAI) -> None:
    options: Any = {"model": "b", "prompt": "One, two,", "max_tokens": 5, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    chunks = client.completions.create(**options, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole


def test_token_ids_in_and_out(client: OpenAI) -> None:
    text = "The capital of France is"
    extra = {"return_token_ids": True}
    options: Any = {"model": "b", "max_tokens": 4, "temperature": 0, "extra_body": extra}
    by_text = client.completions.create(prompt=text, **options)
    choice: Any = by_text.choices[0]
    assert len(choice.token_ids) == 4
    by_ids: Any = client.completions.create(prompt=choice.prompt_token_ids, **options).choices[0]
    assert by_ids.prompt_token_ids == choice.prompt_token_ids
    assert by_ids.token_ids == choice.token_ids
    assert by_ids.text == choice.text


REFUSED: list[Any] = [
    ({"model": "nobody"}, 404, "model", "model_not_found"),
    ({"prompt": [9] * 9000}, 400, None, "context_length_exceeded"),
    ({"temperature": -1}, 400, "temperature", "invalid_value"),
    ({"kv_transfer_params": 3}, 400, "kv_transfer_params", "invalid_value"),
    (
        {"kv_transfer_params": {"kvrelay": 3}},
        400,
        "kv_transfer_params.kvrelay",
        "invalid_value",
    ),
    (
        {"kv_transfer_params": {"kvrelay": {"mod": "auto"}}},
        400,
        "kv_transfer_params.kvrelay.mod",
        "invalid_value",
    ),
    (
        {"kv_transfer_params": {"kvrelay": {"mode": "fast"}}},
        400,
        "kv_transfer_params.kvrelay.mode",
        "invalid_value",
    ),
    (
        {"kv_transfer_params": {"kvrelay": {"mode": "lookup_only"}}},
        403,
        "kv_transfer_params.kvrelay.mode",
        "permission_denied",
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("change", "status", "param", "code"), REFUSED)
def test_refusals_have_openais_form_and_hurt_nobody(
    client: OpenAI, change: dict[str, Any], status: int, param: str | None, code: str, stream: bool
) -> None:
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 1, **change}
    options: Any = {"model": body.pop("model", "b"), "prompt": body.pop("prompt")}
    with pytest.raises(APIStatusError) as caught:
        client.completions.create(**options, stream=stream, extra_body=body)
    error: Any = caught.value.body
    assert caught.value.status_code == status
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    if param is not None:
        assert error["param"] == param
        assert param in error["message"] or param == "model"
    again = client.completions.create(model="b", prompt="x", max_tokens=1)
    assert again.choices[0].finish_reason == "length"


def test_bodies_that_are_no_requests(app: Any) -> None:
    for path, body, status in (
        ("/completions", "{bad", 400),
        ("/completions", '{"model": "b"}', 400),
        ("/chat/completions", '{"model": "b", "messages": 3}', 400),
        ("/chat/completions", '{"messages": []}', 400),
        ("/nothing", "{}", 404),
    ):
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(app.url + path, content=body, headers=headers, trust_env=False)
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
