"""Differences of quantiles with a bootstrap over sessions, pairs or blocks.

Requests of one session are slow together, so the variance for independent requests is far too
small for a quantile; whole clusters are drawn again instead. A draw is a weight for each cluster,
so all of them are one product of matrices and a search in sorted outcomes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.audit.estimate.base import ALPHA, Bools, Estimate, Floats, Ints
from kvrelay.bench.audit.estimate.neyman import nothing

DRAWS = 1000
# With fewer rows beyond the quantile it is the largest value, of which nothing is known.
MIN_BEYOND = 5


def difference(
    y: Floats,
    treated: Bools,
    clusters: Ints,
    share: float,
    seed: int,
    *,
    draws: int = DRAWS,
) -> Estimate:
    """Quantile of the treated minus quantile of the others, with the percentile interval.

    Clusters with rows in one arm are drawn among those of that arm; clusters with rows in both
    (pairs) are drawn whole.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].
        clusters: number of each row's session, pair or block [n].
        share: which quantile, in (0, 1).
        seed: of the draws.
        draws: bootstrap repetitions.

    Source: Davison and Hinkley, Bootstrap Methods and their Application, 1997, sections 3.8, 5.3.
    """
    n = len(y)
    beyond = min(share, 1.0 - share) * min(int(treated.sum()), int((~treated).sum()))
    if beyond < MIN_BEYOND:
        return nothing(n, f"fewer than {MIN_BEYOND} rows beyond the quantile in an arm")
    numbers = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    weights = _weights(numbers, treated, np.random.default_rng(seed), draws)
    ones = np.ones((1, weights.shape[1]), np.float32)
    seen, drawn = [], []
    for rows in (treated, ~treated):
        seen.append(float(_quantiles(y[rows], ones[:, numbers[rows]], share)[0]))
        drawn.append(_quantiles(y[rows], weights[:, numbers[rows]], share))
    effect = seen[0] - seen[1]
    differences = drawn[0] - drawn[1]
    low, high = np.quantile(differences, [ALPHA / 2, 1.0 - ALPHA / 2]).tolist()
    ratio = drawn[0] / drawn[1] if (drawn[1] > 0.0).all() else np.full(draws, math.nan)
    below = (1 + int((differences <= 0.0).sum())) / (draws + 1)
    above = (1 + int((differences >= 0.0).sum())) / (draws + 1)
    return Estimate(
        effect,
        low,
        high,
        min(1.0, 2.0 * min(below, above)),
        n,
        weights.shape[1],
        seen[1],
        float(ratio.std(ddof=1)),
        math.inf,
    )


def _weights(
    numbers: Ints, treated: Bools, rng: np.random.Generator, draws: int
) -> NDArray[np.float32]:
    """How often each cluster was drawn [draws, clusters]."""
    num_clusters = int(numbers.max()) + 1
    some = np.bincount(numbers, treated, num_clusters) > 0
    others = np.bincount(numbers, ~treated, num_clusters) > 0
    kind = some + 2 * others
    weights = np.zeros((draws, num_clusters), np.float32)
    for each in np.unique(kind):
        members = np.flatnonzero(kind == each)
        size = len(members)
        drawn = rng.integers(0, size, (draws, size)) + size * np.arange(draws)[:, None]
        counts = np.bincount(drawn.reshape(-1), minlength=draws * size)
        weights[:, members] = counts.reshape(draws, size)
    return weights


def _quantiles(y: Floats, weights: NDArray[np.float32], share: float) -> Floats:
    """The quantile of outcomes under each row of weights [draws, n]: the first outcome up to
    which a share of the weight has come."""
    order = np.argsort(y, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    total = reached[:, -1:]
    # A thousandth of a row of slack: sums of whole float32 are exact, share times total is not.
    place = (reached < share * total - 1e-3).sum(axis=1)
    return y[order][np.minimum(place, len(y) - 1)]
