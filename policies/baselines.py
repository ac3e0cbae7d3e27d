"""The fixed rules that others ship; the yardsticks every better policy is held against."""

from kvrelay.policies.base import RelayPolicy, RelayView
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


def parse_policy(text: str) -> RelayPolicy:
    """The policy that a configuration names.

    Args:
        text: `always`, `never` or `min_tokens:N`.

    Raises:
        ValueError: unknown name or impossible parameter; the message lists the known ones.
    """
    name, colon, parameter = text.partition(":")
    if name == "always" and not colon:
        return AlwaysRelay()
    if name == "never" and not colon:
        return NeverRelay()
    if name == "min_tokens":
        if not parameter.isdecimal():
            raise ValueError(f"policy '{text}': min_tokens needs a whole number, as min_tokens:256")
        return MinTokens(int(parameter))
    raise ValueError(f"unknown policy '{text}'; known: always, never, min_tokens:N")
