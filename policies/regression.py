"""Linear regression that is refitted with every observation, and forgets.

Recursive least squares on relative errors: a step of 20 ms must be predicted as well as one of
two seconds. With coefficients theta >= 0 and an observation y at x,

    scale      = sqrt(predicted * y)         between the two, so that neither direction is slower
    precision <- KEEP * precision + (1 - KEEP) * prior + x x' / (NOISE * scale)^2
    theta     <- max(0, theta + precision^-1 x (y - x theta) / (NOISE * scale)^2)

The prior precision says that each coefficient is right within `SPREAD` times its own size.
Forgetting leads back to it and no further, so what is not observed any more becomes uncertain,
but not boundlessly so. Two ways of being wrong are told apart:

- an outlier counts less, as with Huber's loss: what lies beyond `CLIP` standard deviations;
- observations that are off to one side again and again are a change of the world. Then those
  coefficients are in doubt that have a share in them, and the observations are fitted anew.

How far is off depends on how observations scatter lately, for on a machine that others use too
seconds are now and then twice what they were. Off is what is further than `_FAR` standard
deviations: three such in a row, to one side, come once in 40,000 of normal noise. The deviation is
a running mean of absolute errors, as far as noise and not doubt in the coefficients is to blame for
them. An error counts for `CLIP` deviations at most, and those of a streak once it is over, so a
change does not hide itself: one by 5 is seen within three observations as long as the deviation is
under log(5) / `_FAR` = 0.8. Changes count too, so that a world which goes back and forth is taken
for a noisy one in time.

Sources: stabilised forgetting, Kulhavy and Zarrop, Int. J. Control 58, 1993; Huber, Ann. Math.
Statist. 35, 1964.
"""

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KEEP = 0.99
NOISE = 0.2
SPREAD = 2.0
CLIP = 3.0
# Off is at least this factor, however little observations scatter, and so many deviations.
_OFF, _FAR = math.log(1.5), 2.0
# A change: at least so many observations in a row off to one side, and together as far as three
# that are just off: three by 1.5, or two by 2, where they scatter little.
_MIN_STREAK, _CHANGE = 2, 3.0
# The deviation is a mean over about so many; and what mean absolute errors of normal noise are.
_MEMORY, _MEAN_ERROR = 16, math.sqrt(2 / math.pi)
# A coefficient may have been fitted to zero; this share of the first guess keeps it alive.
_ALIVE = 0.05


class Estimate(NamedTuple):
    """A prediction, and the standard deviation of it that the coefficients are to blame for."""

    mean: float
    sd: float

    @property
    def doubt(self) -> float:
        """The same relative to what is predicted, as a standard deviation of its logarithm."""
        return math.log1p(self.sd / self.mean)


class Regression:
    """Non-negative coefficients of y = x . theta, from a first guess and what was observed."""

    def __init__(self, guess: Sequence[float]) -> None:
        """Nothing observed.

        Args:
            guess: a coefficient for each entry of x, all positive.
        """
        if not all(math.isfinite(value) and value > 0 for value in guess):
            raise ValueError(f"a first guess must be positive, got {list(guess)}")
        self.count = 0  # observations since the start or the last change
        self._guess = tuple(guess)
        # Everything below is in units of the guess: theta from 1 on, x in seconds.
        self._theta: list[float] = [1.0] * len(guess)
        self._streak: list[tuple[list[float], float, float]] = []  # x, y, its error
        self._off = 0.0  # how far the streak is off, in logarithms; its sign is the side
        self._deviation = _OFF / _FAR  # of what is no streak, in logarithms
        self._believe(self._prior())

    @property
    def coefficients(self) -> list[float]:
        """theta."""
        return [theta * unit for theta, unit in zip(self._theta, self._guess, strict=True)]

    def predict(self, x: Sequence[float]) -> Estimate:
        """What is expected at x."""
        return self._predict(self._scaled(x))

    def observe(self, x: Sequence[float], y: float) -> bool:
        """Take in one observation.

        Args:
            x: none negative, not all zero.
            y: positive.

        Returns:
            Whether the world has changed: `count` has started anew then.
        """
        scaled = self._scaled(x)
        if not (math.isfinite(y) and y > 0 and min(scaled) >= 0 and max(scaled) > 0):
            raise ValueError(f"no observation: {y} at {list(x)}")
        self._watch(scaled, y)
        far = _CHANGE * _FAR * self._deviation
        changed = len(self._streak) >= _MIN_STREAK and abs(self._off) >= far
        if changed:
            streak, off = self._streak, self._off / len(self._streak)
            self._end_streak()
            self.count = 0
            self._doubt(scaled, max(SPREAD, math.exp(off)))
            for past_x, past_y, _ in streak:
                self._fit(past_x, past_y, clip=math.inf)
        else:
            self._fit(scaled, y, CLIP)
        return changed

    def restore(self, coefficients: Sequence[float]) -> None:
        """Begin with coefficients of an earlier life: better than a guess, not more certain.

        Raises:
            ValueError: not as many as here, or not such as could have been fitted.
        """
        if len(coefficients) != len(self._guess) or not all(
            math.isfinite(value) and value >= 0 for value in coefficients
        ):
            raise ValueError(f"no coefficients: {list(coefficients)}")
        self.count = 0
        self._theta = [v / unit for v, unit in zip(coefficients, self._guess, strict=True)]
        self._streak, self._off, self._deviation = [], 0.0, _OFF / _FAR
        self._believe(self._prior())

    def _scaled(self, x: Sequence[float]) -> list[float]:
        return [value * unit for value, unit in zip(x, self._guess, strict=True)]

    def _predict(self, x: list[float]) -> Estimate:
        mean = sum(map(mul, x, self._theta))
        variance = sum(
            xi * sum(map(mul, x, row)) for xi, row in zip(x, self._covariance, strict=True)
        )
        return Estimate(mean, math.sqrt(max(variance, 0.0)))

    def _believe(self, precision: Floats) -> None:
        self._precision = precision
        # Plain floats: predictions are many, and for three of them numpy takes longer.
        self._covariance: list[list[float]] = np.linalg.inv(precision).tolist()

    def _sizes(self) -> Floats:
        return np.maximum(self._theta, _ALIVE)

    def _prior(self) -> Floats:
        return np.diag((SPREAD * self._sizes()) ** -2.0)

    def _watch(self, x: list[float], y: float) -> None:
        """Go on with the streak of observations that are off to one side, or end it."""
        mean, sd = self._predict(x)
        mean = max(mean, y * 1e-6)
        off = math.log(y / mean)
        is_off = abs(off) >= _FAR * self._deviation
        if not is_off or off * self._off < 0:
            self._end_streak()
        error = abs(off) * self._deviation / math.hypot(self._deviation, sd / mean)
        if is_off:
            self._streak.append((x, y, error))
            self._off += off
        else:
            self._scatter(error)

    def _end_streak(self) -> None:
        for _, _, error in self._streak:
            self._scatter(error)
        self._streak, self._off = [], 0.0

    def _scatter(self, error: float) -> None:
        """Take in an error that noise is to blame for."""
        deviation = min(error, CLIP * self._deviation) / _MEAN_ERROR
        self._deviation += (deviation - self._deviation) / _MEMORY
        self._deviation = max(self._deviation, _OFF / _FAR)

    def _doubt(self, x: list[float], spread: float) -> None:
        """Doubt coefficients as far as they have a share in what is predicted at x."""
        sizes = self._sizes()
        parts = sizes * np.asarray(x)
        doubt = np.diag((spread * sizes * parts / parts.sum()) ** 2)
        self._believe(np.linalg.inv(np.asarray(self._covariance) + doubt))

    def _fit(self, x: list[float], y: float, clip: float) -> None:
        mean, sd = self._predict(x)
        variance = NOISE**2 * max(mean, y * 1e-4) * y
        far = abs(y - mean) / math.sqrt(variance + sd**2)
        variance *= max(1.0, far / clip)
        row = np.asarray(x)
        kept = KEEP * self._precision + (1 - KEEP) * self._prior()
        self._believe(kept + np.outer(row, row) / variance)
        gain = np.asarray(self._covariance) @ row / variance
        self._theta = np.maximum(self._theta + gain * (y - mean), 0.0).tolist()
        self.count += 1
