"""How soon blocks of a class are used again, learned from what was used again and what not.

A life is the time from one use of a block to the next. Lives are counted by class and by age
on a scale of octaves; those that end without another use, and those that still last, count for
as long as they were seen. With a constant rate of uses within an octave of width w,

    rate[j]   uses in octave j / time that lives were seen in it     (its maximum likelihood)
    S[j]      probability of reaching it = product of exp(-rate[i] * w[i]) for i < j
    index[j]  max over k > j of (S[j] - S[k]) / expected time kept in octaves j to k - 1

is the highest rate of uses per second of keeping that any later time of giving up allows. Ranking
by it is Gittins' rule for what to go on with; where the rate falls, it is the rate.

Sources: Gittins, Bandit processes and dynamic allocation indices, J. R. Statist. Soc. B 41, 1979;
hit density as a rank, per class and age: Beckmann, Chen and Cidon, LHD, NSDI 2018.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_OCTAVES = 24
_OCTAVES_BELOW_1_S = 2
_STARTS_S = np.concatenate([[0.0], 2.0 ** (np.arange(1, NUM_OCTAVES) - _OCTAVES_BELOW_1_S)])
_WIDTHS_S = np.diff(np.append(_STARTS_S, 2 * _STARTS_S[-1]))
# What is believed as long as little was seen, in lives: so many uses per life and octave, fewer
# by a factor from each octave to the next. Uses per second then fall faster than with 1 / age.
_PRIOR_USES, _PRIOR_LIVES, _FALL = 0.15, 32.0, 0.7
# Classes are believed to be like all others until they have shown as many lives.
_SHARED_LIVES = 128.0


def octaves(ages_s: Floats) -> Floats:
    """Position of ages on the scale: octave j begins at j, its end is the next one's start."""
    scale = np.log2(np.maximum(ages_s, 2.0**-_OCTAVES_BELOW_1_S)) + _OCTAVES_BELOW_1_S
    return np.asarray(np.minimum(scale, NUM_OCTAVES - 1.0))


class ReuseModel:
    """Counts of lives, and the index that they give.

    Classes are a grid [groups, kinds]: kinds borrow from their own in all groups, those from all.
    """

    def __init__(self, groups: int, kinds: int, memory_lives: int) -> None:
        """Nothing seen.

        Args:
            memory_lives: after so many more lives, what was seen counts half.
        """
        self.num_classes = groups * kinds
        self._cube = groups, kinds, NUM_OCTAVES
        self._memory_lives = memory_lives
        shape = self.num_classes, NUM_OCTAVES
        self._uses: Floats = np.zeros(shape)
        self._ended: Floats = np.zeros(shape)
        self._seen: Floats = np.zeros(shape)  # of those: the part of their last octave, summed
        self._index: Floats = np.zeros(shape)
        self._since_update = 0
        self.update(np.zeros(0, np.int64), np.zeros(0))

    def used(self, classes: Ints, ages_s: Floats) -> None:
        """Lives that ended by a use at these ages."""
        octave, part = _places(ages_s)
        np.add.at(self._uses, (classes, octave), 1.0)
        np.add.at(self._ended, (classes, octave), 1.0)
        np.add.at(self._seen, (classes, octave), part)
        self._since_update += len(classes)

    def missed(self, kind: int, age_s: float) -> None:
        """A life that ended by a use at this age, for which the block was no longer held."""
        self._uses[kind, _octave(age_s)] += 1.0
        self.lost(kind, age_s)

    def lost(self, kind: int, age_s: float) -> None:
        """A life that was watched until this age and is watched no more."""
        octave = _octave(age_s)
        self._ended[kind, octave] += 1.0
        self._seen[kind, octave] += min(1.0, (age_s - _STARTS_S[octave]) / _WIDTHS_S[octave])
        self._since_update += 1

    def update(self, classes: Ints, ages_s: Floats) -> None:
        """Compute the index anew, given the lives that still last, and forget a little."""
        octave, part = _places(ages_s)
        cells, num_cells = classes * NUM_OCTAVES + octave, self.num_classes * NUM_OCTAVES
        last = self._ended + np.bincount(cells, minlength=num_cells).reshape(self._ended.shape)
        seen = self._seen + np.bincount(cells, part, num_cells).reshape(self._seen.shape)
        passed = np.cumsum(last[:, ::-1], axis=1)[:, ::-1] - last
        self._index = _gittins(self._rates(self._uses, passed + seen))
        forget = 0.5 ** (self._since_update / self._memory_lives)
        self._uses *= forget
        self._ended *= forget
        self._seen *= forget
        self._since_update = 0

    def rate_per_s(self, classes: Ints, ages_s: Floats) -> Floats:
        """Expected uses per second of keeping, of blocks of these classes and ages."""
        position = octaves(ages_s)
        left = position.astype(np.int64)
        right = np.minimum(left + 1, NUM_OCTAVES - 1)
        at_left, at_right = self._index[classes, left], self._index[classes, right]
        return np.asarray(at_left + (position - left) * (at_right - at_left))

    def _rates(self, uses: Floats, lives: Floats) -> Floats:
        """Uses per life that passes an octave; `lives` counts parts of them too."""
        uses, lives = uses.reshape(self._cube), lives.reshape(self._cube)
        every = _extrapolated(uses.sum(axis=(0, 1)), lives.sum(axis=(0, 1)))
        by_kind = _like(every, uses.sum(axis=0), lives.sum(axis=0))
        return _like(by_kind, uses, lives).reshape(self.num_classes, NUM_OCTAVES)


def _octave(age_s: float) -> int:
    if age_s <= 2.0**-_OCTAVES_BELOW_1_S:
        return 0
    return min(int(math.log2(age_s) + _OCTAVES_BELOW_1_S), NUM_OCTAVES - 1)


def _places(ages_s: Floats) -> tuple[Ints, Floats]:
    """The octave of each age, and the part of it that has passed."""
    octave = octaves(ages_s).astype(np.int64)
    part = (ages_s - _STARTS_S[octave]) / _WIDTHS_S[octave]
    return octave, np.clip(part, 0.0, 1.0)


def _extrapolated(uses: Floats, lives: Floats) -> Floats:
    """Uses per life by octave; where little was seen, fewer than in the octave before."""
    rates = np.zeros(NUM_OCTAVES)
    before = _PRIOR_USES / _FALL
    for j in range(NUM_OCTAVES):
        before = (uses[j] + _PRIOR_LIVES * _FALL * before) / (lives[j] + _PRIOR_LIVES)
        rates[j] = before
    return rates


def _like(other: Floats, uses: Floats, lives: Floats) -> Floats:
    """Uses per life by octave; where little was seen, in proportion to other ones."""
    prior_uses = _SHARED_LIVES * _PRIOR_USES
    expected = (lives * other).sum(axis=-1, keepdims=True)
    ratio = (uses.sum(axis=-1, keepdims=True) + prior_uses) / (expected + prior_uses)
    return np.asarray((uses + _SHARED_LIVES * ratio * other) / (lives + _SHARED_LIVES))


def _gittins(rates: Floats) -> Floats:
    """The index of each class and octave: [num_classes, NUM_OCTAVES]."""
    stay = np.exp(-rates)
    edge = np.ones((len(rates), 1))
    reach = np.concatenate([edge, np.cumprod(stay, axis=1)], axis=1)  # S[0..n]
    kept_s = reach[:, :-1] * _WIDTHS_S * (1 - stay) / np.maximum(rates, 1e-12)
    until_s = np.concatenate([0 * edge, np.cumsum(kept_s, axis=1)], axis=1)
    gained = reach[:, :-1, None] - reach[:, None, 1:]  # from octave j to the end of k
    spent_s = until_s[:, None, 1:] - until_s[:, :-1, None]
    past = np.tril(np.ones((NUM_OCTAVES, NUM_OCTAVES), np.bool_), -1)  # k before j
    ratio = np.where(past, 0.0, gained / np.where(past, 1.0, np.maximum(spent_s, 1e-12)))
    return np.asarray(ratio.max(axis=2))
