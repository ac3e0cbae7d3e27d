"""Modes that an operator may ask for: what they load, what they say, and that they are exact."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import BLOCK, Engine, text_tokens

Pair = tuple[Engine, Engine]
Record = dict[str, Any]
OTHER = [7, 11, 13, 17]
MORE = [19, 23, 29, 31]  # so that the tail which the former leave is no match
BLOCK_BYTES = 16384
SET_POLICY = """
from kvrelay.policies import parse_policy
half = driver.scheduler.get_kv_connector()._scheduler
half._policy = half._audit._policy = parse_policy(policy)
"""
FLIP_ALL = """
slab = driver.scheduler.get_kv_connector()._scheduler._link.current.slab
for slot in range(slab.geometry.num_slots):
    slab.data(slot)[17] ^= 1
"""


@pytest.fixture
def unwilling(pair: Pair) -> Iterator[Pair]:
    """A pair of which B's policy relays nothing."""
    b = pair[1]
    b.execute(SET_POLICY, policy="never")
    yield pair
    b.execute(SET_POLICY, policy="always")


def computed(engine: Engine, prompt: list[int], local_tokens: int = 0) -> Record:
    """What the engine says to a prompt of which its own cache has so much, without relay."""
    options: Any = {"kvrelay": {"mode": "recompute"}, "salt": f"computed {local_tokens}"}
    if local_tokens:
        engine.one(prompt[:local_tokens], **options)
    return engine.one(prompt, max_tokens=16, logprobs=5, **options)


def parts(record: Record) -> tuple[int, int, int]:
    return record["local_tokens"], record["relayed_tokens"], record["recomputed_tokens"]


def test_relay_goes_over_the_policy(unwilling: Pair) -> None:
    a, b = unwilling
    prompt = text_tokens(200, 6 * BLOCK)
    a.one(prompt)
    refused = b.one(prompt + OTHER)["record"]
    assert (refused["reason"], refused["advised_tokens"]) == ("policy_never", 0)
    assert refused["found_place"] == "arena"
    assert (refused["found_tokens"], refused["found_bytes"]) == (6 * BLOCK, 6 * BLOCK_BYTES)
    b.reset()
    forced = b.one(prompt + MORE, max_tokens=16, logprobs=5, kvrelay={"mode": "relay"})
    record = forced["record"]
    assert (record["mode"], record["reason"]) == ("relay", "relayed")
    assert parts(record) == (0, 6 * BLOCK, len(OTHER))
    assert record["advised_tokens"] == 0
    # The same tokens computed as A's own cache has them: to the bit.
    local = a.one(prompt + MORE, max_tokens=16, logprobs=5, kvrelay={"mode": "recompute"})
    assert (forced["tokens"], forced["logprobs"]) == (local["tokens"], local["logprobs"])


@pytest.mark.parametrize("mode", ["relay", "lookup_only", "pull_and_discard"])
def test_no_mode_goes_over_a_safety_rule(pair: Pair, mode: str) -> None:
    a, b = pair
    prompt = text_tokens(201, 4 * BLOCK)
    a.one(prompt)
    half = "driver.scheduler.get_kv_connector()._scheduler.breaker._open_until_s"
    b.execute(f"{half} = float('inf')")
    record = b.one(prompt + OTHER, kvrelay={"mode": mode})["record"]
    b.execute(f"{half} = float('-inf')")
    assert (record["mode"], record["reason"]) == (mode, "breaker_open")
    assert (record["num_bytes"], record["relayed_tokens"]) == (0, 0)
    plain = b.one(prompt, prompt_logprobs=1, kvrelay={"mode": mode})["record"]
    assert plain["reason"] == "unsupported_request"


@pytest.mark.parametrize("local_blocks", [0, 2])
def test_lookup_only_says_what_it_does_not_take(pair: Pair, local_blocks: int) -> None:
    a, b = pair
    prompt = text_tokens(202 + local_blocks, 6 * BLOCK)
    local = local_blocks * BLOCK
    if local:
        b.one(prompt[:local])
    a.one(prompt)
    reference = computed(b, prompt + OTHER, local)
    options: Any = {"max_tokens": 16, "logprobs": 5, "kvrelay": {"mode": "lookup_only"}}
    result = b.one(prompt + OTHER, **options)
    record = result["record"]
    assert (record["reason"], record["decision"]["arm"]) == ("mode_lookup_only", "recompute")
    assert parts(record) == (local, 0, 6 * BLOCK - local + len(OTHER))
    assert (record["num_bytes"], record["load_path"]) == (0, None)
    assert record["found_tokens"] == record["advised_tokens"] == 6 * BLOCK - local
    assert result["cached"] == local
    assert (result["tokens"], result["logprobs"]) == (reference["tokens"], reference["logprobs"])


@pytest.mark.parametrize("local_blocks", [0, 2])
def test_pull_and_discard_loads_everything_and_computes_it_again(
    unwilling: Pair, local_blocks: int
) -> None:
    a, b = unwilling
    prompt = text_tokens(210 + local_blocks, 6 * BLOCK)
    local = local_blocks * BLOCK
    if local:
        b.one(prompt[:local])
    a.one(prompt)
    reference = computed(b, prompt + OTHER, local)
    options: Any = {"max_tokens": 16, "logprobs": 5, "kvrelay": {"mode": "pull_and_discard"}}
    result = b.one(prompt + OTHER, **options)
    record = result["record"]
    assert (record["mode"], record["reason"]) == ("pull_and_discard", "mode_discard")
    assert record["decision"]["num_tokens"] == 6 * BLOCK - local
    assert parts(record) == (local, 0, 6 * BLOCK - local + len(OTHER))
    assert record["num_bytes"] == (6 - local_blocks) * BLOCK_BYTES
    assert (record["load_path"], record["tail_tokens"]) == ("arena", 0)
    assert record["copy_s"] > 0
    assert record["load_s"] > 0
    assert result["cached"] == local, "vLLM counts none of it as taken over"
    assert (result["tokens"], result["logprobs"]) == (reference["tokens"], reference["logprobs"])


def test_what_is_discarded_on_purpose_is_no_fault(pair: Pair) -> None:
    """More of them than the faults that would open the breaker."""
    a, b = pair
    prompts = [text_tokens(seed, 2 * BLOCK) for seed in range(220, 227)]
    a.generate(prompts)
    results = b.generate([p + OTHER for p in prompts], kvrelay={"mode": "pull_and_discard"})
    assert {r["record"]["reason"] for r in results} == {"mode_discard"}
    assert results[-1]["record"]["overhead"]["faults"] == 0
    b.reset()
    assert b.one(prompts[0] + OTHER)["record"]["reason"] == "relayed"


def test_a_pull_that_fails_says_so(pair: Pair, store) -> None:
    a, b = pair
    prompt = text_tokens(230, 4 * BLOCK)
    a.one(prompt)
    a.execute(FLIP_ALL)
    record = b.one(prompt + OTHER, kvrelay={"mode": "pull_and_discard"})["record"]
    store.drop(None)
    assert record["reason"] == "load_corrupt"
    assert parts(record) == (0, 0, 4 * BLOCK + len(OTHER))


def test_a_client_that_leaves_while_pulling_frees_everything(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(231, 4 * BLOCK)
    a.one(prompt)
    request_id = b.add(prompt + OTHER, kvrelay={"mode": "pull_and_discard"})
    b.step()
    b.abort(request_id)
    b.run()
    state = b.state()
    assert state == dict.fromkeys(state, 0)


def test_a_pull_is_of_other_nodes_blocks_too(distant_pair: Pair) -> None:
    a, b = distant_pair
    prompt = text_tokens(232, 6 * BLOCK)
    a.one(prompt)
    pulled = b.one(prompt + OTHER, kvrelay={"mode": "pull_and_discard"})["record"]
    assert (pulled["reason"], pulled["load_path"]) == ("mode_discard", "nodes")
    assert pulled["num_bytes"] == pulled["fetched_bytes"] == 6 * BLOCK_BYTES
    assert tuple(pulled["sources"]) == ("n1",)
    assert pulled["transfer_s"] > 0
    assert pulled["relayed_tokens"] == 0
