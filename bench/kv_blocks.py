"""Real KV to measure on: blocks that an engine computed from real text, as the store holds them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kvrelay.bench.engines import BINDING, BLOCK_TOKENS
from kvrelay.bench.errors import BenchError
from kvrelay.bench.own_store import own_store
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore

PROMPT_TOKENS = 2048
STORE_BYTES = 1 << 30  # twice what 20,000 tokens of the demo model take
POLL_S = 0.1
STALLED_S = 120.0
ENGINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": PROMPT_TOKENS + 1,
    "max_num_batched_tokens": PROMPT_TOKENS,
    "block_size": BLOCK_TOKENS,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**29,
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
    "seed": 0,
}


@contextlib.contextmanager
def computed(
    model: Path | str, prompts: Sequence[Sequence[int]], advance: Callable[[float], None]
) -> Iterator[list[memoryview]]:
    """The full blocks of some prompts, in slots of a store that lives as long as the block.

    The engine that computes them is a process of its own and has ended by then.

    Args:
        model: what vLLM loads.
        prompts: token ids, at most `PROMPT_TOKENS` each.
        advance: told how many blocks have been added.

    Raises:
        BenchError: the engine failed, or blocks were not saved.
    """
    wanted = sum(len(prompt) // BLOCK_TOKENS for prompt in prompts)
    with own_store(STORE_BYTES) as (server, address):
        with _engine(model, prompts, address) as (process, log):
            _await_blocks(server, wanted, process, log, advance)
        blocks = server.call(_full_blocks)
        if len(blocks) < wanted:
            raise BenchError(
                f"{STORE_BYTES >> 20} MiB hold {len(blocks)} of {wanted} blocks of this model; "
                "give fewer --tokens"
            )
        yield blocks


@contextlib.contextmanager
def _engine(
    model: Path | str, prompts: Sequence[Sequence[int]], address: str
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    connector = {
        "kv_connector": "RelayConnector",
        "kv_connector_module_path": "kvrelay.relay.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"store": address, "agent": "codecs"},
    }
    engine = {**ENGINE, "model": str(model), "kv_transfer_config": connector}
    environment = {**os.environ, BINDING: ",".join(map(str, sorted(os.sched_getaffinity(0))))}
    with tempfile.TemporaryFile("w+") as log:
        # Not in the checkout, where its folders would hide packages of the same names.
        process = subprocess.Popen(
            [sys.executable, "-m", "kvrelay.bench.kv_engine"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            text=True,
        )
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended; the waiting tells why
                assert process.stdin is not None
                json.dump({"engine": engine, "prompts": list(map(list, prompts))}, process.stdin)
                process.stdin.write("\n")
                process.stdin.flush()
            yield process, log
        finally:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            process.kill()
            process.wait()


def _await_blocks(
    server: StoreServer,
    wanted: int,
    process: subprocess.Popen[str],
    log: IO[str],
    advance: Callable[[float], None],
) -> None:
    num_blocks, since_s = 0, time.monotonic()
    while num_blocks < wanted:
        time.sleep(POLL_S)
        now = server.call(StoreCore.stats).get("committed", 0)
        if now > num_blocks:
            advance(now - num_blocks)
            num_blocks, since_s = now, time.monotonic()
        elif process.poll() is not None:
            raise BenchError(f"the engine ended with {process.returncode}: {_last_line(log)}")
        elif time.monotonic() - since_s > STALLED_S:
            raise BenchError(
                f"{num_blocks} of {wanted} blocks after {STALLED_S:.0f} s without a new one: "
                f"{_last_line(log)}"
            )


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _full_blocks(core: StoreCore) -> list[memoryview]:
    slab = core.slab(0)
    headers = [slab.read_header(slot) for slot in range(slab.geometry.num_slots)]
    return [slab.data(h.slot) for h in headers if h is not None and h.num_tokens == BLOCK_TOKENS]
