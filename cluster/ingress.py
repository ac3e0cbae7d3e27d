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
from ray.serve.llm.ingress import OpenAiIngress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError

from kvrelay.cluster.config_errors import format_path
from kvrelay.cluster.decisions import Found, find

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
    """Routes a request to the agent that its `model` names."""

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
        return await self._answer(await _parse(request, ChatCompletionRequest), "chat", request)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`; `prompt` may be token ids."""
        return await self._answer(await _parse(request, CompletionRequest), "completions", request)

    async def decisions(self, request: Request, answer: str) -> Response:
        """`GET /v1/kvrelay/decisions/{id}`: the records of an answer, streamed ones included."""
        _require_operator(request)
        handles = {
            agent: handle
            for agent, handle in self._default_serve_handles.items()
            if self._model_cards[agent]["relay"]
        }
        found = await find(handles, answer)
        if not found.records:
            raise _no_record(answer, found)
        return JSONResponse({"object": "list", "id": answer, "data": found.records})

    async def _get_model_id(self, model: str | None) -> str:
        if model in self._model_cards:
            return str(model)
        agents = ", ".join(sorted(self._model_cards))
        if model is None:
            raise ApiError(400, f"give model; agents: {agents}", "model", "missing_model")
        message = f"the model '{model}' does not exist; agents: {agents}"
        raise ApiError(404, message, "model", "model_not_found")

    async def _answer(self, body: Any, method: str, request: Request) -> Response:
        """The agent's answer: JSON, or server-sent events if it is a stream."""
        parts = self._get_response(body=body, call_method=method, raw_request=request)
        try:
            first = await anext(parts)
        except VLLMClientError as error:
            raise _from_client_error(error) from error
        head = first[0] if isinstance(first, list) else first
        if isinstance(head, ErrorResponse):
            raise _from_engine(head)
        if isinstance(head, BaseModel):
            return JSONResponse(head.model_dump())
        return StreamingResponse(_events(first, parts), media_type="text/event-stream")


def _require_operator(request: Request) -> None:
    """Refuse who is not an operator: records tell what others have asked.

    Permission has no form yet, so nobody is refused.
    """


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
        return model.model_validate(await request.json())
    except ValidationError as error:
        raise _from_validation(error.errors()) from error
    except VLLMClientError as error:
        raise _from_client_error(error) from error
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", None, "invalid_json") from error
    except (TypeError, AttributeError, KeyError) as error:
        message = f"the body is not what this endpoint takes: {error}"
        raise ApiError(400, message, None, "invalid_value") from error


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
        return JSONResponse({"error": error}, status_code=self.status)


_TYPES = {403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


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
    codes = {400: "invalid_value", 403: "permission_denied", 404: "not_found"}
    return ApiError(status, _without_parameter(message), param, codes.get(status))


def _without_parameter(message: str) -> str:
    """The message without vLLM's ` (parameter=..., value=...)`, which `param` says already."""
    return message.partition(" (parameter=")[0]


def make_api() -> FastAPI:
    """The FastAPI application whose every error has OpenAI's form."""
    api = FastAPI(title="kvrelay")

    @api.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.to_response()

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
