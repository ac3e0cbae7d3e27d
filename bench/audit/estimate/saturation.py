"""Dose and response: blocks in which 0, 25, 50, 75 or 100 % of requests are treated.

Within a block, treated and control requests share queues and links. How the controls' outcome
moves with the share is what relay does to others (spillover); all treated against none is the
global effect; treated against control within a block is the direct effect at that mix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, students
from kvrelay.bench.audit.estimate.neyman import difference, nothing
from kvrelay.bench.audit.estimate.regression import clustered_mean, cr2


@dataclass(frozen=True, slots=True)
class Dose:
    """What was seen at one share; an arm that it leaves out has no mean.

    Attributes:
        share: of requests treated.
        control, treated: mean outcome of each arm over blocks, with its interval.
        blocks: how many there were.
    """

    share: float
    control: Estimate
    treated: Estimate
    blocks: int


def doses(y: Floats, treated: Bools, share: Floats, block: Ints) -> list[Dose]:
    """Mean outcome of both arms at every share, blocks being the independent units."""
    found = []
    for each in np.unique(share).tolist():
        rows = share == each
        control, relayed = (
            _mean(_block_means(y, rows & arm, block)) for arm in (~treated, treated)
        )
        found.append(Dose(float(each), control, relayed, len(np.unique(block[rows]))))
    return found


def spillover(y: Floats, treated: Bools, share: Floats, block: Ints) -> Estimate:
    """How the controls' mean outcome moves as the share of the treated goes from 0 to 1.

    The slope of least squares over blocks with some control, with HC2 and Bell and McCaffrey's
    degrees of freedom.

    Source: Hudgens and Halloran, JASA 103, 2008; Baird et al., REStat 100, 2018 (saturation).
    """
    rows = ~treated
    means, shares = _block_means(y, rows, block), _block_means(share, rows, block)
    if len(means) < 4 or len(np.unique(shares)) < 2:
        return nothing(len(means), "fewer than four blocks or two shares with controls")
    x = np.column_stack([np.ones(len(shares)), shares])
    slope, error, degrees = cr2(means, x, np.arange(len(means)), 1)
    none = means[shares == shares.min()]
    return students(slope, error, degrees, len(means), len(means), control_mean=float(none.mean()))


def global_effect(y: Floats, share: Floats, block: Ints) -> Estimate:
    """Mean outcome of blocks with all treated, less that of blocks with none; Welch's interval."""
    everywhere = np.ones(len(y), np.bool_)
    means, shares = _block_means(y, everywhere, block), _block_means(share, everywhere, block)
    ends = (shares == 0.0) | (shares == 1.0)
    return difference(means[ends], shares[ends] == 1.0)


def direct_effect(y: Floats, treated: Bools, share: Floats, block: Ints) -> Estimate:
    """Treated less control within blocks that have both, every block counting the same."""
    mixed = (share > 0.0) & (share < 1.0)
    one, zero = (_by_block(y, mixed & arm, block) for arm in (treated, ~treated))
    both = sorted(one.keys() & zero.keys())
    if len(both) < 2:
        return nothing(len(both), "fewer than two blocks with both arms")
    differences = np.array([one[b] - zero[b] for b in both])
    error, degrees = clustered_mean(differences, None)
    mean = float(np.mean([zero[b] for b in both]))
    return students(
        float(differences.mean()), error, degrees, len(both), len(both), control_mean=mean
    )


def _mean(means: Floats) -> Estimate:
    if len(means) < 2:
        return nothing(len(means), "fewer than two blocks")
    error, degrees = clustered_mean(means, None)
    return students(float(means.mean()), error, degrees, len(means), len(means))


def _by_block(y: Floats, rows: Bools, block: Ints) -> dict[int, float]:
    numbers, index = np.unique(block[rows], return_inverse=True)
    sums = np.bincount(index, y[rows], len(numbers))
    means = sums / np.bincount(index, minlength=len(numbers))
    return dict(zip(numbers.tolist(), means.tolist(), strict=True))


def _block_means(y: Floats, rows: Bools, block: Ints) -> Floats:
    return np.array(list(_by_block(y, rows, block).values()))
