"""Pure decision logic: a frozen view of a request in, a decision out.

No Ray, no vLLM, no torch and no clock live here: whoever calls passes the time in.
"""

from kvrelay.policies.base import Candidate, RelayPolicy, RelayView
from kvrelay.policies.baselines import (
    AlwaysRelay,
    FloorAndQueue,
    MinTokens,
    NeverRelay,
    parse_policy,
)
from kvrelay.policies.cost import CostPolicy
from kvrelay.policies.costs import Costs
from kvrelay.policies.decision import Arm, Decision, Reason
from kvrelay.policies.prefill import Work

__all__ = [
    "AlwaysRelay",
    "Arm",
    "Candidate",
    "CostPolicy",
    "Costs",
    "Decision",
    "FloorAndQueue",
    "MinTokens",
    "NeverRelay",
    "Reason",
    "RelayPolicy",
    "RelayView",
    "Work",
    "parse_policy",
]
