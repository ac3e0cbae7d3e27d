"""What each arm means: whom B's request goes to, and what it asks of relay.

In every arm A has computed its prompt before, under the arm's own salt, so that caches are in the
same state and no arm finds what another one has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvrelay.policies.modes import Mode

CONTROL = "recompute"


class Asked(StrEnum):
    """Whose engine a turn goes to."""

    RECEIVER = "receiver"  # B's own
    OWNER = "owner"  # the one that has computed A's prompt, wherever that is
    POOL = "pool"  # the same one for both agents, on the client's node


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve B's request.

    Attributes:
        name: in plans and rows.
        mode: what the request asks of relay.
        asked: whose engine it goes to; `POOL` is A's turn's too.
        codec: between nodes; None leaves it at `raw`.
        text_only: B gets what A has written instead of what A has read.
    """

    name: str
    mode: Mode
    asked: Asked = Asked.RECEIVER
    codec: str | None = None
    text_only: bool = False

    @property
    def relays(self) -> bool:
        """Whether it is meant to take KV over."""
        return self.mode in (Mode.RELAY, Mode.AUTO)

    @property
    def engines(self) -> int:
        """How many engines a session of two agents keeps."""
        return 1 if self.asked is Asked.POOL else 2


# In mode `recompute` an engine takes nothing from others but has its own prefix cache: from that
# the owner and the pool answer, as they would without kvrelay.
ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(CONTROL, Mode.RECOMPUTE),
        Arm("lookup_only", Mode.LOOKUP_ONLY),
        Arm("pull_and_discard", Mode.PULL_AND_DISCARD),
        Arm("relay", Mode.RELAY),
        Arm("policy", Mode.AUTO),
        Arm("owner_affinity", Mode.RECOMPUTE, asked=Asked.OWNER),
        Arm("shared_pool", Mode.RECOMPUTE, asked=Asked.POOL),
        Arm("text_only", Mode.RECOMPUTE, text_only=True),
        Arm("relay_raw", Mode.RELAY, codec="raw"),
        Arm("relay_lz4", Mode.RELAY, codec="lz4"),
        Arm("relay_split", Mode.RELAY, codec="split"),
    )
}
# Arms that can be mixed with the control in one stream: all go to B's engine, by one way.
TREATED = ("lookup_only", "pull_and_discard", "relay", "policy")
