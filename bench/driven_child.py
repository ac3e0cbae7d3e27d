"""The process of a `driven.DrivenEngine`: a real vLLM engine, driven over a socket.

In-process EngineCore (no vLLM worker process), so that whoever drives it steps it one step at
a time, and can look at its scheduler and its KV tensors.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from kvrelay.relay.labels import FIELD


class Driver:
    """One engine; `DrivenEngine` calls its methods by name."""

    def __init__(self, **engine_args: Any) -> None:
        from vllm import LLM

        self.llm = LLM(**engine_args)
        self.engine = self.llm.llm_engine
        self.outputs: dict[str, Any] = {}
        self.begun_s: dict[str, float] = {}
        self.first_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.serial = 0
        # Without vLLM's own warm-up (enforce_eager) the AMX attention kernel ends the process
        # with SIGILL if the first prompt has fewer than five tokens (vLLM 0.29, CPU).
        self.generate([list(range(1, 17))], kvrelay={"mode": "recompute"}, salt="warm-up")

    # Requests

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 1,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        salt: str | None = None,
        session: str | None = None,
        kvrelay: Any = None,
        labels: Any = None,
    ) -> str:
        """Add a request, greedy; its id.

        `kvrelay` is what a client writes into `kv_transfer_params`, `labels` what the ingress does.
        """
        from vllm import SamplingParams

        self.serial += 1
        request_id = f"r{self.serial}"
        told = {"kvrelay": kvrelay, FIELD: labels}
        told = {name: value for name, value in told.items() if value is not None}
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            extra_args={"kv_transfer_params": told} if told else None,
        )
        inputs: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt is not None:
            inputs["cache_salt"] = salt
        self.begun_s[request_id] = time.perf_counter()
        self.engine.add_request(request_id, inputs, params, session_id=session)
        return request_id

    def step(self, steps: int = 1) -> list[str]:
        """Step; the requests that finished."""
        finished = []
        for _ in range(steps):
            for output in self.engine.step():
                self.outputs[output.request_id] = output
                if output.outputs[0].token_ids:
                    self.first_s.setdefault(output.request_id, time.perf_counter())
                if output.finished:
                    self.ended_s[output.request_id] = time.perf_counter()
                    finished.append(output.request_id)
        return finished

    def run(self) -> None:
        """Step until no request is left and all saves are reported."""
        while self.engine.has_unfinished_requests() or self.busy():
            self.step()

    def busy(self) -> bool:
        """Whether the engine has to step once more although no request is left."""
        return self.scheduler.has_finished_requests() or (
            self.scheduler.get_kv_connector() is not None
            and self.scheduler.get_kv_connector().has_pending_push_work()
        )

    def abort(self, request_id: str) -> None:
        """Let a request's client leave."""
        self.engine.abort_request([request_id])

    def result(self, request_id: str) -> dict[str, Any]:
        """What a finished request has brought, and the record of relay."""
        output = self.outputs[request_id]
        completion = output.outputs[0]
        logprobs = None
        if completion.logprobs is not None:
            logprobs = [
                sorted((token, value.logprob) for token, value in step.items())
                for step in completion.logprobs
            ]
        params = output.kv_transfer_params or {}
        return {
            "tokens": list(completion.token_ids),
            "logprobs": logprobs,
            "cached": output.num_cached_tokens,
            "record": params.get("kvrelay"),
            "reason": completion.finish_reason,
            "seconds": self.ended_s[request_id] - self.begun_s[request_id],
            "ttft_s": self.first_s[request_id] - self.begun_s[request_id],
        }

    def generate(self, prompts: list[list[int]], **options: Any) -> list[dict[str, Any]]:
        """All at once; results in order, once what they leave has been saved."""
        request_ids = [self.add(prompt, **options) for prompt in prompts]
        self.run()
        return [self.result(request_id) for request_id in request_ids]

    def one(self, prompt: list[int], **options: Any) -> dict[str, Any]:
        """Generate for a single prompt."""
        return self.generate([prompt], **options)[0]

    # State

    @property
    def scheduler(self) -> Any:
        """vLLM's."""
        return self.engine.engine_core.engine_core.scheduler

    @property
    def worker_half(self) -> Any:
        """The connector's, see `WorkerHalf`."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker

    def reset(self) -> bool:
        """Forget the local prefix cache."""
        return self.engine.reset_prefix_cache()

    def identity(self) -> dict[str, Any]:
        """What the keys of its blocks begin with, and their sizes."""
        half = self.scheduler.get_kv_connector()._scheduler
        return {
            "fingerprint": half._fingerprint,
            "slot_bytes": self.worker_half._slot_bytes,
            "block_tokens": half._block_tokens,
        }

    def state(self) -> dict[str, int]:
        """What must be empty when nothing is going on."""
        scheduler = self.scheduler
        half = scheduler.get_kv_connector()._scheduler
        pool = scheduler.kv_cache_manager.block_pool
        return {
            "requests": len(scheduler.requests),
            "tracked": len(half._tracked),
            "loading": len(half._loading),
            "held": len(half._held),
            "leases": len(half._link.current.leases) if half._link.current else 0,
            "used_blocks": pool.num_gpu_blocks - pool.get_num_free_blocks() - 1,
            "faults": half.breaker.faults + self.worker_half.breaker.faults,
        }

    def block_digests(self, prompt: list[int]) -> list[str]:
        """Digest of the KV bytes of every whole block of a cached prompt."""
        import torch
        from vllm import SamplingParams
        from vllm.v1.request import Request

        core = self.engine.engine_core.engine_core
        request = Request(
            "probe",
            prompt,
            SamplingParams(max_tokens=1),
            None,
            block_hasher=core.request_block_hasher,
        )
        manager = self.scheduler.kv_cache_manager
        blocks, _, *_ = manager.get_computed_blocks(request)
        runner = core.model_executor.driver_worker.worker.model_runner
        return [
            hashlib.sha256(
                b"".join(
                    kv[block_id].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                    for kv in runner.kv_caches
                )
            ).hexdigest()
            for block_id in blocks.get_block_ids()[0]
        ]

    def execute(self, source: str, **variables: Any) -> Any:
        """Run code of whoever drives in here; the name `result` is the answer."""
        scope: dict[str, Any] = {"driver": self, **variables}
        exec(source, scope)
        return scope.get("result")


def main() -> None:
    """Serve calls until the other end closes; its argument is the descriptor of the socket."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    connection = Connection(int(sys.argv[1]))
    driver: Any = None
    try:
        driver = Driver(**connection.recv())
        connection.send(("ok", None))
    except BaseException as error:
        connection.send(("error", repr(error)))
        raise
    while True:
        try:
            name, args, kwargs = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = ("ok", getattr(driver, name)(*args, **kwargs))
            pickle.dumps(answer)
        except BaseException as error:
            answer = ("error", f"{error!r}\n{traceback.format_exc()}")
        connection.send(answer)


if __name__ == "__main__":
    main()
