"""What an engine's prefill costs, fitted to a probe: g + a*n + b*((c+n)^2 - c^2), with doubt.

Each length counts once, by the median of its samples, and by how far the curve is off it in
percent: a busy moment of the machine moves a mean, and an error of 20 ms matters to a prompt of
50 ms alone. No coefficient is negative. The doubt is a bootstrap of the relative errors of all
samples, so that a length with one sample has as much of it as the others; what the form of the
curve leaves is in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.audit.predict.engine_probe import Sample
from kvrelay.bench.errors import BenchError
from kvrelay.bench.fits import Floats, least_relative
from kvrelay.policies.prefill import PrefillCost, Work

DRAWS = 1000
_TERMS = 3
# What longer prompts take longer, of the longest one.
_LEAST_SHARE = 0.02
# Drawn seconds stay positive, however samples scatter.
_LEAST_ERROR = -0.9


@dataclass(frozen=True, slots=True)
class EngineFit:
    """An engine's prefill.

    Attributes:
        cost: the fitted curve.
        drawn: [draws, 3] fixed, per token, per token squared, as they may as well be.
        off: median relative error of a sample.
        tokens: shortest and longest prompt.
        samples: number of them.
    """

    cost: PrefillCost
    drawn: Floats
    off: float
    tokens: tuple[int, int]
    samples: int

    def seconds(self, tokens: float) -> float:
        """To the first token of a prompt of which nothing is cached."""
        return self.cost.fixed_s + tokens * self.per_token_s(tokens)

    def per_token_s(self, tokens: float) -> float:
        """Seconds of prefill per token that a prompt's first `tokens` add."""
        return self.cost.per_token_s + self.cost.per_token_squared_s * tokens


def fit_engine(samples: Sequence[Sample], seed: int = 1, draws: int = DRAWS) -> EngineFit:
    """The curve that is least off.

    Args:
        samples: of at least three rungs.
        seed: of the bootstrap.
        draws: of the bootstrap.

    Raises:
        ValueError: there are fewer rungs.
        BenchError: longer prompts do not take longer.
    """
    rungs = np.array([sample.rung for sample in samples])
    terms = np.array([_terms(sample) for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    names = np.unique(rungs)
    if len(names) < _TERMS:
        raise ValueError(f"{len(names)} lengths of prompt; a curve of {_TERMS} terms needs as many")
    groups = [np.flatnonzero(rungs == name) for name in names]
    places = np.array([terms[group].mean(axis=0) for group in groups])
    found = least_relative(places, _medians(seconds, groups))
    longest = places[-1] * found
    if longest[1:].sum() < _LEAST_SHARE * longest.sum():
        raise BenchError(
            "prompts of every length took the same time, so prefill cannot be seen; is a cache of "
            "answers in front of the engine?"
        )
    expected = terms @ found
    errors = seconds / expected - 1
    # A curve bends towards its samples: their errors are a little too small.
    spread = errors * np.sqrt(len(errors) / max(len(errors) - _TERMS, 1))
    spread = np.maximum(spread, _LEAST_ERROR)
    rng = np.random.default_rng(seed)
    drawn = np.array(
        [
            least_relative(
                places, _medians(expected * (1 + rng.choice(spread, len(spread))), groups)
            )
            for _ in range(draws)
        ]
    )
    tokens = [sample.tokens for sample in samples]
    return EngineFit(
        PrefillCost(*(float(each) for each in found)),
        drawn,
        median(np.abs(errors).tolist()),
        (min(tokens), max(tokens)),
        len(samples),
    )


def samples_by_rung(samples: Sequence[Sample]) -> dict[int, list[float]]:
    """Seconds by the length that was aimed at, ascending."""
    found: dict[int, list[float]] = defaultdict(list)
    for sample in sorted(samples, key=lambda each: each.rung):
        found[sample.rung].append(sample.seconds)
    return dict(found)


def _terms(sample: Sample) -> tuple[float, float, float]:
    work = Work.of(sample.cached, sample.tokens - sample.cached)
    return 1.0, float(work.tokens), float(work.squares)


def _medians(seconds: Floats, groups: Sequence[NDArray[np.intp]]) -> Floats:
    return np.array([np.median(seconds[group]) for group in groups])
