"""What a policy answers, and the closed list of reasons it may give."""

from dataclasses import dataclass
from enum import StrEnum


class Arm(StrEnum):
    """What is done with the reusable prefix of one request."""

    RELAY = "relay"
    RECOMPUTE = "recompute"


class Reason(StrEnum):
    """Why a request was relayed or not; every refusal has a reason of its own.

    The first group is decided at look-up, the second is what befell a load that had
    been decided for; those requests were recomputed from the first block that failed.
    """

    RELAYED = "relayed"
    NO_SOURCE = "no_source"  # nobody holds a block beyond what is cached locally
    LOCAL_HIT = "local_hit"  # the local prefix cache already covers all that is held
    MODE_RECOMPUTE = "mode_recompute"  # the request asked for it
    MODE_LOOKUP_ONLY = "mode_lookup_only"  # the request asked what is held, not to have it
    POLICY_NEVER = "policy_never"
    TOO_FEW_TOKENS = "too_few_tokens"
    DISSIMILAR = "dissimilar"  # no recent prompt is similar enough for where the KV is
    SIMILARITY_UNKNOWN = "similarity_unknown"  # the policy goes by it, and it was not measured
    STRATUM_OFF = "stratum_off"  # relay was seen to lose for this kind of request
    SWITCHBACK = "switchback"  # the whole cluster recomputes in this block of time
    TOO_MANY_LOADS = "too_many_loads"  # for the policy, below the engine's own cap
    CHEAPER_TO_RECOMPUTE = "cheaper_to_recompute"
    UNCALIBRATED = "uncalibrated"  # too little is known to compare costs, and the prefix is short
    EXPLORED = "explored"  # recomputed by chance, to learn what that costs now
    LOADS_IN_FLIGHT = "loads_in_flight"  # the engine's cap of concurrent loads is reached
    UNSUPPORTED_REQUEST = "unsupported_request"  # prompt_logprobs, prompt embeddings, ...
    UNSUPPORTED_MODEL = "unsupported_model"  # hybrid KV groups, MLA, several ranks, ...
    RELAY_OFF = "relay_off"  # no store is configured, or the connector could not start
    STORE_UNAVAILABLE = "store_unavailable"
    BREAKER_OPEN = "breaker_open"  # repeated faults turned relay off on this engine
    FAULT = "fault"  # an error inside kvrelay, caught

    LOAD_DEADLINE = "load_deadline"
    LOAD_EVICTED = "load_evicted"  # the slot was reused before or during the copy
    LOAD_CORRUPT = "load_corrupt"  # the checksum of the copied bytes did not match
    LOAD_FAULT = "load_fault"  # an error while copying, caught
    LOAD_CANCELLED = "load_cancelled"  # the client left while loading
    TRANSFER_FAILED = "transfer_failed"  # another node could not be read from
    SOURCE_LOST = "source_lost"  # nobody holds a block any more that was there at look-up
    NO_ROOM = "no_room"  # this node's store has no slot for what comes in
    MODE_DISCARD = "mode_discard"  # all has come, and was given up as the request had asked


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision, with the estimates it rests on.

    Attributes:
        arm: relay or recompute.
        reason: why.
        num_tokens: tokens to take from outside beyond the local hit; 0 to recompute.
        relay_s: predicted time from the decision to the first token if relayed, the median;
            None if not predicted. With it: what 5, 75 and 95 of 100 outcomes stay below.
        recompute_s: the same if recomputed.
        load_p95_s: what 95 of 100 loads would be over after, from their begin.
        propensity: probability with which this arm was chosen; 1 unless randomised.
        preferred: what the policy would have chosen; None if it leaves nothing to chance.
        explored: the other arm had been chosen but for chance.
        uncalibrated: too little is known to trust the predictions, so a fixed rule decided.
        switchback_pair: number of the pair of blocks of time, in which the whole cluster has one
            arm, that gave it this one; None if the arm is the request's own.
    """

    arm: Arm
    reason: Reason
    num_tokens: int = 0
    relay_s: float | None = None
    relay_p5_s: float | None = None
    relay_p75_s: float | None = None
    relay_p95_s: float | None = None
    recompute_s: float | None = None
    recompute_p5_s: float | None = None
    recompute_p75_s: float | None = None
    recompute_p95_s: float | None = None
    load_p95_s: float | None = None
    propensity: float = 1.0
    preferred: Arm | None = None
    explored: bool = False
    uncalibrated: bool = False
    switchback_pair: int | None = None

    def __post_init__(self) -> None:
        if (self.arm is Arm.RELAY) != (self.num_tokens > 0):
            raise ValueError(f"{self.arm} with num_tokens={self.num_tokens}")
        if not 0.0 < self.propensity <= 1.0:
            raise ValueError(f"propensity must be in (0, 1], got {self.propensity}")


def recompute(reason: Reason) -> Decision:
    """A refusal with its reason."""
    return Decision(Arm.RECOMPUTE, reason)
