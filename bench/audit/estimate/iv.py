"""What a relay does to those that were relayed: assignment as an instrument for completion.

Not every assigned relay completes (the entry was evicted, the transfer timed out), and those that
do are not a random part. Assignment is random, so the effect of completion is the effect of
assignment over the share that it makes complete, if assignment without completion changes nothing.
It does cost a look-up; so the effect of assignment (intention to treat) is reported first.
"""

from __future__ import annotations

import math

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, count, students
from kvrelay.bench.audit.estimate.neyman import nothing
from kvrelay.bench.audit.estimate.regression import clustered_mean

# Below this F of the first stage the interval is not to be trusted (Staiger and Stock 1997).
_WEAK_F = 10.0


def complier(y: Floats, assigned: Bools, completed: Bools) -> Estimate:
    """Two-stage least squares of the outcome on completion, with assignment as instrument.

    Each row is what was drawn: where sessions were, their means, and whether any relay completed.

    Args:
        y: outcomes [n].
        assigned: who was assigned the arm [n].
        completed: whose bytes moved and were used [n].

    Source: Imbens and Angrist, Econometrica 62, 1994, by linearmodels.
    """
    n = len(y)
    d, z = completed.astype(np.float64), assigned.astype(np.float64)
    if min(int(assigned.sum()), int((~assigned).sum())) < 2:
        return nothing(n, "fewer than two rows in an arm")
    share1, share0 = float(d[assigned].mean()), float(d[~assigned].mean())
    if share1 <= share0:
        return nothing(n, "assignment completed nothing more")
    effect, error = _fit(y, d, z)
    mean = float(y[~assigned].mean())
    found = students(effect, error, n - 2, n, n, control_mean=mean)
    variance = sum(s * (1 - s) / int(m.sum()) for s, m in ((share1, assigned), (share0, ~assigned)))
    first_stage = (share1 - share0) ** 2 / variance if variance > 0.0 else math.inf
    found = found.noted(f"{share1:.1%} of the assigned completed, {share0:.1%} of the others")
    return found.noted("weak instrument") if first_stage < _WEAK_F else found


def complier_pairs(differences: Floats, completed: Floats, sessions: Ints) -> Estimate:
    """The same within pairs: mean difference over the share that completed.

    Args:
        differences: outcome under the arm less that under the control [pairs].
        completed: completion under the arm less that under the control [pairs].
        sessions: number of each pair's session [pairs].

    The error is by the delta method: with tau the ratio, that of the mean of d - tau c over the
    mean of c.
    """
    n = len(differences)
    share = float(completed.mean()) if n else 0.0
    if n < 2 or share <= 0.0:
        return nothing(n, "no pair in which the relay completed")
    effect = float(differences.mean()) / share
    units = count(sessions, n)
    clusters = sessions if units < n else None
    error, degrees = clustered_mean(differences - effect * completed, clusters)
    return students(effect, error / share, degrees, n, units).noted(f"{share:.1%} completed")


def _fit(y: Floats, d: Floats, z: Floats) -> tuple[float, float]:
    from linearmodels.iv import IV2SLS

    fit = IV2SLS(y, np.ones((len(y), 1)), d, z).fit(cov_type="robust", debiased=True)
    return float(fit.params.iloc[-1]), float(fit.std_errors.iloc[-1])
