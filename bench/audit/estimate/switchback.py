"""The global effect: everybody is treated for a block of time, then nobody.

What requests do to each other over queues and links belongs to it. The beginning of each block,
in which what the one before has left drains away, is discarded. Blocks are the units; the arms of
consecutive blocks were drawn together, and the inference draws them so again.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints
from kvrelay.bench.audit.estimate.neyman import mean_of, nothing
from kvrelay.bench.audit.estimate.randomisation import infer

BURN_IN = 0.2
DRAWS = 1999
_ENUMERATE_UP_TO = 12  # pairs: 4,096 assignments


def after_burn_in(block: Ints, share: float = BURN_IN) -> Bools:
    """Rows after the first share of the requests of their block; rows are in order of arrival."""
    kept = np.zeros(len(block), np.bool_)
    for number in np.unique(block):
        rows = np.flatnonzero(block == number)
        kept[rows[math.ceil(share * len(rows)) :]] = True
    return kept


def block_means(y: Floats, treated: Bools, block: Ints) -> tuple[Floats, Bools]:
    """Mean outcome and arm of each block, in the order of their numbers."""
    numbers, index = np.unique(block, return_inverse=True)
    sizes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, y, len(numbers)) / sizes
    return means, np.bincount(index, treated, len(numbers)) * 2 > sizes


def switchback(means: Floats, arms: Bools, seed: int) -> Estimate:
    """Difference of the means of blocks, with randomisation inference.

    How arms were drawn is read off them: if every two consecutive blocks have both, a coin was
    thrown for each two; else that many blocks were chosen anywhere.

    Args:
        means: mean outcome of each block, in time order [m].
        arms: which blocks were treated [m].
        seed: of the assignments, where there are too many for all of them.

    Sources: Bojinov, Simchi-Levi and Zhao, Management Science 69, 2023; randomisation.py.
    """
    if min(int(arms.sum()), int((~arms).sum())) < 2:
        return nothing(len(means), "fewer than two blocks in an arm")
    scheme, others = assignments(arms, seed)
    treatment = arms.astype(np.float64)
    effect, low, high, p = infer(means, treatment, weights(treatment), weights(others))
    return Estimate(
        effect, low, high, p, len(means), len(means), mean_of(means[~arms]), note=scheme
    )


def weights(arms: Floats) -> Floats:
    """Weights of block means in the difference of means, for arms of 0 and 1 [..., m]."""
    ones = arms.sum(axis=-1, keepdims=True)
    zeros = arms.shape[-1] - ones
    return np.asarray(arms / ones - (1.0 - arms) / zeros)


def assignments(arms: Bools, seed: int) -> tuple[str, Floats]:
    """Which scheme the arms follow, and other assignments by it [k, m]."""
    if _in_pairs(arms):
        return "drawn in pairs", _flipped(arms, seed)
    rng = np.random.default_rng(seed)
    drawn = rng.permuted(np.tile(arms.astype(np.float64), (DRAWS, 1)), axis=1)
    return "drawn anywhere", drawn


def _in_pairs(arms: Bools) -> bool:
    return len(arms) % 2 == 0 and bool((arms[::2] != arms[1::2]).all())


def _flipped(arms: Bools, seed: int) -> Floats:
    """The arms with the coins thrown anew; all other outcomes of the coins if they are few."""
    pairs = len(arms) // 2
    if pairs <= _ENUMERATE_UP_TO:
        flips = np.array(list(itertools.product((False, True), repeat=pairs)))[1:]
    else:
        flips = np.random.default_rng(seed).random((DRAWS, pairs)) < 0.5
    return (arms[None, :] ^ np.repeat(flips, 2, axis=1)).astype(np.float64)
