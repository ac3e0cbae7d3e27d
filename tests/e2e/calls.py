"""Requests that several end-to-end tests make."""

from __future__ import annotations

import random
import time
from typing import Any

from openai import OpenAI


def prompt_ids(seed: int, num_tokens: int) -> list[int]:
    """Token ids that no other test uses."""
    chooser = random.Random(seed)
    return [chooser.randrange(1000, 40_000) for _ in range(num_tokens)]


OPERATOR_TOKEN = "end to end"
OPERATOR = {"X-Kvrelay-Operator": OPERATOR_TOKEN}


def complete(
    client: OpenAI, agent: str, prompt: list[int], mode: str | None = None, **options: Any
) -> Any:
    extra: dict[str, Any] = {"return_token_ids": True}
    if mode is not None:
        extra["kv_transfer_params"] = {"kvrelay": {"mode": mode}}
    options = {"max_tokens": 4, "temperature": 0, **options}
    return client.completions.create(model=agent, prompt=prompt, extra_body=extra, **options)


def record(answer: Any) -> dict[str, Any]:
    content: dict[str, Any] = answer.kv_transfer_params["kvrelay"]
    return content


def settle() -> None:
    """Saves go on for a moment after the answer; nothing outside shows when they are done."""
    time.sleep(0.5)
