"""An interval that stays valid however often one looks at it: a confidence sequence.

Each session s brings a score S[s], the sum over its n[s] requests of unbiased scores of what
relay saves. The estimate is sum(S) / sum(n). At the true saving m the sessions' S - m*n have
mean zero, and their sum obeys Robbins' normal mixture bound at all times together,

    sum(S - m*n)^2 <= q(x) * sum((S - m*n)^2),    q(x) = (1 + 1/x) * (ln(1 + x) + 2*ln(1/alpha)),

but for a probability alpha. x is time, in units for which the bound is to be tight.

Where one arm is rare, almost nothing is known until it was seen several times, however many
sessions there were. So time is counted as the effective number k of sessions (Kish) of the rarer
arm, each with the part of its weight that stands for requests not seen in that arm, (1-p)/p:

- x = k / 8: tightest for some dozens to thousands of them;
- solved for m, the squares on the right grow with a wrong m as well, since few sessions share its
  effect: that widens the interval by the root of 1 / (1 - q/k), and there is none while k <= q.

What this covers. With symmetric scores the bound holds for any tails (de la Pena); else in the
limit of many sessions, as a central limit theorem does: how well it does with heavy tails and few
sessions, `kvrelay bench payoff` counts. If savings change with time, it covers their mean over the
requests so far.

Sources: Robbins, Ann. Math. Statist. 41, 1970; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
Time-uniform central limit theory and asymptotic confidence sequences, arXiv 2103.06476; de la
Pena, Ann. Probab. 27, 1999; Kish, Survey Sampling, 1965.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

_TIGHT_SESSIONS = 8.0
_MAX_SESSIONS = 10**9

# Of one session: 1, propensity of the rarer arm, n, S, S^2, S*n, n^2, and of the excess weight v of
# requests that were relayed and that were recomputed: v, v^2, v, v^2.
Moments = tuple[float, ...]
NO_MOMENTS: Moments = (0.0,) * 11


class Verdict(StrEnum):
    """What an interval says."""

    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    UNKNOWN = "not known yet"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What relay saves per request, in seconds of TTFT: recomputing less relaying.

    Attributes:
        saving_s: the estimate; NaN if nothing was seen.
        lower_s, upper_s: its interval, valid at every look; infinite while there is none.
        stderr_s: standard error clustered by session, for one look at a time fixed beforehand.
        requests, sessions: how many it rests on.
        since_s: the sessions are those that began after this time.
        more_sessions: about how many more it takes until the sign is known, if the estimate is
            right; 0 if it is known.
    """

    saving_s: float
    lower_s: float
    upper_s: float
    stderr_s: float
    requests: int
    sessions: int
    since_s: float
    more_sessions: int

    @property
    def verdict(self) -> Verdict:
        """On which side of 0 the interval lies."""
        if self.lower_s > 0.0:
            return Verdict.PAYS
        return Verdict.DOES_NOT_PAY if self.upper_s < 0.0 else Verdict.UNKNOWN


NOTHING = Estimate(math.nan, -math.inf, math.inf, math.inf, 0, 0, 0.0, 0)


def mixture_bound(effective: float, alpha: float) -> float:
    """q: how often its variance the squared sum may be, at all times together."""
    if effective <= 0.0:
        return math.inf
    x = effective / _TIGHT_SESSIONS
    return (1.0 + 1.0 / x) * (math.log1p(x) - 2.0 * math.log(alpha))


class ConfidenceSequence:
    """Sums over sessions, and the interval that they give."""

    __slots__ = ("_alpha", "_totals", "number", "since_s")

    def __init__(self, alpha: float, since_s: float, number: int = 1) -> None:
        """Nothing seen.

        Args:
            alpha: probability that the truth is ever outside.
            number: which of the sequences of one estimator it is.
        """
        self._alpha = alpha
        self._totals = NO_MOMENTS
        self.since_s = since_s
        self.number = number

    def update(self, before: Moments, after: Moments) -> None:
        """A session's moments have changed."""
        self._totals = tuple(
            [t - b + a for t, b, a in zip(self._totals, before, after, strict=True)]
        )

    def estimate(self) -> Estimate:
        """The estimate by what was seen so far."""
        sessions, rare, requests, total, squares, cross, sizes, *excess = self._totals
        if sessions < 0.5:
            return NOTHING
        saving_s = total / requests
        variance = max(0.0, squares - 2.0 * saving_s * cross + saving_s * saving_s * sizes)
        stderr_s = math.sqrt(variance) / requests
        effective = min(_kish(excess[0], excess[1]), _kish(excess[2], excess[3]))
        bound = mixture_bound(effective, self._alpha)
        half_s = math.inf
        if effective > bound:
            half_s = stderr_s * math.sqrt(bound / (1.0 - bound / effective))
        more = 0
        if half_s >= abs(saving_s):
            needed = self._effective_needed(saving_s, stderr_s, effective)
            each = sessions / (effective if effective >= 2.0 else rare)
            more = math.ceil(min(max(needed - effective, 1.0) * each, _MAX_SESSIONS))
        return Estimate(
            saving_s,
            saving_s - half_s,
            saving_s + half_s,
            stderr_s,
            round(requests),
            round(sessions),
            self.since_s,
            more,
        )

    def _effective_needed(self, saving_s: float, stderr_s: float, effective: float) -> float:
        """k at which the interval ends at 0: q * variance / k / (1 - q/k) = saving^2."""
        noise = 1.0  # as long as nothing is known of the rarer arm: just enough for an interval
        if effective >= 2.0:
            noise = stderr_s * stderr_s * effective / max(saving_s * saving_s, 1e-30)
        needed = effective
        for _ in range(8):
            needed = mixture_bound(max(needed, _TIGHT_SESSIONS), self._alpha) * (1.0 + noise)
        return needed


def _kish(total: float, squares: float) -> float:
    """Effective number of equally weighted sessions."""
    return total * total / squares if squares > 0.0 else 0.0
