"""Relay turns itself off where it is seen to lose, and is tried again later.

    on --- the interval of what relay saves lies below 0 ---> off: recompute; the lot goes on
     ^                                                         |  after a wait
     |                                                         v
     +------------- it lies above 0 ---------------------- on trial: the lot decides more often
                                                               |  below 0, or no end in sight
                                                               +---> off, twice as long as before

Only requests for which the policy prefers to relay are judged and switched: a policy that
relays the right tenth of a stratum is not blamed for the other nine. At each change what was
seen is forgotten, since arms are drawn otherwise from then on. What is promised is that of
`payoff.py`: from one window or change to the next, a stratum in which relay pays is turned off
with a probability of at most alpha / 2.

Time is what the records say; there is no clock here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kvrelay.policies.assignment import Assignment, assign
from kvrelay.policies.base import RelayView
from kvrelay.policies.confidence import Estimate, Verdict
from kvrelay.policies.decision import Arm, Decision, Reason
from kvrelay.policies.observation import Observation, observation
from kvrelay.policies.payoff import ALPHA, WINDOW_S, PayoffEstimator
from kvrelay.policies.strata import Stratum, bounded, stratum_of


class Stage(StrEnum):
    """What a stratum does with requests that the policy prefers to relay."""

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """How often the lot decides, and for how long a stratum is off.

    Attributes:
        epsilon: share of sessions for which it decides; 0: never, and nothing is ever turned off.
        trial_share: the same on trial, if that is more.
        trial_sessions: a trial that has seen so many and knows no answer ends without relay.
        first_wait_s, max_wait_s: how long a stratum is off at first, and at most.
        alpha, window_s: of the estimate.
    """

    epsilon: float = 0.01
    trial_share: float = 0.2
    trial_sessions: int = 2000
    first_wait_s: float = 600.0
    max_wait_s: float = 86_400.0
    alpha: float = ALPHA
    window_s: float = WINDOW_S

    def __post_init__(self) -> None:
        if not (0.0 <= self.epsilon <= 1.0 and 0.0 < self.trial_share <= 1.0):
            raise ValueError(
                f"epsilon must be in [0, 1] and trial_share in (0, 1], got {self.epsilon} and "
                f"{self.trial_share}"
            )
        if not 0.0 < self.first_wait_s <= self.max_wait_s:
            raise ValueError("first_wait_s must be over 0 and at most max_wait_s")


class _Lane:
    """One stratum."""

    def __init__(self, settings: SwitchSettings) -> None:
        self._settings = settings
        self._estimator = PayoffEstimator(settings.alpha, settings.window_s)
        self._until_s = 0.0
        self._wait_s = settings.first_wait_s
        self.stage = Stage.ON

    def share(self) -> float:
        settings = self._settings
        if self.stage is not Stage.TRIAL or settings.epsilon == 0.0:
            return settings.epsilon
        return max(settings.trial_share, settings.epsilon)

    def estimate(self) -> Estimate:
        return self._estimator.estimate()

    def observe(self, seen: Observation) -> None:
        if self.stage is Stage.OFF and seen.time_s >= self._until_s:
            self._enter(Stage.TRIAL)
        if seen.preferred is Arm.RECOMPUTE:
            return
        self._estimator.observe(seen)
        estimate = self._estimator.estimate()
        if self.stage is Stage.ON:
            if estimate.verdict is Verdict.DOES_NOT_PAY:
                self._off(seen.time_s, self._settings.first_wait_s)
        elif estimate.verdict is Verdict.PAYS:
            self._enter(Stage.ON)
        elif self.stage is Stage.TRIAL and (
            estimate.verdict is Verdict.DOES_NOT_PAY
            or estimate.sessions >= self._settings.trial_sessions
        ):
            self._off(seen.time_s, min(2 * self._wait_s, self._settings.max_wait_s))

    def _off(self, now_s: float, wait_s: float) -> None:
        self._wait_s, self._until_s = wait_s, now_s + wait_s
        self._enter(Stage.OFF)

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._estimator.restart()


class StrataSwitch:
    """Draws arms, and keeps what came of them, by stratum.

    Wiring, in the connector: `decision = switch.decide(view, policy.decide(view), draw)` with the
    session's `assignment.session_draw`; when the request is done, `switch.observe(record)`.
    """

    def __init__(self, settings: SwitchSettings | None = None) -> None:
        self._settings = settings or SwitchSettings()
        self._lanes: dict[Stratum, _Lane] = {}

    def arm_for(self, view: RelayView, preferred: Arm, draw: float) -> Assignment:
        """The arm of a request that could be relayed.

        Args:
            view: what the policy saw; it has a candidate.
            preferred: what the policy chose.
            draw: the session's, in [0, 1).
        """
        lane = self._lanes.get(bounded(stratum_of(view), self._lanes))
        if lane is None or preferred is Arm.RECOMPUTE:
            return assign(draw, self._settings.epsilon, preferred)
        otherwise = Arm.RELAY if lane.stage is Stage.ON else Arm.RECOMPUTE
        return assign(draw, lane.share(), otherwise)

    def decide(self, view: RelayView, decision: Decision, draw: float) -> Decision:
        """The policy's decision, or what the lot or a switched stratum makes of it."""
        assigned = self.arm_for(view, decision.arm, draw)
        told = replace(decision, propensity=assigned.propensity, preferred=decision.arm)
        if assigned.arm is decision.arm:
            return told
        if assigned.arm is Arm.RELAY:
            num_tokens = view.candidates[0].num_tokens
            return replace(told, arm=Arm.RELAY, reason=Reason.RELAYED, num_tokens=num_tokens)
        reason = Reason.EXPLORED if assigned.explored else Reason.STRATUM_OFF
        return replace(told, arm=Arm.RECOMPUTE, reason=reason, num_tokens=0)

    def observe(self, record: Mapping[str, Any]) -> None:
        """Learn from the record of a request that is done.

        Raises:
            ValueError: the record is not one, see `observation`.
        """
        seen = observation(record)
        if seen is None:
            return
        key = bounded(seen.stratum, self._lanes)
        if key not in self._lanes:
            self._lanes[key] = _Lane(self._settings)
        self._lanes[key].observe(seen)

    def stages(self) -> dict[str, Stage]:
        """What each stratum does, by label."""
        return {key.label: lane.stage for key, lane in self._lanes.items()}

    def estimates(self) -> dict[str, Estimate]:
        """What relay saves where the policy prefers it, by label, since the last change."""
        return {key.label: lane.estimate() for key, lane in self._lanes.items()}
