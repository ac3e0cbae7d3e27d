"""Exactness with the demo model through the whole app: tokens and log probabilities, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
from calls import complete, prompt_ids, publish, record
from openai import OpenAI

from kvrelay.bench.settle import StoreWatch

STEPS = 16


def outcome(answer: Any) -> tuple[list[int], list[dict[str, float]]]:
    choice = answer.choices[0]
    return choice.token_ids, choice.logprobs.top_logprobs


@pytest.mark.parametrize("output", [2, 40])
@pytest.mark.parametrize("length", [130, 383, 640])
def test_tail_equals_the_producer_going_on(
    client: OpenAI, store: StoreWatch, length: int, output: int
) -> None:
    prompt = prompt_ids(1000 + length + output, length)
    own = publish(store, client, "a", prompt, max_tokens=output + STEPS, logprobs=5)
    tokens, logprobs = outcome(own)
    continued = complete(client, "b", prompt + tokens[:output], max_tokens=STEPS, logprobs=5)
    assert record(continued)["relayed_tokens"] == length + output - 1
    assert outcome(continued) == (tokens[output:], logprobs[output:])


@pytest.mark.parametrize("length", [127, 128, 129, 512])
def test_relay_equals_a_local_hit(client: OpenAI, store: StoreWatch, length: int) -> None:
    """Both compute the same prompt first: of one token more the KV may differ in its last bits."""
    whole = length // 128 * 128
    first = prompt_ids(2000 + length, length)
    publish(store, client, "a", first)
    complete(client, "plain", first)
    prompt = first[:whole] + prompt_ids(3000 + length, 32)
    relayed = complete(client, "b", prompt, max_tokens=32, logprobs=5)
    local = complete(client, "plain", prompt, max_tokens=32, logprobs=5)
    assert record(relayed)["relayed_tokens"] == whole
    assert outcome(relayed) == outcome(local)
