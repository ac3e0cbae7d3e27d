"""Augmented inverse propensity weighting, for arms that were not equally likely."""

from __future__ import annotations

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, count, students
from kvrelay.bench.audit.estimate.neyman import nothing
from kvrelay.bench.audit.estimate.regression import clustered_mean

FOLDS = 5
# An arm less likely than this weighs a row so much that the interval says little.
_RARE = 0.02


def aipw(
    y: Floats,
    treated: Bools,
    probability: Floats,
    covariates: Floats,
    *,
    seed: int,
    sessions: Ints | None = None,
) -> Estimate:
    """The mean effect by doubly robust scores with cross-fitted regressions.

    With m1, m0 least squares of the other folds, e the probability of the arm and D whether it
    was assigned, a row's score is m1 - m0 + D (y - m1) / e - (1 - D) (y - m0) / (1 - e). With
    known e it is unbiased whatever m1 and m0 are.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].
        probability: of the arm, for each row, in (0, 1) [n].
        covariates: known before treatment [n, k].
        seed: of the division into folds.
        sessions: number of each row's session, if rows of one are not independent [n].

    Sources: Robins, Rotnitzky and Zhao, JASA 89, 1994; Chernozhukov et al., Econometrics J. 21,
    2018 (cross-fitting).
    """
    n = len(y)
    if min(int(treated.sum()), int((~treated).sum())) < 2:
        return nothing(n, "fewer than two rows in an arm")
    units = np.arange(n) if sessions is None else np.unique(sessions, return_inverse=True)[1]
    num_units = int(units.max()) + 1
    fold = (np.random.default_rng(seed).permutation(num_units) % FOLDS)[units]
    x = np.column_stack([np.ones(n), _standardised(covariates)])
    m1, m0 = np.empty(n), np.empty(n)
    for number in range(FOLDS):
        inside, others = fold == number, fold != number
        m1[inside] = x[inside] @ _fitted(y, x, others & treated)
        m0[inside] = x[inside] @ _fitted(y, x, others & ~treated)
    e = probability
    scores1 = m1 + treated * (y - m1) / e
    scores0 = m0 + ~treated * (y - m0) / (1.0 - e)
    scores, mean = scores1 - scores0, float(scores0.mean())
    clusters = None if num_units == n else units
    error, degrees = clustered_mean(scores, clusters)
    effect = float(scores.mean())
    relative_error = float("nan")
    if mean > 0.0:
        relative_error = clustered_mean(scores - effect / mean * scores0, clusters)[0] / mean
    units_seen = count(clusters, n)
    found = students(
        effect, error, degrees, n, units_seen, control_mean=mean, relative_error=relative_error
    )
    rarest = float(np.minimum(e, 1.0 - e).min())
    return found.noted(f"an arm had probability {rarest:.3g}") if rarest < _RARE else found


def _fitted(y: Floats, x: Floats, rows: Bools) -> Floats:
    """Least squares, or the mean where there are too few rows for more."""
    beta = np.zeros(x.shape[1])
    if int(rows.sum()) > 2 * x.shape[1]:
        return np.asarray(np.linalg.lstsq(x[rows], y[rows], rcond=None)[0])
    beta[0] = y[rows].mean() if rows.any() else y.mean()
    return beta


def _standardised(covariates: Floats) -> Floats:
    spread = covariates.std(axis=0)
    kept = covariates[:, spread > 0.0]
    return np.asarray((kept - kept.mean(axis=0)) / spread[spread > 0.0])
