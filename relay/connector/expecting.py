"""What the store is told when a request is over: who is expected to need its blocks next."""

from kvrelay.policies import CostPolicy, RelayPolicy, Work
from kvrelay.relay.connector.metadata import ExpectJob
from kvrelay.relay.connector.request import Tracked
from kvrelay.relay.protocol import MAX_FETCH_KEYS


def expect_job(tracked: Tracked, policy: RelayPolicy) -> ExpectJob | None:
    """The job that tells it; None if nobody is expected, or nothing has been published.

    Args:
        tracked: the request, its saves planned.
        policy: of its engine; `cost` knows what computing takes.
    """
    labels, chain = tracked.labels, tracked.chain
    if labels.next_agent is None or labels.next_probability is None:
        return None
    if chain is None or not tracked.saves:
        return None
    keys = [chain.key(number) for number in range(tracked.next_save)]
    if tracked.tail_key is not None:
        keys.append(tracked.tail_key)
    if not keys:
        return None
    prefill_s = _prefill_s(policy, len(keys) * chain.block_tokens)
    return ExpectJob(
        labels.next_agent, labels.next_probability, prefill_s, tuple(keys[:MAX_FETCH_KEYS])
    )


def _prefill_s(policy: RelayPolicy, num_tokens: int) -> float | None:
    """Seconds that computing so many tokens takes; None if that is not known."""
    if not isinstance(policy, CostPolicy):
        return None
    forecast = policy.costs.prefill(Work.of(0, num_tokens))
    return forecast.p50_s if forecast.is_sure else None
