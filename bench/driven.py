"""A vLLM engine that is driven request by request, in a process of its own (driven_child.py).

For fault injection: an engine of a tiny model starts in seconds, is stepped by whoever drives
it, and runs the driver's code inside, which no engine behind Serve does.

    engine = DrivenEngine(tiny_llama(folder), store_address)
    engine.one(prompt)                        waits
    engine.begin("one", prompt); ...; engine.end()    something else goes on meanwhile
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from kvrelay.bench.engines import BINDING, all_cores

BLOCK_TOKENS = 32
VOCABULARY = 512
_END_S = 20.0
# Two layers, 512 bytes of KV a token: 16 KiB a block.
_SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


class EngineEnded(RuntimeError):
    """The engine's process is gone; what it was asked has no answer."""


def tiny_llama(folder: Path, seed: int = 0, window: int | None = None, **shape: int) -> Path:
    """Make a small Llama (or, with `window`, a hybrid Gemma) with random weights.

    `shape` overrides fields of the model's configuration.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    common = _SHAPE | shape
    torch.manual_seed(seed)
    if window is None:
        config = transformers.LlamaConfig(**common, initializer_range=0.3)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.Gemma2Config(**common, sliding_window=window)
        model = transformers.Gemma2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def text_tokens(seed: int, count: int) -> list[int]:
    """Token ids for the tiny model, distinct for every seed."""
    return [random.Random(seed * 1_000_003 + n).randrange(1, 500) for n in range(count)]


class DrivenEngine:
    """A child process with one engine; any method of `driven_child.Driver` can be called on it."""

    def __init__(
        self,
        model: Path,
        store: str | None,
        relay: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
        **engine_args: Any,
    ) -> None:
        """Start; `wait_ready`, or the first call, waits until it is there.

        Args:
            model: folder of the model.
            store: address of its node's store.
            relay: further settings of relay; unless they name a policy, what is held is relayed.
            environment: of the process, default: this one's; unless it says to which cores the
                engine is bound, to all.
            log: takes what it prints; default: where this process prints.
            engine_args: arguments of vLLM's LLM, over those of a small engine.
        """
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvrelay.bench.driven_child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=log,
            stderr=log,
            cwd="/",  # not in a checkout, where its folders would hide packages of the same names
            env={BINDING: all_cores(), **(os.environ if environment is None else environment)},
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        arguments: dict[str, Any] = {
            "model": str(model),
            "skip_tokenizer_init": True,
            "max_model_len": 4096,
            "block_size": BLOCK_TOKENS,
            "kv_cache_memory_bytes": 24 << 20,
            "enforce_eager": True,
            "seed": 0,
            "disable_log_stats": True,
            "max_num_batched_tokens": 2048,
            **engine_args,
        }
        if store is not None or relay is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "RelayConnector",
                "kv_connector_module_path": "kvrelay.relay.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"store": store, "policy": "always", **(relay or {})},
            }
        self._connection.send(arguments)
        self._ready = False

    def wait_ready(self) -> DrivenEngine:
        """Wait until it has started.

        Raises:
            EngineEnded: it has not.
        """
        if not self._ready:
            self.end()
            self._ready = True
        return self

    def begin(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the driver without waiting for its answer, which `end` gives.

        Raises:
            EngineEnded: there will be no answer.
        """
        self.wait_ready()
        try:
            self._connection.send((name, args, kwargs))
        except OSError as error:
            raise EngineEnded(f"the engine ended with {self.process.wait()}") from error

    def answered(self, timeout_s: float = 0.0) -> bool:
        """Whether `end` has something to give: an answer, or that there is none any more."""
        return self._connection.poll(timeout_s)

    def end(self) -> Any:
        """The answer to what was begun.

        Raises:
            RuntimeError: the method raised; with its traceback.
            EngineEnded: the process is gone.
        """
        try:
            status, value = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise EngineEnded(f"the engine ended with {self.process.wait()}") from error
        if status == "error":
            raise RuntimeError(value)
        return value

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin(name, *args, **kwargs)
            return self.end()

        return call

    def kill(self) -> None:
        """End the process at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Let the process end."""
        self._connection.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
