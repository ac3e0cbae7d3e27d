"""The record of one request: what was decided, on what grounds, and what came of it."""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from kvrelay.policies import Decision, Reason

# Of the fields below: raised when one goes or gets another name or meaning, not for a new one.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """What the answer's `kv_transfer_params.kvrelay` carries, and the decision log keeps.

    Tokens: prompt = local + relayed + recomputed. Seconds are wall seconds.

    Attributes:
        agent: the agent that the client named.
        policy: the policy that decided.
        mode: what the request asked for, see `Mode`.
        decision: arm, reason, estimates and propensity at look-up.
        reason: how it ended: the decision's reason, or what befell the load.
        prompt_tokens: tokens of the prompt.
        local_tokens: found in the engine's own prefix cache.
        recomputed_tokens: prefilled here.
        relayed_tokens: taken over from other engines, verified.
        tail_tokens: how many of those came from a block not taken whole.
        ahead_tokens: how many of the relayed ones had come to this node before anybody asked.
        found_place, found_tokens, found_bytes: what was held beyond the local hit at look-up,
            whatever was decided; None and 0 if nothing was, or nobody looked.
        advised_tokens: how many of those the policy would relay, whatever the mode made of it.
        num_bytes: bytes copied for the relay, also if they were not taken in the end.
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
        served_by: the agent whose engine served it.
        minhash_jaccard, embedding_cosine: how much its prompt is like the most similar recent one,
            0 to 1; None if that was not measured. They license nothing.
        similarity_band: of the cosine if there is one, else of the index: `high`, `mid`, `low`.
        next_agent, next_probability: who was expected to go on with its prompt, and how likely;
            None if nobody was.
        foreseen: whether its own agent had been expected; None if it does not go on with an
            earlier prompt, or nobody had been.
        deadline_s: after how long the load would have been given up, once the engine came to it; 0
            if none was planned.
        first_token_s: from the decision to the first token, which is what it predicts; None
            without one.
        shared_prefix_fraction: of the prompt, what the engine had and what could be had for it;
            None if nobody looked.
        overhead: the engine's cost of relay so far, see `WorkerCost`, plus `scheduler_s`.
        request_id: the engine's: that of the answer and what vLLM adds, see
            `decisions.rows.response_id`.
        time_s: when it arrived, in unix seconds.
        replica: the Serve replica that served it; empty without Serve.
        session_id: as the client gives it, by the header `X-Session-ID` or the field `session_id`.
        schema_version: of these fields.
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
    found_place: str | None = None
    found_tokens: int = 0
    found_bytes: int = 0
    advised_tokens: int = 0
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
    served_by: str = ""
    minhash_jaccard: float | None = None
    embedding_cosine: float | None = None
    similarity_band: str | None = None
    next_agent: str | None = None
    next_probability: float | None = None
    foreseen: bool | None = None
    ahead_tokens: int = 0
    deadline_s: float = 0.0
    first_token_s: float | None = None
    shared_prefix_fraction: float | None = None
    overhead: dict[str, float] = field(default_factory=dict)
    request_id: str = ""
    time_s: float = 0.0
    replica: str = ""
    session_id: str | None = None
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The form in which it travels: plain JSON types."""
        # `asdict` copies every leaf deeply, which is a millisecond of the engine's scheduler.
        decision = {name: _plain(getattr(self.decision, name)) for name in _DECISION_FIELDS}
        record = {name: _plain(getattr(self, name)) for name in _FIELDS}
        return record | {"decision": decision, "overhead": dict(self.overhead)}


_FIELDS = tuple(each.name for each in fields(RelayRecord))
_DECISION_FIELDS = tuple(each.name for each in fields(Decision))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
