"""Drives a vLLM engine in another process; see child.py."""

import json
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BLOCK = 32


def tiny_llama(folder: Path, seed: int = 0, window: int | None = None) -> Path:
    """Make a two-layer Llama (or, with `window`, a hybrid Gemma) with random weights."""
    import torch
    import transformers

    common = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    torch.manual_seed(seed)
    if window is None:
        config = transformers.LlamaConfig(**common, initializer_range=0.3)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.Gemma2Config(**common, sliding_window=window)
        model = transformers.Gemma2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


class Engine:
    """A child process with one engine; any method of `child.Driver` can be called on it."""

    def __init__(
        self,
        model: Path,
        store: str | None,
        relay: dict[str, Any] | None = None,
        modules: list[str] | None = None,
        connector: str = "kvrelay.relay.connector:RelayConnector",
        **engine_args: Any,
    ) -> None:
        parent, child = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py")), str(child.fileno())],
            pass_fds=[child.fileno()],
            cwd="/",
            env={
                **os.environ,
                "VLLM_CPU_OMP_THREADS_BIND": "0-1",
                "PYTHONPATH": str(Path(__file__).parent),
            },
        )
        child.close()
        self._connection = Connection(parent.detach())
        module, _, name = connector.partition(":")
        arguments: dict[str, Any] = {
            "model": str(model),
            "skip_tokenizer_init": True,
            "max_model_len": 4096,
            "block_size": BLOCK,
            "kv_cache_memory_bytes": 24 << 20,
            "enforce_eager": True,
            "seed": 0,
            "disable_log_stats": True,
            "max_num_batched_tokens": 2048,
            **engine_args,
        }
        if store is not None or relay is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": name,
                "kv_connector_module_path": module,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"store": store, **(relay or {})},
            }
        self._connection.send(modules or [])
        self._connection.send(arguments)
        self._ready = False

    def wait_ready(self) -> "Engine":
        if not self._ready:
            self._receive()
            self._ready = True
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.wait_ready()
            self._connection.send((name, args, kwargs))
            return self._receive()

        return call

    def one(self, prompt: list[int], **options: Any) -> dict[str, Any]:
        """Generate for a single prompt."""
        return self.generate([prompt], **options)[0]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self._connection.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def _receive(self) -> Any:
        try:
            status, value = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RuntimeError(f"the engine ended with {self.process.wait()}") from error
        if status == "error":
            raise RuntimeError(value)
        return value


def text_tokens(seed: int, count: int) -> list[int]:
    """Token ids for the tiny model, distinct for every seed."""
    import random

    return [random.Random(seed * 1_000_003 + n).randrange(1, 500) for n in range(count)]


def dump(record: Any) -> str:
    return json.dumps(record, indent=1)
