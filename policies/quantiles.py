"""How far predictions have been off lately: quantiles of realised over predicted.

What is believed before anything is seen ages like what is seen: it is as good as gone after some
hundred ratios. If it stayed, a twentieth of what is believed would lie beyond nearly all that was
seen, and 90 % intervals would hold 97 %.
"""

import math
from collections import deque
from typing import NamedTuple

_MEMORY = 64
_HALF_LIFE = 32.0
# As long as little was seen, ratios are believed to be spread like this (standard deviation of
# their logarithm), with the weight of so many observations.
_PRIOR_SPREAD, _PRIOR_WEIGHT = 0.5, 2.0
_PRIOR_NORMAL = (-1.88, -1.17, -0.77, -0.45, -0.15, 0.15, 0.45, 0.77, 1.17, 1.88)
_PRIOR = [_PRIOR_SPREAD * z for z in _PRIOR_NORMAL]
_FARTHEST = math.log(1000.0)
_WEIGHTS = [0.5 ** (age / _HALF_LIFE) for age in range(_MEMORY)]


class Quantiles(NamedTuple):
    """The ratio that 5, 50, 75 and 95 of 100 predictions stay below."""

    p5: float
    p50: float
    p75: float
    p95: float


class Ratios:
    """The last ratios of realised to predicted; younger ones count more.

    Attributes:
        quantiles: of them.
        doubt: how unsure predictions were of themselves when they were that far off: a relative
            standard deviation, root mean square. Ratios have it in them already.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_MEMORY)  # newest first
        self._count = 0  # since nothing was seen, those forgotten included
        self._compute()

    def add(self, ratio: float, doubt: float = 0.0) -> None:
        """One more has been seen, > 0, of a prediction that was so unsure of itself."""
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"a ratio must be positive, got {ratio}")
        self._seen.appendleft((max(-_FARTHEST, min(_FARTHEST, math.log(ratio))), doubt))
        self._count += 1
        self._compute()

    def clear(self) -> None:
        """What was seen tells nothing about what comes."""
        self._seen.clear()
        self._count = 0
        self._compute()

    def __len__(self) -> int:
        return len(self._seen)

    def _compute(self) -> None:
        prior = _PRIOR_WEIGHT * 0.5 ** (self._count / _HALF_LIFE)
        logs = [(log, weight) for (log, _), weight in zip(self._seen, _WEIGHTS, strict=False)]
        weighted = sorted([*logs, *((log, prior / len(_PRIOR)) for log in _PRIOR)])
        total = sum(weight for _, weight in weighted)
        places, below = [], 0.0
        for _, weight in weighted:
            places.append((below + weight / 2) / total)
            below += weight
        found = (math.exp(_at(p, places, weighted)) for p in (0.05, 0.5, 0.75, 0.95))
        self.quantiles = Quantiles(*found)
        doubts = zip(self._seen, _WEIGHTS, strict=False)
        self.doubt = math.sqrt(sum(weight * doubt**2 for (_, doubt), weight in doubts) / total)


def _at(p: float, places: list[float], weighted: list[tuple[float, float]]) -> float:
    """The value at quantile p, between those whose places are next to it."""
    right = next((n for n, place in enumerate(places) if place >= p), len(places) - 1)
    left = max(right - 1, 0)
    gap = places[right] - places[left]
    part = min(1.0, (p - places[left]) / gap) if gap > 0 else 0.0
    return weighted[left][0] + max(0.0, part) * (weighted[right][0] - weighted[left][0])
