"""An engine's OpenAI API, as far as timing first tokens needs it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from kvrelay.bench.errors import BenchError
from kvrelay.cluster.errors import ConfigError

TIMEOUT_S = 120.0
_PATHS = ("completions", "chat/completions")
_NOT_THERE = (404, 405, 501)
_REFUSED = (401, 403)
_BAD_REQUEST = (400, 413, 422)


class TooLong(BenchError):
    """The engine refuses a prompt; most likely for its length."""


class FirstToken(NamedTuple):
    """What one prompt took."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int


class Endpoint:
    """One model of an OpenAI-compatible server, over a connection that is kept open."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Find the model.

        Args:
            url: base URL, such as `http://127.0.0.1:8000/v1`.
            model: as the server calls it; None: the only one that it has.
            api_key: sent as a bearer token.
            clock_s: times first tokens.

        Raises:
            ConfigError: the URL is none, the server has no such model, or wants another key.
            BenchError: nobody answers.
        """
        import httpx

        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url}: give a URL such as http://127.0.0.1:8000/v1")
        # Ray sets the level of the root logger, and httpx would then tell of every request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._url = url.rstrip("/")
        self._clock_s = clock_s
        self._path = _PATHS[0]
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the environment has nothing to do with an engine of one's own.
        self._http = httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=headers)
        try:
            card = self._card(model)
        except BaseException:
            self._http.close()
            raise
        self.model = str(card.get("id") or model)
        context = card.get("max_model_len")
        self.max_tokens = context if isinstance(context, int) and context > 0 else None
        self.root = card["root"] if isinstance(card.get("root"), str) else None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def first_token(self, prompt: str) -> FirstToken:
        """Stream one token and time it.

        Raises:
            TooLong: the prompt is refused.
            BenchError: there is no token, or no count of the prompt's.
        """
        try:
            return self._first_token(prompt)
        except _NoSuchPath:
            if self._path == _PATHS[-1]:
                raise BenchError(
                    f"{self._url} has neither {' nor '.join(_PATHS)}; give the base URL of an "
                    "OpenAI API, which mostly ends in /v1"
                ) from None
            self._path = _PATHS[-1]
            return self.first_token(prompt)

    def _first_token(self, prompt: str) -> FirstToken:
        chat = self._path != _PATHS[0]
        body = {
            "model": self.model,
            **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        seconds: float | None = None
        usage: Mapping[str, Any] = {}
        start_s = self._clock_s()
        where = f"{self._url}/{self._path}"
        with self._errors(), self._http.stream("POST", where, json=body) as answer:
            if answer.status_code >= 300:
                answer.read()
                self._refuse(answer.status_code, answer.text)
            for event in _events(answer.iter_lines()):
                if "error" in event:
                    raise BenchError(f"{self._url}: {_message(json.dumps(event))}")
                if seconds is None and any(map(_has_output, event.get("choices") or ())):
                    seconds = self._clock_s() - start_s
                usage = event.get("usage") or usage
        if seconds is None:
            raise BenchError(f"{self._url}: model {self.model} sent no token")
        if not isinstance(usage.get("prompt_tokens"), int):
            raise BenchError(
                f"{self._url} does not count the prompt's tokens; it has to know "
                "stream_options.include_usage, as vLLM and SGLang do"
            )
        details = usage.get("prompt_tokens_details") or {}
        return FirstToken(seconds, usage["prompt_tokens"], int(details.get("cached_tokens") or 0))

    def _card(self, model: str | None) -> Mapping[str, Any]:
        with self._errors():
            answer = self._http.get(f"{self._url}/models")
        if answer.status_code in _REFUSED:
            self._refuse(answer.status_code, answer.text)
        try:
            cards = {str(card["id"]): card for card in answer.json()["data"]}
        except (KeyError, TypeError, ValueError):
            if model is None:
                raise ConfigError(
                    f"{self._url}/models lists no models; give --model, and a URL that ends in /v1"
                ) from None
            return {}
        names = ", ".join(sorted(cards)) or "none"
        if model is None and len(cards) != 1:
            raise ConfigError(f"{self._url} has several models or none ({names}); give --model")
        if model is not None and model not in cards:
            raise ConfigError(f"--model {model}: {self._url} has {names}")
        return next(iter(cards.values())) if model is None else cards[model]

    def _refuse(self, status: int, text: str) -> NoReturn:
        message = _message(text)
        if status in _REFUSED:
            raise ConfigError(
                f"{self._url} wants another key ({status}: {message}); set OPENAI_API_KEY or "
                "give --api-key"
            )
        if status in _NOT_THERE and "model" not in message.lower():
            raise _NoSuchPath(message)
        if status in _BAD_REQUEST:
            raise TooLong(f"{self._url} refuses a prompt ({status}: {message})")
        raise BenchError(f"{self._url} answers {status}: {message}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the connection raises, in one line."""
        import httpx

        try:
            yield
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self._url}: {error}") from None
        except httpx.TimeoutException:
            raise BenchError(
                f"no answer from {self._url} within {TIMEOUT_S:.0f} s; is the engine busy or stuck?"
            ) from None
        except httpx.HTTPError as error:
            raise BenchError(
                f"no answer from {self._url} ({error or type(error).__name__}); is the engine up?"
            ) from None


class _NoSuchPath(BenchError):
    """The server does not have this part of the API."""


def _events(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """The JSON of a stream's server-sent events."""
    for line in lines:
        content = line.removeprefix("data:").strip()
        if not line.startswith("data:") or content == "[DONE]":
            continue
        try:
            event = json.loads(content)
        except ValueError:
            raise BenchError(f"not an OpenAI stream: {content[:80]!r}") from None
        if isinstance(event, dict):
            yield event


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether the engine has computed something: a chat's first chunk may tell the role alone."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or choice.get("finish_reason"))


def _message(text: str) -> str:
    """What a server says went wrong, in one line."""
    try:
        found = json.loads(text)
        found = found.get("error", found)
        text = str(found.get("message", found) if isinstance(found, dict) else found)
    except (AttributeError, ValueError):
        pass
    line = " ".join(text.split())
    return line[:200] or "no reason given"
