"""How far predictions have been off lately: quantiles of realised over predicted."""

import math
from collections import deque
from typing import NamedTuple

_MEMORY = 64
_HALF_LIFE = 32.0
# As long as little was seen, ratios are believed to be spread like this (standard deviation of
# their logarithm), with the weight of so many observations.
_PRIOR_SPREAD, _PRIOR_WEIGHT = 0.5, 2.0
_PRIOR_NORMAL = (-1.88, -1.17, -0.77, -0.45, -0.15, 0.15, 0.45, 0.77, 1.17, 1.88)
_PRIOR = [(_PRIOR_SPREAD * z, _PRIOR_WEIGHT / len(_PRIOR_NORMAL)) for z in _PRIOR_NORMAL]
_FARTHEST = math.log(1000.0)
_WEIGHTS = [0.5 ** (age / _HALF_LIFE) for age in range(_MEMORY)]


class Quantiles(NamedTuple):
    """The ratio that 5, 50, 75 and 95 of 100 predictions stay below."""

    p5: float
    p50: float
    p75: float
    p95: float


class Ratios:
    """The last ratios of realised to predicted; younger ones count more."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_MEMORY)  # newest first
        self.quantiles = self._computed()

    def add(self, ratio: float) -> None:
        """One more has been seen, > 0."""
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"a ratio must be positive, got {ratio}")
        self._logs.appendleft(max(-_FARTHEST, min(_FARTHEST, math.log(ratio))))
        self.quantiles = self._computed()

    def clear(self) -> None:
        """What was seen tells nothing about what comes."""
        self._logs.clear()
        self.quantiles = self._computed()

    def __len__(self) -> int:
        return len(self._logs)

    def _computed(self) -> Quantiles:
        weighted = sorted([*zip(self._logs, _WEIGHTS, strict=False), *_PRIOR])
        total = sum(weight for _, weight in weighted)
        places, below = [], 0.0
        for _, weight in weighted:
            places.append((below + weight / 2) / total)
            below += weight
        return Quantiles(*(math.exp(_at(p, places, weighted)) for p in (0.05, 0.5, 0.75, 0.95)))


def _at(p: float, places: list[float], weighted: list[tuple[float, float]]) -> float:
    """The value at quantile p, between those whose places are next to it."""
    right = next((n for n, place in enumerate(places) if place >= p), len(places) - 1)
    left = max(right - 1, 0)
    gap = places[right] - places[left]
    part = min(1.0, (p - places[left]) / gap) if gap > 0 else 0.0
    return weighted[left][0] + max(0.0, part) * (weighted[right][0] - weighted[left][0])
