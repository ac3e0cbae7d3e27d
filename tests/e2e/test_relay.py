"""Relay as a caller sees it: the record, and tokens that another agent has computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import committed, complete, prompt_ids, publish, record
from openai import OpenAI

from kvrelay.agents.layout import ChatLayout
from kvrelay.agents.workflow import Pipeline, Step
from kvrelay.bench.hit import blocks_saved
from kvrelay.bench.settle import StoreWatch
from kvrelay.cluster.model import ensure_model

BLOCK = 128
pytest.importorskip("kvrelay.relay.connector", reason="the connector is not there yet")


def test_a_prompt_that_nobody_has_seen(client: OpenAI) -> None:
    prompt = prompt_ids(1, 300)
    content = record(complete(client, "a", prompt))
    assert content["agent"] == "a"
    assert content["reason"] == "no_source"
    assert content["prompt_tokens"] == content["recomputed_tokens"] == 300
    assert content["relayed_tokens"] == content["local_tokens"] == 0


def test_b_takes_over_what_a_has_computed(client: OpenAI, store: StoreWatch) -> None:
    prompt = prompt_ids(2, 1000)
    publish(store, client, "a", prompt)
    content = record(complete(client, "b", [*prompt, 5000]))
    assert content["reason"] == "relayed"
    assert content["relayed_tokens"] >= 1000 // BLOCK * BLOCK
    assert content["num_bytes"] > 0
    parts = ("local_tokens", "relayed_tokens", "recomputed_tokens")
    assert sum(content[part] for part in parts) == content["prompt_tokens"] == 1001


def test_the_relayed_answer_is_as_good(client: OpenAI, store: StoreWatch) -> None:
    text = "Water boils at one hundred degrees. Ice melts at zero degrees. " * 20
    layout = ChatLayout.load(ensure_model("demo"))
    prompt = layout.encode(text + "The sky is blue. The grass is")
    want = complete(client, "plain", prompt, max_tokens=1).choices[0].token_ids
    publish(store, client, "a", prompt[:-1])
    answer = complete(client, "b", prompt)
    assert record(answer)["relayed_tokens"] > 0
    assert answer.choices[0].token_ids[:1] == want


def test_recompute_takes_nothing(client: OpenAI) -> None:
    prompt = prompt_ids(3, 600)
    complete(client, "a", prompt)
    content = record(complete(client, "b", prompt, mode="recompute"))
    assert content["reason"] == "mode_recompute"
    assert content["relayed_tokens"] == 0
    assert content["mode"] == "recompute"


def test_salts_are_kept_apart(client: OpenAI, store: StoreWatch) -> None:
    prompt, since = prompt_ids(4, 600), committed(store)
    options: Any = {"prompt": prompt, "max_tokens": 1}
    client.completions.create(model="a", **options, extra_body={"cache_salt": "tenant-1"})
    store.wait(since, blocks_saved(600))
    for salt in ("tenant-2", None):
        extra = {} if salt is None else {"cache_salt": salt}
        answer = client.completions.create(model="b", **options, extra_body=extra)
        assert record(answer)["relayed_tokens"] == 0


def test_an_agent_without_connector_has_no_record(client: OpenAI) -> None:
    answer = complete(client, "plain", prompt_ids(5, 50), mode="auto")
    assert answer.kv_transfer_params is None


def test_similarity_is_measured_and_cannot_be_forged(client: OpenAI) -> None:
    prompt = prompt_ids(6, 400)
    complete(client, "b", prompt_ids(7, 400))
    assert record(complete(client, "a", prompt))["minhash_jaccard"] < 0.2
    forged = {"kvrelay_labels": {"agent": "plain", "minhash_jaccard": 0.5, "embedding_cosine": 1.0}}
    answer: Any = client.completions.create(
        model="b", prompt=prompt, max_tokens=1, extra_body={"kv_transfer_params": forged}
    )
    content = record(answer)
    assert (content["agent"], content["served_by"]) == ("b", "b")
    assert (content["minhash_jaccard"], content["embedding_cosine"]) == (1.0, None)
    assert content["similarity_band"] == "high"


def test_a_pipeline_hands_over_what_was_read_and_written(client: OpenAI) -> None:
    layout = ChatLayout.load(ensure_model("demo"))
    source = Path(__file__).read_text(encoding="utf-8")
    context = layout.truncate(source, 700)
    steps = [Step("a", "What does this do?", 24), Step("b", "What is missing?", 4)]
    first, second = Pipeline(steps, client, layout).run(context, cache_salt="pipeline")
    assert first.reason == "no_source"
    assert second.reason == "relayed"
    assert second.relayed_tokens is not None
    assert second.relayed_tokens >= len(first.prompt) // BLOCK * BLOCK
    assert second.prompt[: len(first.prompt) + len(first.output)] == first.prompt + first.output
