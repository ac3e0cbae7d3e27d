"""The connector's contract (DESIGN: what a connector must not do), on a real EngineCore."""

from pathlib import Path

import pytest
from harness import BLOCK, Engine, text_tokens, tiny_llama

Pair = tuple[Engine, Engine]
OTHER = [7, 11, 13, 17]
COUNT_PREEMPTIONS = """
driver.preemptions = 0
real = driver.scheduler._preempt_request
def counting(*args, **kwargs):
    driver.preemptions += 1
    return real(*args, **kwargs)
driver.scheduler._preempt_request = counting
"""


def test_prompt_logprobs_are_neither_relayed_nor_saved(pair: Pair, store) -> None:
    a, b = pair
    prompt = text_tokens(60, 4 * BLOCK)
    before = store.stats()["blocks"]
    assert a.one(prompt, prompt_logprobs=1)["record"]["reason"] == "unsupported_request"
    assert store.stats()["blocks"] == before
    a.one(prompt, salt=None)
    result = b.one(prompt + OTHER, prompt_logprobs=1, max_tokens=4)
    assert result["record"]["reason"] == "unsupported_request"
    assert result["record"]["relayed_tokens"] == 0


@pytest.mark.parametrize("kvrelay", [{"mode": "recompute"}, {"mode": 7}, [], "x", {"mode": None}])
def test_whatever_is_no_mode_recomputes(pair: Pair, kvrelay: object) -> None:
    a, b = pair
    prompt = text_tokens(61, 4 * BLOCK)
    a.one(prompt)
    record = b.one(prompt + OTHER, kvrelay=kvrelay)["record"]
    assert record["reason"] == "mode_recompute"
    assert record["recomputed_tokens"] == 4 * BLOCK + len(OTHER)


def test_chunked_prefill_publishes_every_block(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(62, 3000)  # more than a step's 2048 tokens
    own = a.one(prompt, max_tokens=4)
    result = b.one(prompt, max_tokens=4)
    assert result["record"]["relayed_tokens"] == 2999
    assert a.block_digests(prompt) == b.block_digests(prompt)
    assert len(own["tokens"]) == len(result["tokens"]) == 4


def test_others_go_on_while_a_request_loads(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(63, 6 * BLOCK)
    a.one(prompt)
    b.execute("""
import time
blocks = driver.worker_half._blocks
real = type(blocks).load
def slow(block_id, address):
    time.sleep(0.1)
    return real(blocks, block_id, address)
blocks.load = slow
""")
    slow = b.add(prompt + OTHER, max_tokens=2)
    quick = b.add(text_tokens(64, 40), max_tokens=4)
    finished = []
    while len(finished) < 2:
        finished += b.step()
    b.execute("del driver.worker_half._blocks.load")
    assert finished == [quick, slow]
    assert b.result(slow)["record"]["relayed_tokens"] == 6 * BLOCK


def test_the_cap_of_loads_in_flight_recomputes(model: Path, server, address: str) -> None:
    a = Engine(model, address)
    b = Engine(model, address, {"max_loads_in_flight": 2})
    prompts = [text_tokens(seed, 4 * BLOCK) for seed in range(70, 75)]
    a.generate(prompts)
    reasons = [r["record"]["reason"] for r in b.generate([p + OTHER for p in prompts])]
    assert sorted(reasons) == ["loads_in_flight"] * 3 + ["relayed"] * 2
    a.close()
    b.close()


@pytest.mark.parametrize(
    "scheduler",
    ["vllm.v1.core.sched.scheduler.Scheduler", "vllm.v1.core.sched.async_scheduler.AsyncScheduler"],
)
def test_preemption_and_resumption(model: Path, server, address: str, scheduler: str) -> None:
    """KV memory for 24 blocks and five requests that need eight each, twice over."""
    small = {
        "kv_cache_memory_bytes": 24 * 16384,
        "max_model_len": 512,
        "scheduler_cls": scheduler,
        "max_num_batched_tokens": 256,
    }
    a, b = Engine(model, address, **small), Engine(model, address, **small)
    prompts = [text_tokens(seed, 4 * BLOCK) for seed in range(80, 85)]
    a.execute(COUNT_PREEMPTIONS)
    produced = a.generate(prompts, max_tokens=4 * BLOCK)
    assert a.execute("result = driver.preemptions") > 0
    again = b.generate(prompts, max_tokens=4 * BLOCK)
    for first, second in zip(produced, again, strict=True):
        assert len(first["tokens"]) == len(second["tokens"]) == 4 * BLOCK
    # Each alone, from the store: the published blocks are those of the right tokens.
    for prompt, result in zip(prompts, produced, strict=True):
        b.run()
        b.reset()
        continued = b.one(prompt + result["tokens"][: 3 * BLOCK] + OTHER, max_tokens=8)
        assert continued["record"]["relayed_tokens"] > 0
        relayed_blocks = b.block_digests((prompt + result["tokens"])[: 7 * BLOCK] + OTHER)
        assert len(relayed_blocks) >= 7
    for engine in (a, b):
        engine.run()
        state = engine.state()
        assert state == dict.fromkeys(state, 0)
        engine.close()


def test_async_scheduler_publishes_only_what_is_known(model: Path, server, address: str) -> None:
    scheduler = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    a = Engine(model, address, scheduler_cls=scheduler)
    b = Engine(model, address, scheduler_cls=scheduler)
    prompt = text_tokens(90, 2 * BLOCK + 5)
    own = a.one(prompt, max_tokens=40 + 16, logprobs=5)
    a.run()
    a.reset()
    result = b.one(prompt + own["tokens"][:40], max_tokens=16, logprobs=5)
    assert result["record"]["relayed_tokens"] >= 3 * BLOCK
    assert result["tokens"] == own["tokens"][40:]
    assert result["logprobs"] == own["logprobs"][40:]
    a.close()
    b.close()


def test_other_weights_never_meet(tmp_path: Path, model: Path, server, address: str) -> None:
    a = Engine(model, address)
    b = Engine(tiny_llama(tmp_path, seed=1), address)
    prompt = text_tokens(91, 4 * BLOCK)
    a.one(prompt)
    assert b.one(prompt + OTHER)["record"]["reason"] == "no_source"
    a.close()
    b.close()


def test_hybrid_model_starts_with_relay_off(tmp_path: Path, address: str, server) -> None:
    engine = Engine(tiny_llama(tmp_path, window=64), address)
    prompt = text_tokens(92, 4 * BLOCK)
    first = engine.one(prompt, max_tokens=4)
    assert engine.one(prompt, max_tokens=4)["tokens"] == first["tokens"]
    assert first["record"]["reason"] == "unsupported_model"
    assert first["record"]["recomputed_tokens"] == 4 * BLOCK
    engine.close()


def test_reset_of_the_connector_cache_forgets_what_was_published(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(93, 4 * BLOCK)
    a.one(prompt)
    fingerprint = b.execute(
        "h = driver.scheduler.get_kv_connector()._scheduler\nresult = h._fingerprint\nh.reset()"
    )
    record = b.one(prompt + OTHER)["record"]
    b.execute(
        "driver.scheduler.get_kv_connector()._scheduler._fingerprint = value", value=fingerprint
    )
    assert record["reason"] == "no_source"


def test_the_record_carries_the_ingresss_labels(pair: Pair) -> None:
    a, _ = pair
    prompt = text_tokens(66, BLOCK + 5)
    labels = {"agent": "named", "minhash_jaccard": 0.3, "embedding_cosine": 0.8}
    record = a.one(prompt, labels=labels)["record"]
    assert (record["agent"], record["served_by"]) == ("named", "a")
    assert (record["minhash_jaccard"], record["embedding_cosine"]) == (0.3, 0.8)
    assert record["similarity_band"] == "mid"
    record = a.one(prompt, labels={"agent": 7})["record"]
    assert (record["agent"], record["similarity_band"]) == ("a", None)
