"""Whole answers of one token, timed: with vLLM's count of cached tokens and the record of relay.

A stream would show the token a few milliseconds sooner, but has no field for the record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.bench.client import BenchClient
from kvrelay.bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class Answer:
    """One timed request.

    Attributes:
        seconds: from sending the request to the whole answer.
        cached_tokens: prompt tokens that the engine did not compute, by vLLM's own count.
        record: of relay; empty if the agent has no connector.
    """

    seconds: float
    cached_tokens: int
    record: Mapping[str, Any]


class AnswerClient(BenchClient):
    """A `BenchClient` that also asks without streaming."""

    def answer(
        self, agent: str, prompt: Sequence[int], mode: str | None = None, salt: str | None = None
    ) -> Answer:
        """Ask for one token and time the answer.

        Args:
            agent: who is asked.
            prompt: token ids.
            mode: `recompute` refuses relay; None says nothing about it.
            salt: keeps the prompt apart from equal ones, in caches and stores.

        Raises:
            BenchError: the agent does not answer, or does not say how much it had cached.
        """
        start_s = time.perf_counter()
        answer = self._create(agent, prompt, 1, mode=mode, salt=salt)
        seconds = time.perf_counter() - start_s
        details = answer.usage and answer.usage.prompt_tokens_details
        if details is None or details.cached_tokens is None:
            raise BenchError(f"agent '{agent}' does not count cached tokens")
        params = answer.model_extra.get("kv_transfer_params") or {}
        return Answer(seconds, int(details.cached_tokens), dict(params.get("kvrelay") or {}))
