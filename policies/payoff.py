"""What relay saves, estimated all the time from requests whose arm was drawn.

Each request gives an unbiased score of its saving (AIPW): with y its time to the first token, p
the probability of its arm, and m[arm] what the cost model predicts,

    score = m[recompute] - m[relay]  +  (y - m[recompute]) / p   if it was recomputed
                                     -  (y - m[relay]) / p       if it was relayed

Whatever m is, the score is right in the mean, as long as m was fixed before the arm was drawn; a
good m makes it precise. m is the prediction times the ratio of outcomes to predictions among
earlier sessions, as it was when this one began: its own outcomes never enter. Without
predictions it is the mean of the arm so far.

What is estimated: the mean saving of requests whose arm was drawn, each request counting the
same. A session's requests share one draw, so what its earlier ones did to it (a fuller cache)
belongs to the effect; but the draw must not change what its later ones are, or what is preferred
for them. What sessions do to each other is not seen: that needs `assignment.Switchback`. A record
is counted when its first token is there; those still under way are missing until then.

Forgetting: a new confidence sequence begins every half window and lives for one. It counts
sessions that began after it, so their draws were open. Each is wrong at any of its looks with a
probability of at most alpha / 2, and two are alive: **at any moment, with probability 1 - alpha,
all that the two have ever shown about their windows is right**. A restart, at any time, begins
another one. In the long run a share of at most alpha / 2 of all sequences is ever wrong. Each
estimator, overall or of a stratum, keeps this for itself; nothing is corrected for their number.

Sources: Robins, Rotnitzky and Zhao, JASA 89, 1994 (AIPW); confidence.py.
"""

from kvrelay.policies.confidence import (
    NO_MOMENTS,
    NOTHING,
    ConfidenceSequence,
    Estimate,
    Moments,
    Verdict,
)
from kvrelay.policies.decision import Arm
from kvrelay.policies.observation import Observation
from kvrelay.policies.strata import Stratum, bounded

ALPHA = 0.05
WINDOW_S = 86_400.0
OVERALL = "all"
_ALIVE = 2  # confidence sequences at a time, among which alpha is divided
_MAX_SESSIONS = 20_000
# The ratio of an arm is that of both until it was seen as often.
_SHARED_REQUESTS = 10.0


class _Session:
    __slots__ = ("born", "excess", "rare", "ratios", "requests", "score")

    def __init__(self, born: int, ratios: dict[Arm, float], rare: float) -> None:
        self.born = born
        self.ratios = ratios
        self.rare = rare
        self.requests = 0
        self.score = 0.0
        self.excess = {Arm.RELAY: 0.0, Arm.RECOMPUTE: 0.0}

    def moments(self) -> Moments:
        n, score = self.requests, self.score
        if not n:
            return NO_MOMENTS
        relay, recompute = self.excess[Arm.RELAY], self.excess[Arm.RECOMPUTE]
        head = (1.0, self.rare, n, score, score * score, score * n, n * n)
        return (*head, relay, relay * relay, recompute, recompute * recompute)


class _Calibration:
    """By which factor outcomes of each arm differ from predictions, learned from what came."""

    def __init__(self) -> None:
        # Of requests of an arm, weighted by 1/p: outcomes, predictions, weights, their squares.
        self._sums = {Arm.RELAY: [0.0] * 4, Arm.RECOMPUTE: [0.0] * 4}

    def learn(self, arm: Arm, outcome_s: float, predicted_s: float, weight: float) -> None:
        sums = self._sums[arm]
        sums[0] += weight * outcome_s
        sums[1] += weight * predicted_s
        sums[2] += weight
        sums[3] += weight * weight

    def fade(self) -> None:
        """From now on, what was learned counts half."""
        for sums in self._sums.values():
            sums[:] = [each / 2 for each in sums]

    def ratios(self) -> dict[Arm, float]:
        relay, recompute = self._sums[Arm.RELAY], self._sums[Arm.RECOMPUTE]
        predicted_s = relay[1] + recompute[1]
        shared = (relay[0] + recompute[0]) / predicted_s if predicted_s > 0.0 else 1.0
        return {Arm.RELAY: _ratio(relay, shared), Arm.RECOMPUTE: _ratio(recompute, shared)}


def _ratio(sums: list[float], shared: float) -> float:
    outcome_s, predicted_s, weight, squares = sums
    if predicted_s <= 0.0:
        return shared
    seen = weight * weight / squares
    return (seen * outcome_s / predicted_s + _SHARED_REQUESTS * shared) / (seen + _SHARED_REQUESTS)


class PayoffEstimator:
    """The rolling estimate for one kind of requests."""

    def __init__(
        self,
        alpha: float = ALPHA,
        window_s: float = WINDOW_S,
        max_sessions: int = _MAX_SESSIONS,
    ) -> None:
        """Nothing seen.

        Args:
            alpha: probability that what the living sequences have shown was ever wrong.
            window_s: what is older is forgotten; what is half as old may be.
            max_sessions: whose sums are kept so that later requests can join them; the oldest
                goes first. A session that comes back after that counts as another one.

        Raises:
            ValueError: alpha is not in (0, 1) or the window not positive.
        """
        if not 0.0 < alpha < 1.0 or window_s <= 0.0:
            raise ValueError(f"alpha in (0, 1), window_s over 0, got {alpha} and {window_s}")
        self._alpha = alpha
        self._window_s = window_s
        self._max_sessions = max_sessions
        self._started = 0
        self._now_s = 0.0
        self._sequences: list[ConfidenceSequence] = []
        self._sessions: dict[str, _Session] = {}
        self._calibration = _Calibration()

    def observe(self, seen: Observation) -> None:
        """Count one request; they come in about the order of their times."""
        self._now_s = max(self._now_s, seen.time_s)
        if not self._sequences or self._now_s - self._sequences[-1].since_s >= self._window_s / 2:
            self._begin()
        session = self._sessions.get(seen.session) or self._new_session(seen)
        before = session.moments()
        self._score(session, seen)
        after = session.moments()
        for sequence in self._sequences:
            if sequence.number <= session.born:
                sequence.update(before, after)

    def restart(self) -> None:
        """Forget everything: the world, or how arms are drawn, is another from now on."""
        self._sequences.clear()

    def estimate(self) -> Estimate:
        """The oldest window's, unless only a newer one knows a sign, or another sign."""
        found = [sequence.estimate() for sequence in self._sequences]
        known = [each for each in found if each.verdict is not Verdict.UNKNOWN]
        if not known:
            return found[0] if found else NOTHING
        return next(each for each in known if each.verdict is known[-1].verdict)

    def _begin(self) -> None:
        self._started += 1
        alpha = self._alpha / _ALIVE
        young = [s for s in self._sequences if self._now_s - s.since_s < self._window_s]
        self._sequences = [*young, ConfidenceSequence(alpha, self._now_s, self._started)]
        self._calibration.fade()

    def _new_session(self, seen: Observation) -> _Session:
        if len(self._sessions) >= self._max_sessions:
            del self._sessions[next(iter(self._sessions))]
        rare = min(seen.propensity, 1.0 - seen.propensity)
        session = _Session(self._started, self._calibration.ratios(), rare)
        self._sessions[seen.session] = session
        return session

    def _score(self, session: _Session, seen: Observation) -> None:
        relay_s, recompute_s = seen.relay_s or 1.0, seen.recompute_s or 1.0
        relay_m = session.ratios[Arm.RELAY] * relay_s
        recompute_m = session.ratios[Arm.RECOMPUTE] * recompute_s
        weight = 1.0 / seen.propensity
        y = seen.first_token_s
        if seen.arm is Arm.RELAY:
            correction = -weight * (y - relay_m)
            self._calibration.learn(Arm.RELAY, y, relay_s, weight)
        else:
            correction = weight * (y - recompute_m)
            self._calibration.learn(Arm.RECOMPUTE, y, recompute_s, weight)
        session.requests += 1
        session.score += recompute_m - relay_m + correction
        session.excess[seen.arm] += weight - 1.0


class Payoff:
    """The estimate over all requests, and by stratum."""

    def __init__(self, alpha: float = ALPHA, window_s: float = WINDOW_S) -> None:
        """Nothing seen; the arguments are those of `PayoffEstimator`."""
        self._alpha, self._window_s = alpha, window_s
        self._overall = PayoffEstimator(alpha, window_s)
        self._strata: dict[Stratum, PayoffEstimator] = {}

    def observe(self, seen: Observation) -> None:
        """Count one request."""
        self._overall.observe(seen)
        stratum = bounded(seen.stratum, self._strata)
        if stratum not in self._strata:
            self._strata[stratum] = PayoffEstimator(self._alpha, self._window_s)
        self._strata[stratum].observe(seen)

    def snapshot(self) -> dict[str, Estimate]:
        """Estimates by label, `all` first: for metrics (`saving_s`, `lower_s`, `upper_s`,
        `requests`) and reports. Bounds are infinite while there is no interval."""
        strata = sorted(self._strata.items(), key=lambda item: item[0].label)
        return {
            OVERALL: self._overall.estimate(),
            **{stratum.label: estimator.estimate() for stratum, estimator in strata},
        }
