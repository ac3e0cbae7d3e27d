"""The record of a request that is over, from what was tracked of it."""

from collections.abc import Mapping

from kvrelay.policies import Arm, Reason
from kvrelay.relay.connector.request import Tracked
from kvrelay.relay.protocol import FetchEnded
from kvrelay.relay.record import RelayRecord
from kvrelay.relay.settings import RelaySettings


def record_of(
    tracked: Tracked,
    settings: RelaySettings,
    policy: str,
    block_tokens: int,
    overhead: Mapping[str, float],
) -> RelayRecord:
    """What was decided, and what came of it.

    Args:
        tracked: the request.
        settings: of its engine.
        policy: the name of the one that decided.
        block_tokens: tokens of a full block.
        overhead: see `RelayRecord`.
    """
    request, outcome = tracked.request, tracked.outcome
    prompt = request.num_prompt_tokens
    relayed = tail = num_bytes = 0
    reason = tracked.decision.reason
    if tracked.decision.arm is Arm.RELAY and outcome is not None:
        num_bytes = outcome.num_bytes
        if outcome.failure is None:
            relayed, tail = tracked.planned_tokens, tracked.tail_tokens
        else:
            reason = outcome.failure
            relayed = min(outcome.num_loaded * block_tokens, tracked.planned_tokens)
    elif tracked.decision.arm is Arm.RELAY:
        reason = Reason.LOAD_CANCELLED
    relayed = min(relayed, prompt - tracked.local_tokens)
    fetched = outcome.fetched if outcome is not None else None
    return RelayRecord(
        **tracked.labels.in_record(settings.agent),
        policy=policy,
        mode=tracked.mode,
        found_place=tracked.found.place if tracked.found else None,
        found_tokens=tracked.found.num_tokens if tracked.found else 0,
        found_bytes=tracked.found.num_bytes if tracked.found else 0,
        advised_tokens=tracked.advised_tokens,
        decision=tracked.decision,
        reason=reason,
        prompt_tokens=prompt,
        local_tokens=tracked.local_tokens,
        recomputed_tokens=prompt - tracked.local_tokens - relayed,
        relayed_tokens=relayed,
        tail_tokens=tail,
        ahead_tokens=min(tracked.ahead_tokens, relayed),
        num_bytes=num_bytes,
        load_path=_load_path(fetched) if num_bytes else None,
        sources=fetched.sources if fetched else (),
        transport=fetched.transport if fetched else "",
        path=fetched.path if fetched else "",
        codec=fetched.codec if fetched else "",
        fetched_bytes=fetched.num_bytes if fetched else 0,
        decoded_bytes=fetched.decoded_bytes if fetched else 0,
        wire_bytes=fetched.wire_bytes if fetched else 0,
        transfer_queue_s=fetched.queue_s if fetched else 0.0,
        transfer_s=fetched.transfer_s if fetched else 0.0,
        lookup_s=tracked.lookup_s,
        queue_s=max(0.0, tracked.decided_s - tracked.arrived_s),
        load_wait_s=outcome.wait_s if outcome else 0.0,
        copy_s=outcome.copy_s if outcome else 0.0,
        load_s=tracked.load_s,
        deadline_s=tracked.deadline_s,
        first_token_s=tracked.first_token_s,
        shared_prefix_fraction=tracked.shared_prefix_fraction,
        overhead=dict(overhead),
        request_id=request.request_id,
        time_s=request.arrival_time,
        replica=settings.replica,
        session_id=request.session_id,
    )


def _load_path(fetched: FetchEnded | None) -> str:
    """The slowest place that blocks have come from."""
    if fetched is not None and fetched.num_bytes:
        return "nodes"
    return "encoded" if fetched is not None and fetched.decoded_bytes else "arena"
