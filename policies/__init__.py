"""Pure decision logic: a frozen view of a request in, a decision out.

No Ray, no vLLM, no torch and no clock live here: whoever calls passes the time in.
"""

from kvrelay.policies.base import Candidate, RelayPolicy, RelayView
from kvrelay.policies.baselines import (
    AlwaysRelay,
    MinTokens,
    NeverRelay,
    SimilarPrompts,
    parse_policy,
)
from kvrelay.policies.decision import Arm, Decision, Reason

__all__ = [
    "AlwaysRelay",
    "Arm",
    "Candidate",
    "Decision",
    "MinTokens",
    "NeverRelay",
    "Reason",
    "RelayPolicy",
    "RelayView",
    "SimilarPrompts",
    "parse_policy",
]
