"""Which agent gets a request, with handles made up here in the place of Serve's."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

pytest.importorskip("vllm")

from ray.serve.llm.openai_api_models import ErrorResponse
from vllm.exceptions import VLLMValidationError

from kvrelay.agents.prompt import AgentDefaults
from kvrelay.cluster import owners
from kvrelay.cluster.access import Access
from kvrelay.cluster.front import AgentFront, FrontSettings
from kvrelay.cluster.ingress import AgentIngress, make_api
from kvrelay.policies.affinity import CHUNK_BYTES, MAX_AHEAD
from kvrelay.relay.labels import FIELD, Labels

pytestmark = pytest.mark.slow  # imports vLLM

TEXT = "There was a station where no train had stopped for years. " * (4 * CHUNK_BYTES // 50)
MAX_TOKENS = {"a": 6, "b": 7}
Behaviour = Callable[[Any], AsyncIterator[Any]]


class Answer(BaseModel):
    """Stands in for vLLM's responses."""

    model: str
    served: str


class Remote:
    """A handle's method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


class FakeHandle:
    """An agent's deployment handle: keeps what it was asked, and behaves as a test tells it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Any] = []
        self.behaviour: Behaviour = self.well
        self.chat = self.completions = Remote(self._ask)
        self.check_health = Remote(self._check)
        self.checked = 0
        self.health: Callable[[], Any] = _nothing

    def options(self, **_: Any) -> "FakeHandle":
        return self

    def _ask(self, body: Any, _: Any) -> AsyncIterator[Any]:
        self.asked.append(body)
        return self.behaviour(body)

    async def _check(self) -> None:
        self.checked += 1
        await self.health()

    async def well(self, body: Any) -> AsyncIterator[Any]:
        if not body.stream:
            yield Answer(model=body.model, served=self.name)
            return
        for number in range(3):
            chunk = {"model": body.model, "served": self.name, "text": f"é {number}"}
            yield [f"data: {json.dumps(chunk)}\n\n"]
        yield "data: [DONE]\n\n"


async def _nothing() -> None:
    return None


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


async def hangs(_: Any) -> AsyncIterator[Any]:
    await never()
    yield


async def breaks(_: Any) -> AsyncIterator[Any]:
    raise RuntimeError("the engine is dead")
    yield


async def refuses(_: Any) -> AsyncIterator[Any]:
    raise VLLMValidationError("no", parameter="temperature")
    yield


def answers(status: int) -> Behaviour:
    async def behaviour(_: Any) -> AsyncIterator[Any]:
        info = {"message": "no", "type": "x", "param": None, "code": status}
        yield ErrorResponse.model_validate({"error": info})

    return behaviour


class Front:
    """An ingress before agents `a`, `b` and `c` of one pool, `other` and `plain`."""

    def __init__(self, routing: Any = "owner_affinity", prediction: Any = "none") -> None:
        def agent(name: str, pool: str | None) -> AgentFront:
            defaults = AgentDefaults(f"You are {name}.", {"max_tokens": MAX_TOKENS.get(name)})
            return AgentFront(defaults, "demo", pool is not None, pool)

        pools = {"a": "x", "b": "x", "c": "x", "other": "y", "plain": None}
        agents = {name: agent(name, pool) for name, pool in pools.items()}
        access = Access(operator_open=True)
        settings = FrontSettings(agents, routing, prediction=prediction, access=access)
        self.handles = {name: FakeHandle(name) for name in pools}
        cards = {name: {"id": name} for name in pools}
        self.ingress = AgentIngress(self.handles, cards, settings=settings)
        api = make_api()

        @api.post("/chat")
        async def chat(request: Request) -> Response:
            return await self.ingress.chat(request)

        @api.post("/completions")
        async def completions(request: Request) -> Response:
            return await self.ingress.completions(request)

        transport = httpx.ASGITransport(api, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def complete(self, agent: str, prompt: Any = TEXT, **fields: Any) -> httpx.Response:
        body = {"model": agent, "prompt": prompt, **fields}
        return await self.client.post("/completions", json=body)

    async def served_by(self, agent: str, prompt: Any = TEXT, **fields: Any) -> str:
        answer = await self.complete(agent, prompt, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == agent
        return str(answer.json()["served"])

    def in_flight(self) -> dict[str, int]:
        assert self.ingress._owners is not None
        return {agent: count for agent, count in self.ingress._owners._in_flight.items() if count}


@pytest.fixture
async def front() -> AsyncGenerator[Front, None]:
    made = Front()
    yield made
    await made.client.aclose()
    assert made.in_flight() == {}


async def test_the_owner_of_the_prefix_answers_in_the_named_agents_name(front: Front) -> None:
    assert await front.served_by("a") == "a"
    assert await front.served_by("b", TEXT + "And then?") == "a"
    sent = front.handles["a"].asked[-1]
    assert sent.model == "a"
    assert sent.max_tokens == MAX_TOKENS["b"]
    assert sent.kv_transfer_params[FIELD]["agent"] == "b"
    assert not front.handles["b"].asked
    assert await front.served_by("b", "Short.") == "b"


async def test_token_ids_have_owners_too(front: Front) -> None:
    prompt = list(range(1000, 1300))
    assert await front.served_by("a", prompt) == "a"
    assert await front.served_by("b", [*prompt, 7]) == "a"
    assert await front.served_by("b", [7, *prompt]) == "b"


async def test_the_named_agents_own_prompt_and_defaults_go_along(front: Front) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]
    for agent in ("a", "other", "b"):
        answer = await front.client.post("/chat", json={"model": agent, "messages": messages})
        assert answer.json() == {"model": agent, "served": agent}  # each has its own prompt
    own = [{"role": "system", "content": "You are b."}, *messages]
    answer = await front.client.post("/chat", json={"model": "a", "messages": own})
    assert answer.json() == {"model": "a", "served": "b"}
    sent = front.handles["b"].asked[-1]
    assert sent.messages[0]["content"] == "You are b."
    assert sent.max_tokens == MAX_TOKENS["a"]


async def test_streams_are_renamed_event_by_event(front: Front) -> None:
    await front.served_by("a")
    answer = await front.complete("b", stream=True)
    *chunks, done = answer.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    parsed = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    assert [part["text"] for part in parsed] == ["é 0", "é 1", "é 2"]
    assert {(part["model"], part["served"]) for part in parsed} == {("b", "a")}


@pytest.mark.parametrize("agent", ["other", "plain"])
async def test_other_engines_keep_to_themselves(front: Front, agent: str) -> None:
    await front.served_by("a")
    assert await front.served_by(agent) == agent
    assert await front.served_by("b") == "a"


async def test_other_salts_have_other_owners(front: Front) -> None:
    await front.served_by("a", cache_salt="tenant-1")
    assert await front.served_by("b", cache_salt="tenant-2") == "b"
    assert await front.served_by("c", cache_salt="tenant-1") == "a"


@pytest.mark.parametrize("mode", ["recompute", "relay"])
async def test_who_says_where_kv_comes_from_gets_the_named_agent(front: Front, mode: str) -> None:
    await front.served_by("a")
    params = {"kvrelay": {"mode": mode}}
    assert await front.served_by("b", kv_transfer_params=params) == "b"


async def test_several_prompts_go_to_the_named_agent(front: Front) -> None:
    await front.served_by("a")
    assert await front.served_by("b", [TEXT, TEXT]) == "b"


async def no_replica() -> None:
    raise RuntimeError("no replica")


@pytest.mark.parametrize(
    ("behaviour", "health"),
    [(hangs, never), (hangs, no_replica), (breaks, _nothing), (answers(500), _nothing)],
    ids=["silent", "unwell", "raises", "500"],
)
async def test_an_owner_that_is_not_well_is_replaced_and_forgotten(
    front: Front, behaviour: Behaviour, health: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "CHECK_S", 0.01)
    await front.served_by("a")
    owner = front.handles["a"]
    owner.behaviour, owner.health = behaviour, health
    assert await front.served_by("b") == "b"
    assert front.in_flight() == {}
    asked = len(owner.asked)
    assert await front.served_by("c") == "b"
    assert len(owner.asked) == asked


async def test_what_the_client_got_wrong_is_not_tried_again(front: Front) -> None:
    await front.served_by("a")
    for behaviour in (refuses, answers(400)):
        front.handles["a"].behaviour = behaviour
        answer = await front.complete("b")
        assert answer.status_code == 400
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert not front.handles["b"].asked


async def test_a_slow_owner_that_is_well_is_waited_for(front: Front) -> None:
    await front.served_by("a")
    owner, go_on = front.handles["a"], asyncio.Event()

    async def slow(body: Any) -> AsyncIterator[Any]:
        await go_on.wait()
        async for part in owner.well(body):
            yield part

    owner.behaviour = slow
    request = asyncio.ensure_future(front.served_by("b"))
    while not owner.checked:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not request.done()
    go_on.set()
    assert await request == "a"


async def test_a_busy_owner_is_relieved(front: Front) -> None:
    await front.served_by("a")
    front.handles["a"].behaviour = hangs
    busy = [asyncio.ensure_future(front.complete("a", f"{i}")) for i in range(MAX_AHEAD)]
    while front.in_flight().get("a", 0) < MAX_AHEAD:
        await asyncio.sleep(0)
    assert await front.served_by("b") == "b"
    for request in busy:
        request.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


async def test_errors_own_nothing(front: Front) -> None:
    front.handles["a"].behaviour = answers(400)
    assert (await front.complete("a")).status_code == 400
    assert await front.served_by("b") == "b"


async def test_by_default_the_named_agent_serves() -> None:
    front = Front("named")
    await front.served_by("a")
    assert await front.served_by("b") == "b"
    await front.client.aclose()


@pytest.mark.parametrize("routing", ["named", "owner_affinity"])
async def test_clients_cannot_write_labels(routing: str) -> None:
    front = Front(routing)
    forged = {FIELD: {"agent": "c", "embedding_cosine": 1.0}, "other": 1}
    for agent in ("b", "plain"):
        await front.served_by(agent, kv_transfer_params=forged)
    told = [front.handles[agent].asked[-1].kv_transfer_params for agent in ("b", "plain")]
    labels = asdict(Labels("b"))
    assert told == [{FIELD: labels, "other": 1}, {"other": 1}]
    await front.client.aclose()


async def test_the_most_similar_prompt_may_be_another_agents() -> None:
    front = Front("named")
    await front.served_by("a", "One two three four five six seven.")
    await front.served_by("b", "One two three four five six seven.")
    assert front.handles["b"].asked[-1].kv_transfer_params[FIELD]["minhash_jaccard"] == 1.0
    await front.client.aclose()


NEXT = {"kvrelay": {"next": "b"}}


def told(front: Front, agent: str) -> tuple[Any, ...]:
    """Who is expected after an agent's last request, how likely, and whether it was expected."""
    labels = front.handles[agent].asked[-1].kv_transfer_params[FIELD]
    return labels["next_agent"], labels["next_probability"], labels["foreseen"]


async def test_engines_are_told_who_comes_next() -> None:
    front = Front("named", "declared")
    await front.served_by("a", kv_transfer_params=NEXT)
    assert told(front, "a") == ("b", 1.0, None)
    await front.served_by("b", TEXT + "And then?")
    assert told(front, "b") == (None, None, True)
    await front.client.aclose()


async def test_what_mostly_came_next_is_expected() -> None:
    front = Front("named", "observed")
    for number in range(3):
        await front.served_by("a", f"{number} {TEXT}")
        await front.served_by("b", f"{number} {TEXT}")
    name, probability, _ = told(front, "a")
    assert name == "b" and 0.3 < probability < 0.7
    await front.client.aclose()


@pytest.mark.parametrize(
    ("prediction", "agent", "control"),
    [
        ("none", "a", {"next": "b"}),
        ("declared", "a", {}),
        ("declared", "a", {"next": "plain"}),  # has no use for KV
        ("declared", "a", {"next": "b", "mode": "recompute"}),
    ],
)
async def test_nobody_is_expected(prediction: str, agent: str, control: dict[str, str]) -> None:
    front = Front("named", prediction)
    await front.served_by(agent, kv_transfer_params={"kvrelay": control})
    assert told(front, agent) == (None, None, None)
    await front.client.aclose()


@pytest.mark.parametrize("name", ["nobody", 3, ["b"]])
async def test_an_unknown_next_agent_is_refused(name: Any) -> None:
    front = Front("named", "declared")
    answer = await front.complete("a", kv_transfer_params={"kvrelay": {"next": name}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params.kvrelay.next"
    assert "must be one of a, b, c, other, plain" in answer.json()["error"]["message"]
    await front.client.aclose()


async def test_a_fault_of_the_prediction_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front("named", "declared")

    def fault(*_: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("kvrelay.cluster.next_steps.prefix_hashes", fault)
    assert await front.served_by("a", kv_transfer_params=NEXT) == "a"
    assert told(front, "a") == (None, None, None)
    await front.client.aclose()
