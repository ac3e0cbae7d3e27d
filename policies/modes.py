"""What a request may ask of relay, and what that makes of a policy's advice."""

from dataclasses import replace
from enum import StrEnum

from kvrelay.policies.base import Candidate
from kvrelay.policies.decision import Arm, Decision, Reason, recompute


class Mode(StrEnum):
    """What a request may ask of relay. A mode lifts the policy's advice, never a safety rule."""

    AUTO = "auto"  # the policy decides
    RECOMPUTE = "recompute"  # take nothing from other engines
    RELAY = "relay"  # take whatever is held
    LOOKUP_ONLY = "lookup_only"  # say what is held and what the policy advises, then recompute
    PULL_AND_DISCARD = "pull_and_discard"  # load whatever is held, then recompute all the same


# The others tell a caller what somebody else has asked, or spend the cluster's bandwidth.
OPEN_MODES = frozenset({Mode.AUTO, Mode.RECOMPUTE})


def decide_in_mode(mode: Mode, advice: Decision, longest: Candidate) -> Decision:
    """The decision on a request of this mode.

    Args:
        mode: what the request asks for.
        advice: the policy's decision; its estimates stay in the answer.
        longest: the candidate of most tokens, which forced relays take.
    """
    match mode:
        case Mode.AUTO:
            return advice
        case Mode.RECOMPUTE:
            return recompute(Reason.MODE_RECOMPUTE)
        case Mode.LOOKUP_ONLY:
            arm, reason, num_tokens = Arm.RECOMPUTE, Reason.MODE_LOOKUP_ONLY, 0
        case Mode.RELAY | Mode.PULL_AND_DISCARD:
            arm, reason, num_tokens = Arm.RELAY, Reason.RELAYED, longest.num_tokens
    return replace(advice, arm=arm, reason=reason, num_tokens=num_tokens, propensity=1.0)
