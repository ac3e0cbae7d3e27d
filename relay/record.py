"""The record of one request: what was decided, on what grounds, and what came of it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from kvrelay.policies import Decision, Reason


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """What the answer's `kv_transfer_params.kvrelay` carries.

    Tokens: prompt = local + relayed + recomputed. Seconds are wall seconds.

    Attributes:
        agent: the agent that served the request.
        policy: the policy that decided.
        mode: what the request asked for, `auto` or `recompute`.
        decision: arm, reason, estimates and propensity at look-up.
        reason: how it ended: the decision's reason, or what befell the load.
        prompt_tokens: tokens of the prompt.
        local_tokens: found in the engine's own prefix cache.
        recomputed_tokens: prefilled here.
        relayed_tokens: taken over from other engines, verified.
        tail_tokens: how many of those came from a block not taken whole.
        num_bytes: bytes copied for the relay.
        load_path: the slowest place that any came from: `arena` (this node's shared memory),
            `encoded` (this node's, decoded into it), `nodes` (others' stores, by way of it),
            else None.
        sources: those other nodes.
        transport, path, codec: how bytes came that were not in the arena; the path as it was
            attested.
        fetched_bytes: KV bytes that came from other nodes.
        decoded_bytes: KV bytes that this node held encoded.
        wire_bytes: bytes moved between nodes for them.
        transfer_queue_s: waited for other reads from the same source.
        transfer_s: from the load's arrival at this node's store to the last block verified here.
        lookup_s: time of the look-up.
        queue_s: from arrival to the first decision.
        load_wait_s: from handing the load over to its first copy.
        copy_s: from the first copy to the last block verified.
        load_s: from the look-up to the load's report.
        deadline_s: after how long the load would have been given up; 0 if none was planned.
        first_token_s: from the decision to the first token, which is what it predicts; None
            without one.
        shared_prefix_fraction: of the prompt, what the engine had and what could be had for it;
            None if nobody looked.
        overhead: the engine's cost of relay so far, see `WorkerCost`, plus `scheduler_s`.
    """

    agent: str
    policy: str
    mode: str
    decision: Decision
    reason: Reason
    prompt_tokens: int
    local_tokens: int
    recomputed_tokens: int
    relayed_tokens: int = 0
    tail_tokens: int = 0
    num_bytes: int = 0
    load_path: str | None = None
    sources: tuple[str, ...] = ()
    transport: str = ""
    path: str = ""
    codec: str = ""
    fetched_bytes: int = 0
    decoded_bytes: int = 0
    wire_bytes: int = 0
    transfer_queue_s: float = 0.0
    transfer_s: float = 0.0
    lookup_s: float = 0.0
    queue_s: float = 0.0
    load_wait_s: float = 0.0
    copy_s: float = 0.0
    load_s: float = 0.0
    deadline_s: float = 0.0
    first_token_s: float | None = None
    shared_prefix_fraction: float | None = None
    overhead: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The form in which it travels: plain JSON types."""
        record = asdict(self)
        record["decision"] |= {"arm": str(self.decision.arm), "reason": str(self.decision.reason)}
        record["reason"] = str(self.reason)
        return record
