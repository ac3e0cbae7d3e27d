"""What the mode of a request makes of a policy's advice."""

import pytest

from kvrelay.policies import Arm, Candidate, Decision, Reason
from kvrelay.policies.decision import recompute
from kvrelay.policies.modes import OPEN_MODES, Mode, decide_in_mode

LONGEST = Candidate("nodes", 500, 5000)
REFUSED = recompute(Reason.POLICY_NEVER)
PART = Decision(Arm.RELAY, Reason.RELAYED, 300, relay_s=0.1, recompute_s=0.4, propensity=0.01)


@pytest.mark.parametrize("advice", [REFUSED, PART])
def test_auto_is_the_policys(advice: Decision) -> None:
    assert decide_in_mode(Mode.AUTO, advice, LONGEST) is advice


@pytest.mark.parametrize("mode", [Mode.RELAY, Mode.PULL_AND_DISCARD])
@pytest.mark.parametrize("advice", [REFUSED, PART])
def test_forced_loads_take_everything(mode: Mode, advice: Decision) -> None:
    decision = decide_in_mode(mode, advice, LONGEST)
    assert (decision.arm, decision.reason, decision.num_tokens) == (
        Arm.RELAY,
        Reason.RELAYED,
        500,
    )
    assert decision.propensity == 1.0, "whoever forces an arm randomises nothing"
    assert (decision.relay_s, decision.recompute_s) == (advice.relay_s, advice.recompute_s)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(Mode.LOOKUP_ONLY, Reason.MODE_LOOKUP_ONLY), (Mode.RECOMPUTE, Reason.MODE_RECOMPUTE)],
)
def test_the_others_take_nothing(mode: Mode, reason: Reason) -> None:
    decision = decide_in_mode(mode, PART, LONGEST)
    assert (decision.arm, decision.reason, decision.num_tokens) == (Arm.RECOMPUTE, reason, 0)
    assert decision.propensity == 1.0


def test_what_tells_of_others_or_costs_them_is_not_open() -> None:
    assert {Mode.AUTO, Mode.RECOMPUTE} == OPEN_MODES
