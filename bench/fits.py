"""Curves fitted to seconds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def least_relative(places: Floats, seconds: Floats) -> Floats:
    """Coefficients, none negative, of least squares of relative errors.

    Each set of terms that may be positive is tried: the best one without a negative coefficient
    is the solution (Lawson and Hanson, Solving Least Squares Problems, 1974, ch. 23).

    Args:
        places: [observations, terms]; a handful of terms.
        seconds: [observations], positive.
    """
    design = places / seconds[:, None]
    scale = np.sqrt((design**2).sum(axis=0))
    terms = places.shape[1]
    best, least = np.zeros(terms), np.inf
    for size in range(1, terms + 1):
        for kept in map(list, combinations(range(terms), size)):
            solution = np.linalg.lstsq(
                design[:, kept] / scale[kept], np.ones(len(seconds)), rcond=None
            )[0]
            loss = float(((design[:, kept] / scale[kept] @ solution - 1) ** 2).sum())
            if (solution >= 0).all() and loss < least:
                least, best = loss, np.zeros(terms)
                best[kept] = solution / scale[kept]
    return best
