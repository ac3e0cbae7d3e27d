"""Is quality the same, within a margin that was fixed before? Two one-sided tests.

That no difference was found proves nothing; that any difference is smaller than the margin does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvrelay.bench.audit.estimate.base import Floats

MIN_N = 4


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The mean difference within pairs, against a margin.

    Attributes:
        difference: arm minus control.
        low90, high90: the 90 % interval, inside the margin just when both tests reject at 5 %.
        margin: what difference does not matter.
        p: of the two one-sided tests, or of the one if only worse counts.
        n: pairs.
    """

    difference: float
    low90: float
    high90: float
    margin: float
    p: float
    n: int


def tost(differences: Floats, margin: float) -> Equivalence:
    """Whether the mean difference is within -margin and margin.

    Args:
        differences: arm minus control within pairs [n].
        margin: above zero, in the outcome's unit.

    Source: Schuirmann, J. Pharmacokin. Biopharm. 15, 1987, by statsmodels.
    """
    return _tested(differences, margin, one_sided=False)


def non_inferior(differences: Floats, margin: float) -> Equivalence:
    """Whether the mean difference is above -margin; better is never a fault.

    Args:
        differences: arm minus control within pairs, more being better [n].
        margin: above zero, in the outcome's unit.
    """
    return _tested(differences, margin, one_sided=True)


def _tested(differences: Floats, margin: float, one_sided: bool) -> Equivalence:
    from statsmodels.stats.weightstats import DescrStatsW

    n = len(differences)
    if n < MIN_N:
        mean = float(differences.mean()) if n else math.nan
        return Equivalence(mean, -math.inf, math.inf, margin, 1.0, n)
    mean = float(differences.mean())
    if not float(differences.std()) > 0.0:
        return _alike(mean, margin, n, one_sided)
    described = DescrStatsW(differences)
    low, high = described.tconfint_mean(alpha=0.10)
    if one_sided:
        p = float(described.ttest_mean(-margin, alternative="larger")[1])
    else:
        p = float(described.ttost_mean(-margin, margin)[0])
    return Equivalence(mean, float(low), float(high), margin, p, n)


def _alike(mean: float, margin: float, n: int, one_sided: bool) -> Equivalence:
    """All differences are one value, as when every answer is the same: Student has nothing to say.

    A share q of pairs that differ shows itself among n with a chance of 1 - (1 - q)^n. Measures of
    quality differ by at most 1, so a mean that is off by as much as the margin needs a share of
    at least that.
    """
    unseen = 1.0 - 0.05 ** (1.0 / n)
    slack = margin + (mean if one_sided else -abs(mean))
    p = (1.0 - min(slack, 1.0)) ** n if slack > 0.0 else 1.0
    return Equivalence(mean, mean - unseen, mean + unseen, margin, p, n)
