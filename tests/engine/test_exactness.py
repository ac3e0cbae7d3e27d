"""A relayed prefix is bit for bit what the engine would have had."""

from collections.abc import Iterator

import pytest
from harness import BLOCK, Engine, Settled, text_tokens
from nodes import wait_demoted

from kvrelay.relay.keys import request_salt

Pair = tuple[Engine, Engine]
OTHER = [7, 11, 13, 17]


NEAR = ["one-node", "one-node-encoded"]
DISTANT = ["memory-raw", "nixl-raw", "nixl-lz4", "nixl-split", "memory-raw-encoded"]
DISTANT += ["nixl-split-encoded"]


@pytest.fixture(params=NEAR + DISTANT)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A and B on one node, or each on its own, between stores without Ray (nodes.py).

    Whatever is saved is demoted before it is looked for, where the way ends so.
    """
    way: str = request.param
    is_encoded = way.endswith("-encoded")
    if is_encoded:
        request.getfixturevalue("demoting")
    if way in NEAR:
        near: Pair = request.getfixturevalue("near_pair")
        server = request.getfixturevalue("server")
        yield tuple(Settled(e, lambda: wait_demoted(server)) for e in near) if is_encoded else near
        return
    distant = request.getfixturevalue("distant_pair")
    wire = request.getfixturevalue("wire")
    nodes = wire.nodes.values()
    for node in nodes:
        routes = node.transfers.routes
        routes.transport, routes.codec = way.removesuffix("-encoded").split("-")

    def settle() -> None:
        for node in nodes:
            wait_demoted(node.server)

    yield tuple(Settled(e, settle) for e in distant) if is_encoded else distant
    fetched = wire.nodes["n2"].transfers.counters
    assert fetched["failed_transfer_failed"] == fetched["failed_load_corrupt"] == 0


@pytest.mark.parametrize(
    "length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1, 20 * BLOCK]
)
def test_relay_equals_a_local_hit(pair: Pair, length: int) -> None:
    a, b = pair
    whole = length // BLOCK * BLOCK
    prompt = text_tokens(length, length)
    continued = prompt[:whole] + OTHER
    a.one(prompt)
    relayed = b.one(continued, max_tokens=32, logprobs=5)
    # The reference: A's own prefix cache, for the same number of computed tokens.
    local = a.one(continued, max_tokens=32, logprobs=5, kvrelay={"mode": "recompute"})
    assert local["cached"] == whole
    assert relayed["record"]["relayed_tokens"] == whole
    assert relayed["tokens"] == local["tokens"]
    assert relayed["logprobs"] == local["logprobs"]


@pytest.mark.parametrize("output", [2, 7, BLOCK - 1, BLOCK, BLOCK + 5])
@pytest.mark.parametrize(
    "length",
    [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 9, 5 * BLOCK - 3, 5 * BLOCK, 11 * BLOCK + 17],
)
def test_tail_equals_the_producer_going_on(pair: Pair, length: int, output: int) -> None:
    a, b = pair
    prompt = text_tokens(100 + length, length)
    own = a.one(prompt, max_tokens=output + 16, logprobs=5)
    a.reset()
    a.one(prompt, max_tokens=output)  # so that A's tail ends where B's prompt does
    result = b.one(prompt + own["tokens"][:output], max_tokens=16, logprobs=5)
    assert result["record"]["relayed_tokens"] == length + output - 1, result["record"]
    assert result["tokens"] == own["tokens"][output:]
    assert result["logprobs"] == own["logprobs"][output:]


def test_generated_blocks_are_relayed(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(1, BLOCK)
    output = a.one(prompt, max_tokens=3 * BLOCK)["tokens"]
    record = b.one(prompt + output + OTHER)["record"]
    assert record["relayed_tokens"] == 4 * BLOCK - 1
    assert record["reason"] == "relayed"


def test_divergence_inside_a_block_reuses_its_head(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(2, 4 * BLOCK)
    a.one(prompt)
    changed = prompt[: 3 * BLOCK + 10] + OTHER
    relayed = b.one(changed, max_tokens=8)
    assert relayed["record"]["relayed_tokens"] == 3 * BLOCK + 10
    assert relayed["record"]["tail_tokens"] == 10
    assert relayed["tokens"] == a.one(changed, max_tokens=8, salt="x")["tokens"]


def test_concurrent_relays_have_the_source_blocks_bytes(pair: Pair) -> None:
    a, b = pair
    prompts = [text_tokens(seed, 6 * BLOCK) for seed in range(10, 16)]
    a.generate(prompts)
    results = b.generate([prompt + OTHER for prompt in prompts], max_tokens=4)
    assert [r["record"]["relayed_tokens"] for r in results] == [6 * BLOCK] * 6
    for prompt in prompts:
        source, target = a.block_digests(prompt + OTHER), b.block_digests(prompt + OTHER)
        assert len(source) == 6
        assert source == target


def test_the_detector_sees_a_flipped_byte(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(3, 2 * BLOCK)
    a.one(prompt)
    b.one(prompt + OTHER)
    b.execute("""
runner = driver.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
for block in runner.kv_caches[1]:
    block.view(-1)[3] += 1
""")
    assert a.block_digests(prompt + OTHER) != b.block_digests(prompt + OTHER)


def test_only_what_is_missing_is_loaded(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(4, 8 * BLOCK)
    b.one(prompt[: 4 * BLOCK])
    a.one(prompt)
    record = b.one(prompt + OTHER)["record"]
    assert (record["local_tokens"], record["relayed_tokens"], record["recomputed_tokens"]) == (
        4 * BLOCK,
        4 * BLOCK,
        len(OTHER),
    )


def test_several_engines_saving_one_prefix_store_it_once(near_pair: Pair, store) -> None:
    a, b = near_pair
    prompt = text_tokens(5, 4 * BLOCK)
    a.one(prompt)
    blocks = store.stats()["blocks"]
    b.one(prompt, kvrelay={"mode": "recompute"})
    assert store.stats()["blocks"] == blocks


def test_tenants_do_not_meet(pair: Pair) -> None:
    """Neither by way of the store nor in an engine's own prefix cache, whatever salt they send."""
    a, b = pair
    prompt = text_tokens(6, 4 * BLOCK)
    ours = request_salt("red", None)
    a.one(prompt, salt=ours)

    def found(engine: Engine, salt: str | None) -> tuple[object, ...]:
        record = engine.one(prompt + OTHER, salt=salt)["record"]
        return record["reason"], record["found_tokens"], record["local_tokens"]

    for name, engine in (("blue", b), ("green", a)):
        for sent in (None, "red", ours):
            assert found(engine, request_salt(name, sent)) == ("no_source", 0, 0)
    for salt in (None, request_salt(None, ours), request_salt("red", "own")):
        assert found(b, salt) == ("no_source", 0, 0)
    for engine, where in ((b, "relayed_tokens"), (a, "local_tokens")):
        assert engine.one(prompt + OTHER, salt=ours)["record"][where] == 4 * BLOCK


@pytest.mark.usefixtures("demoting")
def test_what_was_demoted_is_said_to_come_from_there(near_pair: Pair, server) -> None:
    a, b = near_pair
    prompt = text_tokens(7, 6 * BLOCK)
    a.one(prompt)
    wait_demoted(server)
    record = b.one(prompt + OTHER)["record"]
    assert (record["load_path"], record["codec"]) == ("encoded", "split")
    assert record["relayed_tokens"] == 6 * BLOCK
    assert record["decoded_bytes"] == record["num_bytes"] > 0
    assert (record["fetched_bytes"], record["sources"]) == (0, ())
