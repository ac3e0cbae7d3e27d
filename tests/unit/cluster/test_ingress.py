"""The HTTP front's errors, without Serve: every malformed body is a 400 in OpenAI's form."""

from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

pytest.importorskip("vllm")

from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from kvrelay.cluster.ingress import ApiError, _parse, make_api

pytestmark = pytest.mark.slow  # imports vLLM


@pytest.fixture(scope="module")
def client() -> TestClient:
    api = make_api()

    @api.post("/chat")
    async def chat(request: Request) -> dict[str, str]:
        await _parse(request, ChatCompletionRequest)
        return {}

    @api.post("/completions")
    async def completions(request: Request) -> dict[str, str]:
        await _parse(request, CompletionRequest)
        return {}

    @api.get("/crash")
    async def crash() -> None:
        raise RuntimeError("secret")

    @api.get("/refused")
    async def refused() -> None:
        raise ApiError(403, "no", "model", "permission_denied")

    return TestClient(api, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/chat", "{bad", None),
        ("/chat", "\xff", None),
        ("/chat", "[]", None),
        ("/chat", "3", None),
        ("/chat", "null", None),
        ("/chat", '{"messages": 3}', None),
        ("/chat", '{"messages": [3]}', None),
        ("/chat", '{"messages": [{"role": "user", "content": 3}]}', "messages[0].content"),
        ("/chat", '{"messages": [{"role": "user", "content": [3]}]}', "messages"),
        ("/chat", '{"messages": [], "tools": 3}', None),
        ("/chat", '{"messages": [], "kv_transfer_params": []}', "kv_transfer_params"),
        ("/completions", "{}", "prompt"),
        ("/completions", '{"prompt": {}}', "prompt"),
        ("/completions", '{"prompt": "x", "max_tokens": "many"}', "max_tokens"),
        ("/completions", '{"prompt": "x", "stream_options": 3}', None),
        ("/completions", '{"prompt": "x", "kv_transfer_params": 3}', "kv_transfer_params"),
    ],
)
def test_malformed_bodies(client: TestClient, path: str, body: str, param: str | None) -> None:
    answer = client.post(path, content=body.encode("latin-1"))
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/crash", 500, "server_error"),
        ("/refused", 403, "permission_error"),
        ("/nothing", 404, "not_found_error"),
        ("/chat", 405, "invalid_request_error"),
    ],
)
def test_other_errors_have_the_same_form(
    client: TestClient, path: str, status: int, kind: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == kind
    assert "secret" not in answer.text
