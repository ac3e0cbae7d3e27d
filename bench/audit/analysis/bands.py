"""Simultaneous confidence bands for the means of many cells, where sessions are not independent.

The wild cluster bootstrap-t: what a session deviates from its strata's means gets one random sign
in every cell that it is in, the means and their standard errors are computed anew, and the largest
|t| over all cells is noted. The 95 % quantile of those is how many standard errors the band is wide
to either side. So all cells' true means are in it together with 95 %, however cells hang together.

With one cell and normal noise that quantile is Student's. The standard errors are computed anew in
each draw because cells have few sessions: with those of the data fixed, 16 pairs in each of 32
cells would get a band that is too narrow.

Sources: Cameron, Gelbach and Miller, Rev. Econ. Stat. 90, 2008 (wild cluster bootstrap-t); Romano
and Wolf, Econometrica 73, 2005 (studentised maxima); Chernozhukov, Chetverikov and Kato, Ann.
Statist. 41, 2013 (maxima by random multipliers).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]

LEVEL = 0.95
DRAWS = 4999
# Sessions beyond one for each stratum of a cell: with fewer, signs take too few values.
MIN_DEGREES = 4


class Band(NamedTuple):
    """Means of cells, and the band around them.

    Attributes:
        means: [cells].
        lows, highs: [cells]; NaN where there are too few sessions for an interval.
        critical: half the width of the band in standard errors; NaN if no cell has an interval.
    """

    means: Floats
    lows: Floats
    highs: Floats
    critical: float


class _Cell(NamedTuple):
    """One cell's data.

    Attributes:
        mean: of its strata's means.
        error: standard error; NaN with too few sessions.
        members: [sessions here] which sessions.
        deviations: [sessions here, strata] what each adds to the mean less its expectation.
        shares: [sessions here, strata] of a stratum's values.
        factors: [strata] for the small number of sessions.
    """

    mean: float
    error: float
    members: Codes
    deviations: Floats
    shares: Floats
    factors: Floats


def simultaneous_band(
    values: Floats,
    cells: Codes,
    strata: Codes,
    sessions: Codes,
    *,
    seed: int,
    draws: int = DRAWS,
) -> Band:
    """Means of cells with a band that holds all true means at once with 95 %.

    Args:
        values: [values].
        cells: [values] from 0 on, each with a value.
        strata: [values] within a cell; the cell's mean is that of its strata's means.
        sessions: [values] from 0 on, over all cells: values of one may depend on each other.
        seed: of the signs.
        draws: of the bootstrap.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("a band needs values, all of them finite")
    found = [
        _cell(*(each[cells == cell] for each in (values, strata, sessions)))
        for cell in range(int(cells.max()) + 1)
    ]
    size = (draws, int(sessions.max()) + 1)
    signs = 2 * np.random.default_rng(seed).integers(0, 2, size, dtype=np.int8) - 1
    largest = np.zeros(draws)
    means = np.array([cell.mean for cell in found])
    errors = np.array([cell.error for cell in found])
    for cell in found:
        if cell.error > 0:
            largest = np.maximum(largest, _drawn_t(cell, signs))
    critical = math.nan
    if np.isfinite(errors).any():
        rank = min(draws, math.ceil(LEVEL * (draws + 1)))
        critical = float(np.sort(largest)[rank - 1])
    # A critical value without end says as little as none.
    half = errors * critical if math.isfinite(critical) else np.full(len(found), math.nan)
    return Band(means, means - half, means + half, critical)


def _cell(values: Floats, strata: Codes, sessions: Codes) -> _Cell:
    kinds, kind = np.unique(strata, return_inverse=True)
    members, member = np.unique(sessions, return_inverse=True)
    shape = (len(members), len(kinds))
    place = member * len(kinds) + kind
    counts = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)
    totals = counts.sum(axis=0)
    means = np.bincount(kind, values) / totals
    residuals = np.bincount(place, values - means[kind], shape[0] * shape[1]).reshape(shape)
    deviations = residuals / totals / len(kinds)
    degrees = (counts > 0).sum(axis=0) - 1
    factors = np.sqrt((degrees + 1) / np.maximum(degrees, 1))
    error = float(np.sqrt(((deviations @ factors) ** 2).sum()))
    if degrees.min() < 1 or degrees.sum() < MIN_DEGREES:
        error = math.nan
    return _Cell(float(means.mean()), error, members, deviations, counts / totals, factors)


def _drawn_t(cell: _Cell, signs: NDArray[np.int8]) -> Floats:
    """|t| of each draw, [draws]."""
    drawn = signs[:, cell.members].astype(np.float64)
    shifts = drawn @ cell.deviations  # of the strata's means, as far as they move the cell's
    weighted = cell.factors * shifts
    left = drawn * (cell.deviations @ cell.factors) - weighted @ cell.shares.T
    errors = np.sqrt((left**2).sum(axis=1))
    moved = np.abs(shifts.sum(axis=1))
    t = np.full(len(moved), math.inf)
    np.divide(moved, errors, out=t, where=errors > 0)
    # Rounding must not make a t of what has not moved.
    return np.where(moved <= 1e-12 * cell.error, 0.0, t)
