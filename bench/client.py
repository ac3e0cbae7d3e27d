"""The benchmarks' client: OpenAI's, at the HTTP endpoint, with nothing kept or repeated."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.errors import BenchError
from kvrelay.cluster.access import OPERATOR_HEADER

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class FirstToken:
    """One timed request.

    Attributes:
        ttft_s: from sending the request to the first token's event.
        cached_tokens: prompt tokens that the engine did not compute, by vLLM's own count.
    """

    ttft_s: float
    cached_tokens: int


class BenchClient:
    """Asks an agent for tokens, over one connection that is kept open."""

    def __init__(self, url: str, operator_token: str | None = None) -> None:
        """Take the endpoint's base URL, such as `http://127.0.0.1:8000/v1`, and the operator's
        token, for modes that need it.
        """
        import httpx
        from openai import OpenAI

        # Ray sets the level of the root logger, and httpx would then tell of every request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # A proxy of the environment has nothing to do with a server of our own.
        http = httpx.Client(trust_env=False, timeout=TIMEOUT_S)
        self._client = OpenAI(
            base_url=url,
            api_key="none",
            max_retries=0,
            http_client=http,
            default_headers={OPERATOR_HEADER: operator_token} if operator_token else None,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def first_token(
        self, agent: str, prompt: Sequence[int], mode: str | None = None, salt: str | None = None
    ) -> FirstToken:
        """Stream one token and time it.

        Args:
            agent: who is asked.
            prompt: token ids.
            mode: `recompute` refuses relay; None says nothing about it.
            salt: keeps the prompt apart from equal ones in the engine's own cache.

        Raises:
            BenchError: the agent does not answer, or does not say how much it had cached.
        """
        start_s = time.perf_counter()
        ttft_s: float | None = None
        usage = None
        for chunk in self._stream(agent, prompt, 1, mode=mode, salt=salt):
            if ttft_s is None and chunk.choices:
                ttft_s = time.perf_counter() - start_s
            usage = chunk.usage or usage
        if ttft_s is None or usage is None:
            raise BenchError(f"agent '{agent}' sent no token, or no usage")
        details = usage.prompt_tokens_details
        if details is None or details.cached_tokens is None:
            raise BenchError(f"agent '{agent}' does not count cached tokens")
        if usage.prompt_tokens != len(prompt):
            raise BenchError(f"agent '{agent}' counts {usage.prompt_tokens} prompt tokens")
        return FirstToken(ttft_s, int(details.cached_tokens))

    def record(self, agent: str, prompt: Sequence[int]) -> Mapping[str, Any]:
        """Ask for one token without streaming; the answer's record of relay.

        Raises:
            BenchError: there is none.
        """
        answer = self._create(agent, prompt, 1)
        record = (answer.model_extra.get("kv_transfer_params") or {}).get("kvrelay")
        if not record:
            raise BenchError(f"agent '{agent}' answers without a record of relay")
        return dict(record)

    def token_times_s(
        self, agent: str, prompt: Sequence[int], max_tokens: int, stop: Callable[[], bool]
    ) -> Iterator[float]:
        """Arrival of each output token on `time.perf_counter`, until `stop()` or the end."""
        for chunk in self._stream(agent, prompt, max_tokens, ignore_eos=True):
            if chunk.choices:
                yield time.perf_counter()
            if stop():
                return

    def _stream(
        self,
        agent: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        mode: str | None = None,
        salt: str | None = None,
        **extra: Any,
    ) -> Iterator[Any]:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        with self._create(
            agent, prompt, max_tokens, mode=mode, salt=salt, options=options, **extra
        ) as stream:
            yield from stream

    def _create(
        self,
        agent: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        mode: str | None = None,
        salt: str | None = None,
        options: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> Any:
        from openai import APIError

        if mode is not None:
            extra["kv_transfer_params"] = {"kvrelay": {"mode": mode}}
        if salt is not None:
            extra["cache_salt"] = salt
        # The client looks at every element of `prompt` by itself, tens of milliseconds for
        # thousands of token ids; `extra_body` goes out as it is.
        extra["prompt"] = list(prompt)
        try:
            return self._client.completions.create(
                model=agent,
                prompt="",
                max_tokens=max_tokens,
                temperature=0,
                extra_body=extra,
                **(options or {}),
            )
        except APIError as error:
            raise BenchError(f"agent '{agent}' failed: {error.message}") from error
