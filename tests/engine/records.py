"""Records of requests as the connector writes them: a field that does not exist is a TypeError."""

from __future__ import annotations

from typing import Any

from kvrelay.policies import Arm, Decision, Reason
from kvrelay.policies.decision import recompute
from kvrelay.relay.record import RelayRecord


def made_record(reason: Reason = Reason.RELAYED, **changes: Any) -> dict[str, Any]:
    """Of a prompt of 200 tokens, 128 of them relayed if the reason says so."""
    relays = reason is Reason.RELAYED
    values: dict[str, Any] = {
        "agent": "reader",
        "policy": "always",
        "mode": "auto",
        "decision": Decision(Arm.RELAY, reason, 128) if relays else recompute(reason),
        "reason": reason,
        "prompt_tokens": 200,
        "local_tokens": 0,
        "recomputed_tokens": 72 if relays else 200,
        "relayed_tokens": 128 if relays else 0,
    }
    return RelayRecord(**(values | changes)).to_dict()
