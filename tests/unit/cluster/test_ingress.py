"""The HTTP front without Serve: errors in OpenAI's form, and who may ask what."""

import hashlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

pytest.importorskip("vllm")

from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from kvrelay.agents.prompt import AgentDefaults
from kvrelay.cluster.access import Access
from kvrelay.cluster.front import AgentFront, FrontSettings
from kvrelay.cluster.ingress import AgentIngress, ApiError, _parse, make_api

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
        ("/completions", '{"prompt": "x", "cache_salt": "\\ud800"}', "cache_salt"),
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


class Seen(BaseModel):
    """What an agent was handed."""

    mode: str | None
    cache_salt: str | None
    headers: dict[str, str]


class FakeAgent:
    """A Serve handle of an agent that answers with what it was handed."""

    def options(self, **_: Any) -> "FakeAgent":
        return self

    def __getattr__(self, method: str) -> "FakeAgent":
        assert method in {"chat", "completions"}
        return self

    async def remote(self, body: Any, info: Any) -> AsyncGenerator[Seen, None]:
        control = (body.kv_transfer_params or {}).get("kvrelay", {})
        yield Seen(mode=control.get("mode"), cache_salt=body.cache_salt, headers=info.headers)


def front(access: Access) -> TestClient:
    """The ingress's routes over one agent, `a`."""
    api = make_api()
    agent = AgentFront(AgentDefaults(None, {}), model="m", relays=True, pool=None)
    settings = FrontSettings({"a": agent}, access=access)
    ingress = AgentIngress({"a": FakeAgent()}, {"a": {}}, settings=settings)
    api.post("/v1/completions")(ingress.completions)
    api.post("/v1/chat/completions")(ingress.chat)
    return TestClient(api, raise_server_exceptions=False)


def post(client: TestClient, path: str, headers: Any = None, **body: Any) -> Any:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    return client.post(path, json={"model": "a", **prompt, **body}, headers=headers)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


TOKEN = "letmein"
OPERATOR = Access(operator_sha256=sha256(TOKEN))
PATHS = ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["relay", "lookup_only", "pull_and_discard"])
@pytest.mark.parametrize("headers", [{}, {"X-Kvrelay-Operator": "wrong"}, {"X-Operator": TOKEN}])
def test_gated_modes_need_the_operators_token(
    path: str, stream: bool, mode: str, headers: dict[str, str]
) -> None:
    asked = {"kvrelay": {"mode": mode}}
    client = front(OPERATOR)
    answer = post(client, path, headers, kv_transfer_params=asked, stream=stream)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error.pop("message")
    assert error == {
        "type": "permission_error",
        "param": "kv_transfer_params.kvrelay.mode",
        "code": "permission_denied",
    }
    allowed = post(client, path, {"X-Kvrelay-Operator": TOKEN}, kv_transfer_params=asked)
    assert allowed.status_code == 200
    assert allowed.json()["mode"] == mode


@pytest.mark.parametrize("path", PATHS)
def test_no_body_gives_permission(path: str) -> None:
    """Whatever a client puts beside the mode, or where else vLLM would take it from."""
    asked: dict[str, Any] = {"kvrelay": {"mode": "relay"}}
    client = front(OPERATOR)
    for extra in ({"operator": True}, {"kvrelay_operator": TOKEN}):
        assert post(client, path, kv_transfer_params=asked, **extra).status_code == 403
        assert post(client, path, kv_transfer_params={**asked, **extra}).status_code == 403
        inside = {"kvrelay": {"mode": "relay", **extra}}
        assert post(client, path, kv_transfer_params=inside).status_code == 400
    assert post(client, path, vllm_xargs={"kv_transfer_params": asked}).status_code == 400


@pytest.mark.parametrize("path", PATHS)
def test_agents_do_not_see_the_token(path: str) -> None:
    headers = {"X-Kvrelay-Operator": TOKEN, "X-Other": "kept"}
    seen = post(front(OPERATOR), path, headers).json()["headers"]
    assert seen["x-other"] == "kept"
    assert TOKEN not in str(seen)


TENANTS = Access(tenant_keys={sha256("red key"): "red", sha256("blue key"): "blue"})
RED, BLUE = {"Authorization": "Bearer red key"}, {"Authorization": "Bearer blue key"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer none"}, {"X-Tenant": "red"}])
def test_requests_of_nobody_are_401(path: str, headers: dict[str, str]) -> None:
    answer = post(front(TENANTS), path, headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert error.pop("message")
    assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
    assert front(TENANTS).post(path, content="{bad", headers=headers).status_code == 401


@pytest.mark.parametrize("path", PATHS)
def test_a_tenants_salt_is_the_servers(path: str) -> None:
    client = front(TENANTS)

    def salt(headers: dict[str, str], **body: Any) -> str:
        seen = post(client, path, headers, **body).json()
        assert "key" not in str(seen["headers"])
        return str(seen["cache_salt"])

    red, blue = salt(RED), salt(BLUE)
    assert red != blue
    assert (salt(RED), salt(RED, tenant="blue")) == (red, red)
    own = salt(RED, cache_salt="x")
    assert own == salt(RED, cache_salt="x")
    # Whatever blue sends, it is blue's: what red sends, and what red has got by it.
    forged = [salt(BLUE, cache_salt=sent) for sent in ("x", "red", red, own)]
    assert len({red, blue, own, *forged}) == 7


@pytest.mark.parametrize("path", PATHS)
def test_with_one_tenant_a_request_stays_as_it_is(path: str) -> None:
    client = front(Access())
    assert post(client, path, RED).json()["cache_salt"] is None
    salts = {post(client, path, cache_salt=sent).json()["cache_salt"] for sent in ("x", "y")}
    assert len(salts) == 2
    assert not salts & {"x", "y", None}


def test_a_gateways_header_names_the_tenant() -> None:
    client = front(Access(tenant_header="x-tenant"))
    assert post(client, PATHS[0]).status_code == 401
    salts = [post(client, PATHS[0], {"X-Tenant": name}).json()["cache_salt"] for name in "aba"]
    assert salts[0] == salts[2] != salts[1]
    twice = post(client, PATHS[0], [("X-Tenant", "a"), ("X-Tenant", "b")])
    assert twice.status_code == 401
