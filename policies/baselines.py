"""The fixed rules that others ship; the yardsticks every better policy is held against."""

import re

from kvrelay.policies.base import RelayPolicy, RelayView
from kvrelay.policies.cost import CostPolicy
from kvrelay.policies.costs import Costs
from kvrelay.policies.decision import Arm, Decision, Reason, recompute


class AlwaysRelay(RelayPolicy):
    """Relay whatever the best candidate holds."""

    @property
    def name(self) -> str:
        return "always"

    def decide(self, view: RelayView) -> Decision:
        return Decision(Arm.RELAY, Reason.RELAYED, view.candidates[0].num_tokens)


class NeverRelay(RelayPolicy):
    """Recompute always: the control arm."""

    @property
    def name(self) -> str:
        return "never"

    def decide(self, view: RelayView) -> Decision:
        return recompute(Reason.POLICY_NEVER)


class MinTokens(RelayPolicy):
    """Relay when at least `min_tokens` tokens come from outside.

    The static threshold that vLLM (64), SGLang (256) and llm-d (2048 and up) ship.
    """

    def __init__(self, min_tokens: int) -> None:
        if min_tokens < 1:
            raise ValueError(f"min_tokens must be at least 1, got {min_tokens}")
        self._min_tokens = min_tokens

    @property
    def name(self) -> str:
        return f"min_tokens:{self._min_tokens}"

    def decide(self, view: RelayView) -> Decision:
        num_tokens = view.candidates[0].num_tokens
        if num_tokens < self._min_tokens:
            return recompute(Reason.TOO_FEW_TOKENS)
        return Decision(Arm.RELAY, Reason.RELAYED, num_tokens)


class FloorAndQueue(MinTokens):
    """As `MinTokens`, unless as many as `max_loads` loads are under way.

    The rule of llm-d's router (pull request 2833, 2026), which measured it with 1024 and 8.
    """

    def __init__(self, min_tokens: int, max_loads: int) -> None:
        super().__init__(min_tokens)
        if max_loads < 1:
            raise ValueError(f"max_loads must be at least 1, got {max_loads}")
        self._max_loads = max_loads

    @property
    def name(self) -> str:
        return f"floor_and_queue:{self._min_tokens},{self._max_loads}"

    def decide(self, view: RelayView) -> Decision:
        decision = super().decide(view)
        if decision.arm is Arm.RELAY and view.loads_in_flight >= self._max_loads:
            return recompute(Reason.TOO_MANY_LOADS)
        return decision


def parse_policy(
    text: str, costs: Costs | None = None, exploration: float = 0.01, queue_weight: float = 0.5
) -> RelayPolicy:
    """The policy that a configuration names.

    Args:
        text: `always`, `never`, `min_tokens:N`, `floor_and_queue:N,LOADS` or `cost`.
        costs: for `cost`; by default, nothing is known yet.
        exploration, queue_weight: for `cost`, see `CostPolicy`.

    Raises:
        ValueError: unknown name or impossible parameter; the message lists the known ones.
    """
    name, colon, parameter = text.partition(":")
    if name == "always" and not colon:
        return AlwaysRelay()
    if name == "never" and not colon:
        return NeverRelay()
    if name == "cost" and not colon:
        return CostPolicy(costs or Costs(), exploration, queue_weight)
    if name == "min_tokens":
        if not parameter.isdecimal():
            raise ValueError(f"policy '{text}': min_tokens needs a whole number, as min_tokens:256")
        return MinTokens(int(parameter))
    if name == "floor_and_queue":
        numbers = re.fullmatch(r"(\d+),(\d+)", parameter)
        if numbers is None:
            raise ValueError(
                f"policy '{text}': floor_and_queue needs two whole numbers, tokens and loads, "
                "as floor_and_queue:1024,8"
            )
        return FloorAndQueue(int(numbers[1]), int(numbers[2]))
    raise ValueError(
        f"unknown policy '{text}'; "
        "known: always, never, min_tokens:N, floor_and_queue:N,LOADS, cost"
    )
