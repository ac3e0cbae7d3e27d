"""Warms an engine up before the first request comes, and for `cost` measures what prefill costs.

A few prompts of random tokens go through the engine, one after the other, and the connector
observes their steps like any others. It knows them by a label that no client can write, and keeps
no record, metric or block of them; vLLM's own statistics look away meanwhile. They are bounded in
time, since nothing is ready before: a slow engine gets shorter ones.

What loads cost cannot be measured so, for nothing is held yet; the first relays tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvrelay.relay.labels import Labels

logger = logging.getLogger(__name__)
# Seconds of measuring, and of all, the first prompt included.
BUDGET_S, MOST_S = 3.0, 6.0
# Tokens of the first prompt. With it an engine does what it does once, for a second or more on a
# CPU: it does not count as a measurement, and no request has to wait for it later. Nor does one of
# under five tokens then end the process with SIGILL, as vLLM 0.29's AMX attention would have it.
WARM_UP = 64
# And of the others. The curve has three terms, so several lengths far apart, some of them twice.
LENGTHS = (64, 512, 1536, 6144, 64, 512, 1536, 256)
# With fewer, the time would tell of everything but prefill.
MIN_TOKENS = 32
_SHARE = 0.6  # of the time that is left, for one prompt at most


async def warm_up(
    client: Any,
    lengths: Sequence[int] = LENGTHS,
    clock_s: Callable[[], float] = time.perf_counter,
) -> int:
    """Have the engine compute prompts of these lengths; returns when that, or its time, is over.

    No error leaves it: without it the policy learns from the first requests.

    Args:
        client: vLLM's AsyncLLM, before it has requests.
        lengths: in tokens, behind a first prompt that does not count.
        clock_s: for what prompts take.

    Returns:
        How many have been measured.
    """
    start_s = clock_s()
    count = 0
    pace_s = 0.0  # of a token of the longest prompt so far
    longest = 0
    try:
        limit = client.model_config.max_model_len - 1  # and the token that it must generate
        if limit < MIN_TOKENS:
            return 0
        with _unseen(client):
            async with asyncio.timeout(MOST_S):
                await _compute(client, min(WARM_UP, limit))
                end_s = clock_s() + BUDGET_S
                for length in lengths:
                    begin_s = clock_s()
                    tokens = min(length, limit)
                    if pace_s > 0:
                        tokens = min(tokens, int(_SHARE * (end_s - begin_s) / pace_s))
                    if tokens < MIN_TOKENS:
                        continue
                    await _compute(client, tokens)
                    count += 1
                    if tokens >= longest:
                        longest, pace_s = tokens, (clock_s() - begin_s) / tokens
    except TimeoutError:
        pass  # what was measured until then counts
    except Exception as error:
        logger.warning("the engine was not warmed up, the first requests will do it: %r", error)
        return count
    seconds = clock_s() - start_s
    logger.info("warmed up in %.1f s, prefill measured with %d prompts", seconds, count)
    return count


async def _compute(client: Any, tokens: int) -> None:
    from vllm import SamplingParams

    # Ordinary words: special tokens, such as images have, are at either end of a vocabulary.
    words = client.model_config.get_vocab_size()
    prompt = random.choices(range(words // 4, max(words // 2, words // 4 + 1)), k=tokens)
    # Without a connector nobody reads a label, and vLLM would warn of it.
    told = client.vllm_config.kv_transfer_config is not None
    params = SamplingParams(
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        skip_reading_prefix_cache=True,
        extra_args={"kv_transfer_params": Labels(is_probe=True).added_to(None)} if told else None,
    )
    answer = client.generate({"prompt_token_ids": prompt}, params, f"kvrelay-probe-{uuid.uuid4()}")
    async with contextlib.aclosing(answer):
        async for _ in answer:
            pass


@contextlib.contextmanager
def _unseen(client: Any) -> Iterator[None]:
    """vLLM's loggers and metrics get nothing meanwhile, if this vLLM lets them be taken away."""
    loggers = getattr(client, "_logger_ref", None)
    if not isinstance(loggers, list) or len(loggers) != 1:
        yield
        return
    kept, loggers[0] = loggers[0], None
    try:
        yield
    finally:
        loggers[0] = kept
