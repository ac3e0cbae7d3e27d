"""An engine of its own that computes prompts and leaves their KV in a store.

Run as `python -m kvrelay.bench.kv_engine` by `kv_blocks`, which writes one line of JSON to its
standard input, {"engine": arguments of vLLM's LLM, "prompts": token ids}, and closes it when it
has what it wants: then, or when whoever started it is gone, the engine ends.
"""

from __future__ import annotations

import json
import os
import select
import sys

STEP_EVERY_S = 0.005


def main() -> None:
    """Compute the prompts, then step on so that what is being saved gets finished."""
    # One process: it is gone when this one is, and has no worker that waits for it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    job = json.loads(sys.stdin.readline())
    llm = LLM(**job["engine"])
    one_token = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    for prompt in job["prompts"]:
        llm.generate({"prompt_token_ids": prompt}, one_token, use_tqdm=False)
    while not select.select([sys.stdin], [], [], STEP_EVERY_S)[0]:
        llm.llm_engine.step()
    # vLLM's own teardown has nothing left to do that is worth the seconds it takes.
    os._exit(0)


if __name__ == "__main__":
    main()
