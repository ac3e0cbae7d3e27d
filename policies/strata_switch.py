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

With a plan of blocks the whole cluster has one arm at a time, whatever is preferred. Then nothing
is switched, and what is estimated is the effect of relaying on everybody.

Time is what the records say; there is no clock here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kvrelay.policies.assignment import Assignment, Preference, Switchback, assign
from kvrelay.policies.base import RelayView
from kvrelay.policies.confidence import NOTHING, Estimate, Verdict
from kvrelay.policies.decision import Arm, Decision, Reason
from kvrelay.policies.observation import Observation, in_block, observation
from kvrelay.policies.payoff import ALPHA, OVERALL, WINDOW_S, PayoffEstimator
from kvrelay.policies.strata import Stratum, bounded, stratum_of

# An engine keeps an estimator for each of some dozens of strata, and a session takes 0.8 kB.
_MAX_SESSIONS = 2_000


class Stage(StrEnum):
    """What a stratum does with requests that the policy prefers to relay."""

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """How often the lot decides, and for how long a stratum is off.

    Attributes:
        epsilon: share of sessions for which it decides, if the policy does not ask for more;
            0: never, and nothing is ever turned off.
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

    def estimator(self) -> PayoffEstimator:
        """One that has seen nothing."""
        return PayoffEstimator(self.alpha, self.window_s, _MAX_SESSIONS)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a stratum stands, or all requests together.

    Attributes:
        estimate: what relay saves where the policy prefers it: of a stratum since its last change,
            or what has just changed it; of all together through all changes.
        stage: None of all together.
    """

    estimate: Estimate
    stage: Stage | None


class _Lane:
    """One stratum."""

    def __init__(self, settings: SwitchSettings) -> None:
        self._settings = settings
        self._estimator = settings.estimator()
        self._until_s = 0.0
        self._wait_s = settings.first_wait_s
        self.stage = Stage.ON
        self.estimate = NOTHING

    def observe(self, seen: Observation) -> None:
        """A request that the policy preferred to relay."""
        self._estimator.observe(seen)
        self.estimate = self._estimator.estimate()

    def judge(self, now_s: float) -> None:
        """Turn it off or on, by what was observed."""
        verdict = self.estimate.verdict
        if self.stage is Stage.ON:
            if verdict is Verdict.DOES_NOT_PAY:
                self._off(now_s, self._settings.first_wait_s)
        elif verdict is Verdict.PAYS:
            self._enter(Stage.ON)
        elif self.stage is Stage.TRIAL and (
            verdict is Verdict.DOES_NOT_PAY
            or self.estimate.sessions >= self._settings.trial_sessions
        ):
            self._off(now_s, min(2 * self._wait_s, self._settings.max_wait_s))

    def wait(self, now_s: float) -> None:
        """Try it again if it was off for long enough."""
        if self.stage is Stage.OFF and now_s >= self._until_s:
            self._enter(Stage.TRIAL)

    def _off(self, now_s: float, wait_s: float) -> None:
        self._wait_s, self._until_s = wait_s, now_s + wait_s
        self._enter(Stage.OFF)

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self.estimate = NOTHING
        self._estimator.restart()


class StrataSwitch:
    """Draws arms, and keeps what came of them, by stratum.

    Wiring: `decision = switch.decide(view, policy.prefer(view), draw, time_s)` with the draw of
    the request's session; when the request is done, `switch.observe(record)`.
    """

    def __init__(
        self, settings: SwitchSettings | None = None, plan: Switchback | None = None
    ) -> None:
        """Every stratum is on.

        Args:
            plan: of blocks in which the whole cluster has one arm; None: each session its own.
        """
        self._settings = settings or SwitchSettings()
        self._plan = plan
        self._lanes: dict[Stratum, _Lane] = {}
        self._overall = self._settings.estimator()

    def arm_for(
        self, view: RelayView, preferred: Arm, draw: float, share: float = 0.0
    ) -> Assignment:
        """The arm of a request that could be relayed.

        Args:
            view: what the policy saw; it has a candidate.
            preferred: what the policy chose.
            draw: the session's, in [0, 1).
            share: of sessions for which the policy wants the lot to decide.
        """
        return assign(draw, *self._lot(view, preferred, share))

    def decide(self, view: RelayView, wanted: Preference, draw: float, time_s: float) -> Decision:
        """What the policy wants, or what the lot or a switched stratum makes of it.

        Args:
            view, draw: see `arm_for`.
            wanted: what the policy prefers.
            time_s: when the request arrived, as its record will say.
        """
        if self._plan is not None:
            assigned = Assignment(self._plan.arm(time_s), 0.5, explored=True)
            decision = wanted.given(assigned, because=Reason.SWITCHBACK)
            return replace(decision, switchback_pair=self._plan.pair(time_s))
        preferred = wanted.decision.arm
        share, otherwise = self._lot(view, preferred, wanted.share)
        because = Reason.EXPLORED if otherwise is preferred else Reason.STRATUM_OFF
        return wanted.given(assign(draw, share, otherwise), otherwise, because)

    def _lot(self, view: RelayView, preferred: Arm, share: float) -> tuple[float, Arm]:
        """For which share of sessions the lot decides, and what is done with the others."""
        epsilon = self._settings.epsilon
        lane = self._lanes.get(bounded(stratum_of(view), self._lanes))
        if lane is None or lane.stage is Stage.ON:
            return max(share, epsilon), preferred
        if lane.stage is Stage.OFF:  # however unsure the policy is: relay was seen to lose here
            return epsilon, Arm.RECOMPUTE
        if preferred is Arm.RELAY and epsilon:
            share = max(share, self._settings.trial_share)
        return max(share, epsilon), Arm.RECOMPUTE

    def observe(self, record: Mapping[str, Any]) -> dict[str, Standing]:
        """Learn from the record of a request that is done.

        Returns:
            What it may have changed: its stratum, by label, and `all`.

        Raises:
            ValueError: the record is not one, see `observation`.
        """
        seen = observation(record)
        if seen is not None and self._plan is not None:
            seen = in_block(seen, self._plan)
        if seen is None:
            return {}
        key = bounded(seen.stratum, self._lanes)
        if key not in self._lanes:
            self._lanes[key] = _Lane(self._settings)
        lane = self._lanes[key]
        lane.wait(seen.time_s)
        told: dict[str, Standing] = {}
        estimate = lane.estimate
        if seen.preferred is not Arm.RECOMPUTE:
            lane.observe(seen)
            estimate = lane.estimate  # the one that decides, which a change makes forget
            if self._plan is None:
                lane.judge(seen.time_s)
            self._overall.observe(seen)
            told[OVERALL] = Standing(self._overall.estimate(), None)
        told[key.label] = Standing(estimate, lane.stage)
        return told

    def stages(self) -> dict[str, Stage]:
        """What each stratum does, by label."""
        return {key.label: lane.stage for key, lane in self._lanes.items()}
