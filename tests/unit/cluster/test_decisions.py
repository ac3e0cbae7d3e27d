"""`GET /v1/kvrelay/decisions/{id}` without Serve: agents are stand-ins for deployment handles."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("vllm")

from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from kvrelay.agents.prompt import AgentDefaults
from kvrelay.cluster import decisions
from kvrelay.cluster.access import OPERATOR_HEADER, Access
from kvrelay.cluster.front import AgentFront, FrontSettings
from kvrelay.cluster.ingress import ENDPOINTS, AgentIngress, make_api

pytestmark = pytest.mark.slow  # imports vLLM


TOKEN = b"letmein"


def record(number: int, request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "time_s": float(number), "reason": "relayed"}


class Handle:
    """A deployment whose replicas answer as they are told, attempt by attempt."""

    def __init__(self, *attempts: Any) -> None:
        self._attempts = list(attempts)
        self.asked: list[tuple[str, str]] = []

    def broadcast(self, method: str, answer: str) -> Handle:
        self.asked.append((method, answer))
        return self

    async def results_async(self, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert timeout_s > 0
        assert return_exceptions
        told = self._attempts.pop(0) if len(self._attempts) > 1 else self._attempts[0]
        if isinstance(told, BaseException):
            raise told
        return list(told)


class Clock:
    def __init__(self) -> None:
        self.slept_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


async def found(clock: Clock, **handles: Handle) -> decisions.Found:
    return await decisions.find(handles, "cmpl-1", clock.sleep)


NO_REPLICA = DeploymentUnavailableError(DeploymentID(name="a", app_name="kvrelay"))


async def test_records_of_all_replicas_of_all_agents() -> None:
    clock = Clock()
    a = Handle([[record(2, "1_x")], []])
    b = Handle([[record(1, "0_x")], [record(1, "0_x")]])  # two replicas that read one log
    told = await found(clock, a=a, b=b)
    assert [each["request_id"] for each in told.records] == ["0_x", "1_x"]
    assert told.silent == []
    assert clock.slept_s == 0
    assert a.asked == b.asked == [("decisions", "cmpl-1")]


async def test_a_record_that_is_not_written_yet() -> None:
    clock = Clock()
    told = await found(clock, a=Handle([[]], [[]], [[record(1, "x")]]))
    assert len(told.records) == 1
    assert 0 < clock.slept_s <= 1


async def test_nobody_knows_of_it() -> None:
    clock = Clock()
    told = await found(clock, a=Handle([[]]), b=Handle(NO_REPLICA))
    assert (told.records, told.silent, told.kept) == ([], [], True)
    assert clock.slept_s <= 1


async def test_no_log_is_not_waited_for() -> None:
    clock = Clock()
    told = await found(clock, a=Handle([None]))
    assert not told.kept
    assert clock.slept_s == 0
    assert not (await found(clock)).kept


@pytest.mark.parametrize("failure", [TimeoutError(), [[], RuntimeError("died")]])
async def test_replicas_that_do_not_answer(failure: Any) -> None:
    told = await found(Clock(), a=Handle(failure), b=Handle([[]]))
    assert told.silent == ["a"]
    told = await found(Clock(), a=Handle(failure), b=Handle([[record(1, "x")]]))
    assert len(told.records) == 1


def client(monkeypatch: pytest.MonkeyPatch, **handles: Any) -> TestClient:
    monkeypatch.setattr(decisions, "ATTEMPTS_AFTER_S", (0.0,))
    defaults = AgentDefaults(None, {})
    agents = {agent: AgentFront(defaults, "m", agent != "plain", None) for agent in handles}
    settings = FrontSettings(agents, access=Access(operator_sha256=sha256(TOKEN).hexdigest()))
    front = AgentIngress(dict(handles), {agent: {} for agent in handles}, settings=settings)
    api = make_api()
    ENDPOINTS["decisions"](api)(front.decisions)
    operator = {OPERATOR_HEADER: TOKEN.decode()}
    return TestClient(api, headers=operator, raise_server_exceptions=False)


def test_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handle(RuntimeError("has no records"))
    reader = Handle([[record(1, "x")]])
    answer = client(monkeypatch, reader=reader, plain=plain).get("/v1/kvrelay/decisions/cmpl-1")
    assert answer.status_code == 200
    assert answer.json() == {"object": "list", "id": "cmpl-1", "data": [record(1, "x")]}
    assert plain.asked == []


@pytest.mark.parametrize(
    ("told", "status", "code", "remedy"),
    [
        ([[]], 404, "decision_not_found", "give the id of an answer"),
        ([None], 404, "decision_not_found", "telemetry.decisions.max_bytes above 0"),
        (TimeoutError(), 503, "decisions_unavailable", "reader did not answer; try again"),
    ],
)
def test_refusals_have_openais_form(
    monkeypatch: pytest.MonkeyPatch, told: Any, status: int, code: str, remedy: str
) -> None:
    answer = client(monkeypatch, reader=Handle(told)).get("/v1/kvrelay/decisions/a/b")
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert remedy in error["message"]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_permission_is_asked_for_first(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    reader = Handle([[record(1, "x")]])
    stranger = client(monkeypatch, reader=reader)
    answer = stranger.get("/v1/kvrelay/decisions/cmpl-1", headers={OPERATOR_HEADER: token})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "permission_denied")
    assert reader.asked == []
