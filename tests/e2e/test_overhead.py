"""What the connector costs a prompt that nobody has seen, by its own and the client's clock.

The ratio to an engine without connector needs a quiet machine and many pairs (`kvrelay bench
miss`); what is gated here is what noise cannot hide. A token's prefill costs more the longer the
context, its save does not, so the share is largest for short prompts: the bench reports it for
512 and 2048 tokens, here it is measured near the longest prompt of the configuration.
"""

from __future__ import annotations

import time

from calls import complete, prompt_ids, record
from openai import OpenAI

from kvrelay.bench.overhead import MAX_CPU_SHARE, MAX_STEP_S, Overhead, between

PROMPT_TOKENS = 7900
ROUNDS = 6


def test_hooks_and_copies_cost_next_to_nothing(client: OpenAI) -> None:
    """The least disturbed of some rounds tells: what shares cores, caches and memory only adds.

    CPU time is no refuge from that: the same build took 0.16 % of TTFT on one machine, and
    1.13 % on another that had other guests (measured).
    """
    complete(client, "a", prompt_ids(4000, PROMPT_TOKENS), max_tokens=1)  # warms up
    costs = []
    for number in range(ROUNDS):
        cost = one_round(client, 4001 + 3 * number)
        assert cost.saved_blocks >= 2 * (PROMPT_TOKENS // 128)
        assert cost.dropped_blocks == 0
        costs.append(cost.to_dict())
        if cost.passes():
            return
    assert min(cost["cpu_share_ratio"] for cost in costs) <= MAX_CPU_SHARE, costs
    assert min(cost["p99_step_s"] for cost in costs) <= MAX_STEP_S, costs


def one_round(client: OpenAI, seed: int) -> Overhead:
    """Two long prompts, and tokens decoded before them."""
    short = prompt_ids(seed, 20)
    before = record(complete(client, "a", short, max_tokens=60))
    ttft_s = 0.0
    for long in (seed + 1, seed + 2):
        start_s = time.perf_counter()
        complete(client, "a", prompt_ids(long, PROMPT_TOKENS), max_tokens=1)
        ttft_s += time.perf_counter() - start_s
    after = record(complete(client, "a", short, max_tokens=1))
    return between(before, after, ttft_s)
