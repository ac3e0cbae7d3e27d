"""The audit's client: streams that are timed token by token, and the record of each afterwards.

Nothing that is timed is told by the engine: first token, last token and their number are seen from
here. vLLM's stream has no field for the record of relay, so it is asked for when the answer is
complete, where it disturbs nobody (`GET /v1/kvrelay/decisions/{id}`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.answers import AnswerClient
from kvrelay.bench.audit.workload.quality import Output
from kvrelay.bench.client import TIMEOUT_S
from kvrelay.bench.errors import BenchError
from kvrelay.cluster.access import OPERATOR_HEADER

TOP_LOGPROBS = 20  # as many as vLLM gives
_TRIES = 3
_TOKEN_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class Reply:
    """One timed request.

    Attributes:
        answer: id of the response.
        ttft_s, e2e_s: from sending it to its first token, and to its end.
        output: ids that were written, with the logprobs of the likeliest at each place.
        text: the same as text.
        cached_tokens: prompt tokens that the engine did not compute, by vLLM's own count.
    """

    answer: str
    ttft_s: float
    e2e_s: float
    output: Output
    text: str
    cached_tokens: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids that were written."""
        return self.output.tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Rate at which tokens followed the first one; None if there is just one."""
        rest_s = self.e2e_s - self.ttft_s
        return (len(self.tokens) - 1) / rest_s if len(self.tokens) > 1 and rest_s > 0 else None


class AuditClient(AnswerClient):
    """An `AnswerClient` that also streams, for several threads at once."""

    def __init__(self, url: str, operator_token: str) -> None:
        """As `BenchClient`; records need the operator's token."""
        import httpx

        super().__init__(url, operator_token)
        self._records = httpx.Client(
            base_url=url,
            trust_env=False,
            timeout=TIMEOUT_S,
            headers={OPERATOR_HEADER: operator_token},
        )

    def close(self) -> None:
        self._records.close()
        super().close()

    def ask(
        self, agent: str, prompt: Sequence[int], mode: str, salt: str, max_tokens: int
    ) -> Reply:
        """Stream so many tokens, greedily.

        Raises:
            BenchError: the agent does not answer, writes fewer, or does not count what it had.
        """
        import httpx
        from openai import APIError

        start_s = time.perf_counter()
        try:
            chunks = [
                (time.perf_counter() - start_s, chunk)
                for chunk in self._stream(
                    agent,
                    prompt,
                    max_tokens,
                    mode=mode,
                    salt=salt,
                    ignore_eos=True,
                    logprobs=TOP_LOGPROBS,
                    # `return_token_ids` would send the whole prompt back with the first token.
                    return_tokens_as_token_ids=True,
                )
            ]
        except (APIError, httpx.HTTPError) as error:  # it broke off
            raise BenchError(f"agent '{agent}' failed: {error}") from error
        e2e_s = time.perf_counter() - start_s
        ttft_s: float | None = None
        usage = None
        tokens: list[int] = []
        text, logprobs = "", list[dict[int, float]]()
        for come_s, chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.text
                if choice.logprobs is None or not choice.logprobs.tokens:
                    continue
                ttft_s = come_s if ttft_s is None else ttft_s
                tokens += map(_id, choice.logprobs.tokens)
                logprobs += map(_by_id, choice.logprobs.top_logprobs or [])
        if ttft_s is None or not len(tokens) == len(logprobs) == max_tokens:
            raise BenchError(
                f"agent '{agent}' sent {len(tokens)} of {max_tokens} tokens, and "
                f"{len(logprobs)} logprobs"
            )
        details = usage.prompt_tokens_details if usage is not None else None
        if details is None or details.cached_tokens is None:
            raise BenchError(f"agent '{agent}' does not count cached tokens")
        answer, cached_tokens = chunks[0][1].id, int(details.cached_tokens)
        output = Output(tuple(tokens), tuple(logprobs))
        return Reply(answer, ttft_s, e2e_s, output, text, cached_tokens)

    def record_of(self, answer: str) -> Mapping[str, Any]:
        """The record of a streamed answer.

        Raises:
            BenchError: there is none.
        """
        found = None
        for _ in range(_TRIES):
            found = self._records.get(f"/kvrelay/decisions/{answer}")
            if found.status_code == 200 and (records := found.json()["data"]):
                return dict(records[0])
        reason = f"status {found.status_code}" if found is not None else "no answer"
        raise BenchError(f"answer '{answer}' has no record of relay ({reason})")


def _id(name: str) -> int:
    return int(name.removeprefix(_TOKEN_ID))


def _by_id(logprobs: Mapping[str, float]) -> dict[int, float]:
    """`{"token_id:12": -0.1}` with the numbers as keys."""
    return {_id(name): value for name, value in logprobs.items()}
