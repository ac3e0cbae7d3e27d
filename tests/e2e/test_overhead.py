"""What the connector costs a prompt that nobody has seen, by its own and the client's clock.

The ratio to an engine without connector needs a quiet machine and many pairs (`kvrelay bench
miss`); what is gated here is what noise cannot hide.
"""

from __future__ import annotations

import time

from calls import complete, prompt_ids, record
from openai import OpenAI

from kvrelay.bench.overhead import MAX_CPU_SHARE, MAX_STEP_S, between


def test_hooks_and_copies_cost_next_to_nothing(client: OpenAI) -> None:
    before = record(complete(client, "a", prompt_ids(4000, 300)))
    ttft_s = 0.0
    for seed in range(4001, 4006):
        start_s = time.perf_counter()
        complete(client, "a", prompt_ids(seed, 1800), max_tokens=1)
        ttft_s += time.perf_counter() - start_s
        complete(client, "a", prompt_ids(seed, 20), max_tokens=60)  # steps that save nothing
    after = record(complete(client, "a", prompt_ids(4006, 20)))
    cost = between(before, after, ttft_s)
    assert cost.dropped_blocks == 0
    assert cost.cpu_share <= MAX_CPU_SHARE, cost.to_dict()
    assert cost.p99_step_s <= MAX_STEP_S, cost.to_dict()
