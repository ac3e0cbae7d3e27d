"""Predicted seconds, as quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvrelay.policies.quantiles import Quantiles
from kvrelay.policies.regression import Estimate

# Where the normal distribution has its quantiles.
_Z75, _Z95 = 0.674, 1.645


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds below which 5, 50, 75 and 95 of 100 outcomes are expected.

    Attributes:
        is_sure: whether enough was observed to trust it.
    """

    p5_s: float
    p50_s: float
    p75_s: float
    p95_s: float
    is_sure: bool = True

    @classmethod
    def of(
        cls, estimate: Estimate, ratios: Quantiles, doubt: float = 0.0, is_sure: bool = True
    ) -> Forecast:
        """What is estimated, corrected by and spread as the ratios that were seen lately.

        The coefficients' own uncertainty is added as far as it is larger than the `doubt` that the
        ratios have in them: away from what was observed.
        """
        if estimate.mean <= 0:
            return cls(0.0, 0.0, 0.0, 0.0, is_sure)
        p5, p50, p75, p95 = map(math.log, ratios)
        unsure = math.sqrt(max(0.0, estimate.doubt**2 - doubt**2))
        median_s = estimate.mean * ratios.p50
        return cls(
            median_s * math.exp(-math.hypot(p50 - p5, _Z95 * unsure)),
            median_s,
            median_s * math.exp(math.hypot(p75 - p50, _Z75 * unsure)),
            median_s * math.exp(math.hypot(p95 - p50, _Z95 * unsure)),
            is_sure,
        )

    def __add__(self, other: Forecast) -> Forecast:
        """One after the other: spreads of what is independent add up in quadrature."""
        mine, its = self.p50_s, other.p50_s
        median_s = mine + its
        return Forecast(
            max(0.0, median_s - math.hypot(mine - self.p5_s, its - other.p5_s)),
            median_s,
            median_s + math.hypot(self.p75_s - mine, other.p75_s - its),
            median_s + math.hypot(self.p95_s - mine, other.p95_s - its),
            self.is_sure and other.is_sure,
        )

    def certain(self) -> Forecast:
        """The median alone: of what plans have in common, the spread tells nothing."""
        return Forecast(self.p50_s, self.p50_s, self.p50_s, self.p50_s, self.is_sure)

    def or_later(self, other: Forecast) -> Forecast:
        """Both at once, until the later of them is over."""
        return Forecast(
            max(self.p5_s, other.p5_s),
            max(self.p50_s, other.p50_s),
            max(self.p75_s, other.p75_s),
            max(self.p95_s, other.p95_s),
            self.is_sure and other.is_sure,
        )


NOTHING = Forecast(0.0, 0.0, 0.0, 0.0)
