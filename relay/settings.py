"""The connector's settings, parsed once at the edge of vLLM's untyped dictionary."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvrelay.policies import parse_policy


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What an engine needs to know about relay.

    Attributes:
        store: address of the node's store (an abstract Unix socket); None turns relay off.
        policy: as `kvrelay.policies.parse_policy` takes it.
        capacity_bytes: of the store's arena; used by whoever starts the store.
        encoded_bytes: what the store may hold encoded besides; 0: nothing, so what the arena has
            no room for is evicted. Used by whoever starts the store.
        transport, codec: how stores read from other nodes, such as `nixl` or `plasma`, `raw`
            or `split`; None takes what has proved fastest; used by whoever starts the store.
        exploration, queue_weight: of the policy `cost`, see `CostPolicy`.
        switchback_s: length of blocks of time in which all engines with this setting, whose policy
            is `cost`, take the same arm, see `Switchback.of_cluster`; >= 1, or 0: there are none.
        load_deadline_s: a load that takes longer is given up and recomputed; > 0.
        load_patience: a load of the policy `cost` is given up, if that is earlier, after so many
            times what it is predicted to take at most; >= 1.
        max_loads_in_flight: concurrent loads of an engine; further requests recompute; >= 1.
        max_held_fraction: share of the engine's KV blocks that saves may hold; in (0, 1].
        agent: the agent's name, for the record.
        replica: the Serve replica, for the record; whoever starts the engine fills it in.
        decisions_directory: where the log of records lies, see `decisions.segments`; None: nowhere.
        decisions_bytes: what that directory may hold on one node; 0: no log.
    """

    store: str | None = None
    policy: str = "cost"
    exploration: float = 0.01
    queue_weight: float = 0.5
    switchback_s: float = 0.0
    capacity_bytes: int = 2 << 30
    encoded_bytes: int = 0
    transport: str | None = None
    codec: str | None = None
    load_deadline_s: float = 2.0
    load_patience: float = 3.0
    max_loads_in_flight: int = 8
    max_held_fraction: float = 0.5
    agent: str = ""
    replica: str = ""
    decisions_directory: str | None = None
    decisions_bytes: int = 0

    def __post_init__(self) -> None:
        parse_policy(self.policy, None, self.exploration, self.queue_weight)
        if self.switchback_s != 0 and not 1 <= self.switchback_s < math.inf:
            raise ValueError(f"switchback_s must be 0 or at least 1, got {self.switchback_s}")
        if self.switchback_s and self.policy != "cost":
            raise ValueError(f"switchback_s needs the policy cost, not {self.policy}")
        if self.load_deadline_s <= 0:
            raise ValueError(f"load_deadline_s must be positive, got {self.load_deadline_s}")
        if self.load_patience < 1:
            raise ValueError(f"load_patience must be >= 1, got {self.load_patience}")
        if self.max_loads_in_flight < 1:
            raise ValueError(f"max_loads_in_flight must be >= 1, got {self.max_loads_in_flight}")
        if not 0 < self.max_held_fraction <= 1:
            raise ValueError(f"max_held_fraction must be in (0, 1], got {self.max_held_fraction}")
        if self.capacity_bytes < 1:
            raise ValueError(f"capacity_bytes must be positive, got {self.capacity_bytes}")
        if self.encoded_bytes < 0:
            raise ValueError(f"encoded_bytes must not be negative, got {self.encoded_bytes}")
        if self.decisions_bytes < 0:
            raise ValueError(f"decisions_bytes must not be negative, got {self.decisions_bytes}")

    def to_extra_config(self) -> dict[str, Any]:
        """The form that vLLM's `kv_connector_extra_config` takes."""
        return asdict(self)

    @classmethod
    def from_extra_config(cls, extra: dict[str, Any]) -> "RelaySettings":
        """Parse `kv_connector_extra_config`.

        Raises:
            ValueError: an unknown key or an impossible value.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(extra) - known)
        if unknown:
            raise ValueError(f"unknown relay settings {unknown}; known: {sorted(known)}")
        return cls(**extra)
