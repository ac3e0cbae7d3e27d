"""The HTTP front: OpenAI's routes over ray.serve.llm's ingress, with errors in OpenAI's form.

Every error answers `{"error": {"message", "type", "param", "code"}}`, `param` being the path
of the field in the request's body and `code` a word that programs can test.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ValidationError
from ray.serve.handle import DeploymentHandle
from ray.serve.llm.ingress import OpenAiIngress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError

from kvrelay.agents.control import parse_mode, parse_next
from kvrelay.agents.errors import RequestError
from kvrelay.agents.prompt import (
    AgentDefaults,
    chat_text,
    missing_sampling,
    plain_messages,
    single_prompt,
    with_system_prompt,
)
from kvrelay.cluster.config_errors import format_path
from kvrelay.cluster.decisions import Found, find
from kvrelay.cluster.embedding import load_encoder
from kvrelay.cluster.front import FrontSettings
from kvrelay.cluster.next_steps import NextSteps
from kvrelay.cluster.owners import OwnerRouting
from kvrelay.cluster.similarity import SimilarityMeter
from kvrelay.policies.affinity import prefix_hashes
from kvrelay.policies.modes import Mode
from kvrelay.relay.keys import request_salt
from kvrelay.relay.labels import without_labels

logger = logging.getLogger(__name__)

ENDPOINTS: dict[str, Callable[[FastAPI], Callable[..., Any]]] = {
    "health": lambda app: app.get("/health"),
    "models": lambda app: app.get("/v1/models"),
    "model_data": lambda app: app.get("/v1/models/{model:path}"),
    "chat": lambda app: app.post("/v1/chat/completions"),
    "completions": lambda app: app.post("/v1/completions"),
    "decisions": lambda app: app.get("/v1/kvrelay/decisions/{answer:path}"),
}


class AgentIngress(OpenAiIngress):
    """Routes a request to the agent that its `model` names, with that agent's defaults.

    Only if its headers allow what it asks: agents believe what the ingress hands on.
    """

    def __init__(
        self,
        llm_deployments: dict[str, DeploymentHandle],
        model_cards: dict[str, Any],
        *,
        settings: FrontSettings,
    ) -> None:
        """Take the engines' handles and what `/v1/models` says, both by agent."""
        super().__init__(llm_deployments, model_cards)
        self._access = settings.access
        self._agents = settings.agents
        model = settings.embedding_model
        self._similarity = SimilarityMeter(None if model is None else load_encoder(model))
        by_owner = settings.routing == "owner_affinity"
        self._next_steps = None
        if settings.prediction != "none":
            self._next_steps = NextSteps(settings.agents, learns=settings.prediction == "observed")
        self._owners = OwnerRouting(self._check_agent) if by_owner else None

    async def health(self) -> dict[str, str]:
        """Answers once the ingress serves; the agents' own health is Serve's to watch."""
        return {"status": "ok"}

    async def models(self) -> dict[str, Any]:
        """`GET /v1/models`: the agents."""
        return {"object": "list", "data": list(self._model_cards.values())}

    async def model_data(self, model: str) -> dict[str, Any]:
        """`GET /v1/models/{model}`: one agent."""
        return dict(self._model_cards[await self._get_model_id(model)])

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._answer(ChatCompletionRequest, "chat", request)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`; `prompt` may be token ids."""
        return await self._answer(CompletionRequest, "completions", request)

    async def decisions(self, request: Request, answer: str) -> Response:
        """`GET /v1/kvrelay/decisions/{id}`: the records of an answer, streamed ones included."""
        self._require_operator(request)
        handles = {
            agent: handle
            for agent, handle in self._default_serve_handles.items()
            if self._agents[agent].relays
        }
        found = await find(handles, answer)
        if not found.records:
            raise _no_record(answer, found)
        return JSONResponse({"object": "list", "id": answer, "data": found.records})

    def _require_operator(self, request: Request) -> None:
        """Refuse who is not an operator: records tell what others have asked."""
        if not self._access.operator_allowed(request.headers):
            message = f"{request.url.path} needs operator permission"
            raise ApiError(403, message, None, "permission_denied")

    async def _get_model_id(self, model: str | None) -> str:
        if model in self._model_cards:
            return str(model)
        agents = ", ".join(sorted(self._model_cards))
        if model is None:
            raise ApiError(400, f"give model; agents: {agents}", "model", "missing_model")
        message = f"the model '{model}' does not exist; agents: {agents}"
        raise ApiError(404, message, "model", "model_not_found")

    async def _answer(self, model: type[BaseModel], method: str, request: Request) -> Response:
        """The agent's answer: JSON, or server-sent events if it is a stream."""
        tenant = self._access.tenant(request.headers)
        body = await _parse(request, model)
        mode = parse_mode(body.kv_transfer_params, self._access.operator_allowed(request.headers))
        declared = parse_next(body.kv_transfer_params, self._agents)
        body.cache_salt = request_salt(tenant, body.cache_salt)
        agent = await self._get_model_id(body.model)
        _apply_defaults(body, await request.json(), self._agents[agent].defaults)
        await self._label(agent, body, mode, tenant, declared)
        known = _without_headers(request, self._access.withheld_headers)

        def ask(server: str) -> AsyncGenerator[Any, None]:
            sent = body.model_copy(update={"model": server})
            return self._get_response(body=sent, call_method=method, raw_request=known)

        if self._owners is None:
            parts = ask(agent)
        else:
            prefix = self._prefix(agent, body) if mode is Mode.AUTO else []
            parts = self._owners.answer(agent, prefix, ask)
        try:
            first = await anext(parts)
        except VLLMClientError as error:
            raise _from_client_error(error) from error
        head = first[0] if isinstance(first, list) else first
        if not isinstance(head, BaseModel):
            return StreamingResponse(_events(first, parts), media_type="text/event-stream")
        await parts.aclose()
        if isinstance(head, ErrorResponse):
            raise _from_engine(head)
        return JSONResponse(head.model_dump())

    async def _label(
        self, agent: str, body: Any, mode: Mode, tenant: str | None, declared: str | None
    ) -> None:
        """Put the labels of a request where only the ingress may write.

        `declared` is the agent that the request says will go on with its prompt.
        """
        front, params = self._agents[agent], without_labels(body.kv_transfer_params)
        if front.relays:
            scope, prompt = (front.model, body.cache_salt), _prompt(body)
            labels = await self._similarity.labels(agent, scope, prompt)
            if self._next_steps is not None and mode in (Mode.AUTO, Mode.RELAY):
                labels = self._next_steps.added_to(
                    labels,
                    agent=agent,
                    tenant=tenant,
                    scope=scope,
                    prompt=prompt,
                    declared=declared,
                )
            params = labels.added_to(params)
        body.kv_transfer_params = params

    def _prefix(self, agent: str, body: Any) -> list[bytes]:
        """What may decide who serves a request; empty if it must be the agent that is named."""
        pool, prompt = self._agents[agent].pool, _prompt(body)
        if pool is None or prompt is None:
            return []
        return prefix_hashes((pool, body.cache_salt), prompt)

    async def _check_agent(self, agent: str) -> None:
        """Return once a replica of the agent has said that its engine is well."""
        await self._default_serve_handles[agent].check_health.remote()


def _no_record(answer: str, found: Found) -> ApiError:
    """Why there is none, and what can be done."""
    if found.silent:
        agents = ", ".join(found.silent)
        message = f"no record of '{answer}' so far, but {agents} did not answer; try again"
        return ApiError(503, message, None, "decisions_unavailable")
    if not found.kept:
        message = (
            "no agent that runs keeps a log of decisions; it needs relay, and "
            "telemetry.decisions.max_bytes above 0"
        )
    else:
        message = (
            f"no record of '{answer}'; give the id of an answer of an agent with relay, as in its "
            "'id'. The oldest records go first: telemetry.decisions.max_bytes keeps more"
        )
    return ApiError(404, message, None, "decision_not_found")


async def _parse(request: Request, model: type[BaseModel]) -> Any:
    """The body as vLLM's request.

    Raises:
        ApiError: 400, naming the field. FastAPI would parse it too, but vLLM's own validators
            trip over some malformed bodies with a TypeError, which is no server error.
    """
    try:
        body: Any = model.model_validate(await request.json())
        if isinstance(body, ChatCompletionRequest):
            body.messages = _messages(body)
        return body
    except ValidationError as error:
        raise _from_validation(error.errors()) from error
    except VLLMClientError as error:
        raise _from_client_error(error) from error
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", None, "invalid_json") from error
    except (TypeError, AttributeError, KeyError) as error:
        message = f"the body is not what this endpoint takes: {error}"
        raise ApiError(400, message, None, "invalid_value") from error


def _without_headers(request: Request, names: frozenset[bytes]) -> Request:
    """The request as agents get it: they have no use for secrets, and might log them."""
    headers = [(n, v) for n, v in request.scope["headers"] if n.lower() not in names]
    return Request({**request.scope, "headers": headers})


def _messages(body: ChatCompletionRequest) -> list[Any]:
    """The chat's messages, wholly read: pydantic leaves some contents for later."""
    try:
        return list(plain_messages(body.messages))
    except (TypeError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        message = f"messages: not a content that a message may have: {first}"
        raise ApiError(400, message, "messages", "invalid_value") from error


def _apply_defaults(body: Any, brought: Mapping[str, Any], defaults: AgentDefaults) -> None:
    """Fill in what the request does not bring, in place.

    Args:
        body: the request as parsed: vLLM has put defaults of its own into it.
        brought: the JSON of the same request.
        defaults: of the agent.
    """
    if isinstance(body, ChatCompletionRequest):
        body.messages = with_system_prompt(body.messages, defaults.system_prompt)
    for name, value in missing_sampling(brought, defaults.sampling).items():
        setattr(body, name, value)


def _prompt(body: Any) -> str | list[int] | None:
    """The prompt, if it is a single one, to be compared with others."""
    if isinstance(body, ChatCompletionRequest):
        return chat_text(body.messages)
    return single_prompt(body.prompt)


async def _events(first: Any, rest: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    """The stream's events; vLLM ends it itself with `[DONE]`."""
    yield _event(first)
    async for part in rest:
        yield _event(part)


def _event(part: Any) -> str:
    if isinstance(part, list):
        return "".join(map(_event, part))
    if isinstance(part, str):
        return part
    return f"data: {part.model_dump_json()}\n\n"


class ApiError(Exception):
    """An answer other than 200, in OpenAI's form.

    Args:
        status: the HTTP status.
        message: what is wrong and what is allowed.
        param: path of the field in the body, if one is to blame.
        code: a word for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message, param, code)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_response(self) -> JSONResponse:
        """The HTTP answer."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, _type_of(self.status)),
            "param": self.param,
            "code": self.code,
        }
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse({"error": error}, self.status, headers)


_TYPES = {403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
}


def _type_of(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def _from_engine(response: ErrorResponse) -> ApiError:
    error = response.error
    return _refused(int(error.code), error.message, error.param)


def _from_client_error(error: VLLMClientError) -> ApiError:
    return _refused(400, str(error.args[0] if error.args else error), _parameter(error))


def _parameter(error: VLLMClientError) -> str | None:
    parameter = getattr(error, "parameter", None)  # not every client error names one
    return None if parameter is None else str(parameter)


def _refused(status: int, message: str, param: str | None) -> ApiError:
    if status == 400 and "maximum context length" in message:
        return ApiError(status, message, param or "prompt", "context_length_exceeded")
    return ApiError(status, _without_parameter(message), param, _CODES.get(status))


def _without_parameter(message: str) -> str:
    """The message without vLLM's ` (parameter=..., value=...)`, which `param` says already."""
    return message.partition(" (parameter=")[0]


def make_api() -> FastAPI:
    """The FastAPI application whose every error has OpenAI's form."""
    api = FastAPI(title="kvrelay")

    @api.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.to_response()

    @api.exception_handler(RequestError)
    async def _request_error(_: Request, error: RequestError) -> JSONResponse:
        return _refused(error.status, error.message, error.param).to_response()

    @api.exception_handler(VLLMClientError)
    async def _client_error(_: Request, error: VLLMClientError) -> JSONResponse:
        return _from_client_error(error).to_response()

    @api.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _from_validation(error.errors()).to_response()

    @api.exception_handler(HTTPException)
    @api.exception_handler(HTTPStatus.NOT_FOUND)
    @api.exception_handler(HTTPStatus.METHOD_NOT_ALLOWED)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return ApiError(error.status_code, message).to_response()

    @api.exception_handler(Exception)
    async def _unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "internal error; the ingress's log has the details"
        return ApiError(500, message).to_response()

    return api


def _from_validation(errors: list[Any]) -> ApiError:
    """The first problem that FastAPI found in the body."""
    first: Mapping[str, Any] = errors[0] if errors else {"loc": (), "msg": "invalid request"}
    loc = tuple(part for part in first["loc"] if part != "body" and not _is_union_tag(part))
    param = format_path(loc) or None
    cause = (first.get("ctx") or {}).get("error")
    if isinstance(cause, VLLMClientError):
        return _from_client_error(cause)
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, param, "invalid_value")


def _is_union_tag(part: int | str) -> bool:
    """Whether pydantic put the name of a type there, not of a field."""
    if isinstance(part, int):
        return False
    return not part.isidentifier() or part[0].isupper() or part in {"str", "int", "float", "bool"}
