"""Faults on real parts: the answer is right, the record says why, nothing is left over."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import BLOCK, Engine, text_tokens

from kvrelay.relay.client import StoreClient

Pair = tuple[Engine, Engine]
OTHER = [7, 11, 13, 17]
# Every block takes `seconds` to copy in.
SLOW_LOADS = """
import time
blocks = driver.worker_half._blocks
real = type(blocks).load
def slow(block_id, address):
    time.sleep(seconds)
    return real(blocks, block_id, address)
blocks.load = slow
"""
NORMAL_LOADS = "del driver.worker_half._blocks.load"
FLIP = """
from kvrelay.relay import index
slab = driver.scheduler.get_kv_connector()._scheduler._link.current.slab
header = index.find(slab, key)
slab.data(header.slot)[17] ^= 1
"""
KEY = """
half = driver.scheduler.get_kv_connector()._scheduler
from kvrelay.relay.blocks import BlockChain
from kvrelay.relay.keys import root_key
chain = BlockChain(root_key(half._fingerprint), half._block_tokens)
chain.extend(prompt, number + 1)
result = bytes(chain.key(number))
"""


class StoreProcess:
    """A store of its own for a test that kills it."""

    def __init__(self, address: str, capacity_bytes: int = 32 << 20) -> None:
        script = Path(__file__).with_name("store_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), address, str(capacity_bytes)],
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def own_store(model: Path) -> Iterator[tuple[StoreProcess, str]]:
    address = f"kvrelay-test-{uuid.uuid4().hex}"
    store = StoreProcess(address)
    yield store, address
    store.kill()


def expected(engine: Engine, prompt: list[int], count: int) -> list[int]:
    """What the engine says when it computes everything itself."""
    return engine.one(prompt, max_tokens=count, salt=uuid.uuid4().hex)["tokens"]


def block_key(engine: Engine, prompt: list[int], number: int) -> bytes:
    return engine.execute(KEY, prompt=prompt, number=number)


def wait_for(condition, timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.02)


def wait_for_store(engine: Engine) -> None:
    halves = ("driver.scheduler.get_kv_connector()._scheduler", "driver.worker_half")
    linked = " and ".join(f"{half}._link.current is not None" for half in halves)
    wait_for(lambda: engine.execute(f"result = {linked}"))


def test_dropped_block_shortens_the_relay(pair: Pair, store: StoreClient) -> None:
    a, b = pair
    prompt = text_tokens(20, 6 * BLOCK)
    a.one(prompt)
    store.drop([block_key(a, prompt, 2)])
    result = b.one(prompt + OTHER, max_tokens=8)
    assert result["record"]["relayed_tokens"] == 2 * BLOCK
    assert result["tokens"] == expected(b, prompt + OTHER, 8)


@pytest.mark.parametrize("number", [0, 3, 5])
def test_flipped_byte_in_the_arena_is_recomputed_and_mended(
    pair: Pair, store: StoreClient, number: int
) -> None:
    a, b = pair
    prompt = text_tokens(21 + number, 6 * BLOCK)
    a.one(prompt)
    a.execute(FLIP, key=block_key(a, prompt, number))
    result = b.one(prompt + OTHER, max_tokens=8)
    assert result["record"]["reason"] == "load_corrupt"
    assert result["record"]["relayed_tokens"] == number * BLOCK
    assert result["tokens"] == expected(b, prompt + OTHER, 8)
    b.run()
    b.reset()
    wait_for(lambda: store.stats()["reserved"] == 0)
    # The bad block was dropped, and B published the one that it computed itself.
    again = b.one(prompt + OTHER, max_tokens=8)
    assert again["record"]["reason"] == "relayed", again["record"]
    assert again["tokens"] == result["tokens"]


def test_load_past_its_deadline_is_recomputed(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(30, 6 * BLOCK)
    a.one(prompt)
    b.execute(
        "driver.worker_half; h = driver.scheduler.get_kv_connector()._scheduler\n"
        "import dataclasses; h._settings = dataclasses.replace(h._settings, "
        "load_deadline_s=0.25)"
    )
    b.execute(SLOW_LOADS, seconds=0.15)
    start_s = time.monotonic()
    result = b.one(prompt + OTHER, max_tokens=8)
    elapsed_s = time.monotonic() - start_s
    b.execute(NORMAL_LOADS)
    b.execute(
        "h = driver.scheduler.get_kv_connector()._scheduler\n"
        "import dataclasses; h._settings = dataclasses.replace(h._settings, "
        "load_deadline_s=2.0)"
    )
    assert result["record"]["reason"] == "load_deadline"
    assert result["record"]["relayed_tokens"] < 6 * BLOCK
    assert elapsed_s < 5
    assert result["tokens"] == expected(b, prompt + OTHER, 8)


def test_client_that_leaves_while_loading_frees_everything(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(31, 6 * BLOCK)
    a.one(prompt)
    b.execute(SLOW_LOADS, seconds=0.1)
    request_id = b.add(prompt + OTHER, max_tokens=8)
    b.step()
    assert b.state()["loading"] == 1
    b.abort(request_id)
    b.run()
    b.execute(NORMAL_LOADS)
    state = b.state()
    assert state == dict.fromkeys(state, 0)
    result = b.one(prompt + OTHER, max_tokens=8)
    assert result["record"]["relayed_tokens"] == 6 * BLOCK


def test_block_evicted_under_a_load_is_recomputed(pair: Pair, store: StoreClient) -> None:
    a, b = pair
    prompt = text_tokens(32, 6 * BLOCK)
    a.one(prompt)
    last = block_key(a, prompt, 5)
    b.execute(SLOW_LOADS, seconds=0.2)  # all of them take less than the deadline
    request_id = b.add(prompt + OTHER, max_tokens=8)
    b.step()
    store.drop([last])
    b.run()
    b.execute(NORMAL_LOADS)
    result = b.result(request_id)
    assert result["record"]["reason"] == "load_evicted"
    assert result["tokens"] == expected(b, prompt + OTHER, 8)


def test_error_while_copying_is_recomputed(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(33, 6 * BLOCK)
    a.one(prompt)
    b.execute(
        "def broken(block_id, address): raise OSError('injected')\n"
        "driver.worker_half._blocks.load = broken"
    )
    result = b.one(prompt + OTHER, max_tokens=8)
    b.execute(NORMAL_LOADS)
    b.execute("driver.scheduler.get_kv_connector()._scheduler.breaker.faults = 0")
    assert result["record"]["reason"] == "load_fault"
    assert result["tokens"] == expected(b, prompt + OTHER, 8)


def test_error_in_a_hook_costs_the_relay_only(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(34, 6 * BLOCK)
    a.one(prompt)
    b.execute(
        "h = driver.scheduler.get_kv_connector()._scheduler\n"
        "def broken(*args): raise ValueError('injected')\n"
        "h._decide = broken"
    )
    result = b.one(prompt + OTHER, max_tokens=8)
    b.execute(
        "h = driver.scheduler.get_kv_connector()._scheduler\ndel h._decide\nh.breaker.faults = 0"
    )
    assert result["tokens"] == expected(b, prompt + OTHER, 8)
    assert b.one(prompt + OTHER)["record"]["reason"] in ("local_hit", "relayed")


def test_killed_producer_loses_nothing(model: Path, own_store: tuple[StoreProcess, str]) -> None:
    _, address = own_store
    a, b = Engine(model, address), Engine(model, address)
    prompt = text_tokens(40, 6 * BLOCK)
    a.one(prompt)
    a.kill()
    result = b.one(prompt + OTHER, max_tokens=8)
    assert result["record"]["relayed_tokens"] == 6 * BLOCK
    assert result["tokens"] == expected(b, prompt + OTHER, 8)
    client = StoreClient(address, "test")
    wait_for(lambda: client.stats()["clients"] == 3)  # both halves of B, and this
    client.check()
    client.close()
    b.close()


def test_killed_or_stopped_store_and_killed_consumer(model: Path) -> None:
    address = f"kvrelay-test-{uuid.uuid4().hex}"
    store = StoreProcess(address)
    a, b = Engine(model, address), Engine(model, address)
    prompt = text_tokens(41, 6 * BLOCK)
    a.one(prompt)
    wait_for_store(b)
    # Stopped: look-ups go on, saves time out, no request waits for it.
    os.kill(store.process.pid, signal.SIGSTOP)
    start_s = time.monotonic()
    relayed = b.one(prompt + OTHER, max_tokens=8)
    assert time.monotonic() - start_s < 5
    assert relayed["record"]["relayed_tokens"] == 6 * BLOCK
    os.kill(store.process.pid, signal.SIGCONT)
    # Killed in the middle of a load: the mapping outlives it.
    b.run()
    b.reset()
    wait_for_store(b)
    b.execute(SLOW_LOADS, seconds=0.1)
    request_id = b.add(prompt + OTHER, max_tokens=8)
    b.step()
    store.kill()
    b.run()
    b.execute(NORMAL_LOADS)
    assert b.result(request_id)["tokens"] == relayed["tokens"]
    # Gone: recompute, and the record says so.
    b.reset()
    wait_for(
        lambda: b.execute(
            "result = driver.scheduler.get_kv_connector()._scheduler._link.current is None"
        )
    )
    result = b.one(prompt + OTHER, max_tokens=8)
    assert result["record"]["reason"] == "store_unavailable"
    # Back and empty: everything works again.
    store = StoreProcess(address)
    for engine in (a, b):
        engine.reset()
        wait_for_store(engine)
    a.one(prompt)
    a.run()
    b.execute(SLOW_LOADS, seconds=0.2)
    b.add(prompt + OTHER)
    b.step()
    client = StoreClient(address, "test")
    assert client.stats()["leases"] == 6
    b.kill()
    wait_for(lambda: client.stats()["leases"] == 0)
    client.check()
    client.close()
    a.close()
    store.kill()


def test_full_store_drops_the_oldest_and_never_a_request(model: Path) -> None:
    address = f"kvrelay-test-{uuid.uuid4().hex}"
    store = StoreProcess(address, capacity_bytes=10 * 16384)
    a = Engine(model, address)
    client = StoreClient(address, "test")
    for seed in range(50, 56):
        prompt = text_tokens(seed, 6 * BLOCK)
        assert len(a.one(prompt, max_tokens=4)["tokens"]) == 4
        client.check()
        assert client.stats()["used_bytes"] <= 10 * 16384
    a.reset()
    assert a.one(prompt + OTHER)["record"]["relayed_tokens"] >= 5 * BLOCK
    assert client.stats()["evicted"] > 0
    client.close()
    a.close()
    store.kill()


def test_error_while_planning_a_load_parks_nobody(pair: Pair) -> None:
    a, b = pair
    prompt = text_tokens(35, 6 * BLOCK)
    a.one(prompt)
    b.execute(
        "from kvrelay.relay.connector import scheduler as half\n"
        "def broken(*args): raise ValueError('injected')\n"
        "half.kept, half.load_job = half.load_job, broken"
    )
    result = b.one(prompt + OTHER, max_tokens=8)
    b.execute(
        "from kvrelay.relay.connector import scheduler as half\n"
        "half.load_job = half.kept\n"
        "driver.scheduler.get_kv_connector()._scheduler.breaker.faults = 0"
    )
    assert result["record"]["relayed_tokens"] == 0
    assert result["tokens"] == expected(b, prompt + OTHER, 8)
