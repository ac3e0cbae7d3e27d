"""Requests that several end-to-end tests make."""

from __future__ import annotations

import random
import time
from typing import Any

from openai import OpenAI

from kvrelay.bench.hit import blocks_saved
from kvrelay.bench.settle import StoreWatch

STILL_S = 0.3


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


def committed(store: StoreWatch) -> int:
    """What the store has, once the saves of earlier requests are over: nothing has come of late."""
    count, still_since_s = store.committed(), time.monotonic()
    while time.monotonic() - still_since_s < STILL_S:
        time.sleep(0.02)
        if (now := store.committed()) != count:
            count, still_since_s = now, time.monotonic()
    return count


def publish(
    store: StoreWatch, client: OpenAI, agent: str, prompt: list[int], **options: Any
) -> Any:
    """An agent's answer to a new prompt, once the store has all that it computed for it."""
    since = committed(store)
    answer = complete(client, agent, prompt, **options)
    # Nothing is computed for the last token.
    store.wait(since, blocks_saved(len(prompt) + len(answer.choices[0].token_ids) - 1))
    return answer
