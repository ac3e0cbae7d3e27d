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
    """Seconds below which 5, 50, 75 and 95 of 100 outcomes are expected."""

    p5_s: float
    p50_s: float
    p75_s: float
    p95_s: float

    @classmethod
    def of(cls, estimate: Estimate, ratios: Quantiles) -> Forecast:
        """What is estimated, corrected by and spread as the ratios that were seen lately.

        The coefficients' own uncertainty is added, for it is larger away from what was observed.
        """
        if estimate.mean <= 0:
            return NOTHING
        unsure = math.log1p(estimate.sd / estimate.mean)
        middle = math.log(ratios.p50)

        def at(ratio: float, z: float) -> float:
            spread = math.hypot(math.log(ratio) - middle, z * unsure)
            return estimate.mean * math.exp(middle + math.copysign(spread, z))

        p5_s, p75_s, p95_s = at(ratios.p5, -_Z95), at(ratios.p75, _Z75), at(ratios.p95, _Z95)
        return cls(p5_s, estimate.mean * ratios.p50, p75_s, p95_s)

    def __add__(self, other: Forecast) -> Forecast:
        """One after the other: spreads of what is independent add up in quadrature."""
        middle = self.p50_s + other.p50_s

        def off(name: str) -> float:
            mine = getattr(self, name) - self.p50_s
            return math.hypot(mine, getattr(other, name) - other.p50_s)

        return Forecast(
            max(0.0, middle - off("p5_s")),
            middle,
            middle + off("p75_s"),
            middle + off("p95_s"),
        )

    def certain(self) -> Forecast:
        """The median alone: of what plans have in common, the spread tells nothing."""
        return Forecast(self.p50_s, self.p50_s, self.p50_s, self.p50_s)

    def or_later(self, other: Forecast) -> Forecast:
        """Both at once, until the later of them is over."""
        return Forecast(
            max(self.p5_s, other.p5_s),
            max(self.p50_s, other.p50_s),
            max(self.p75_s, other.p75_s),
            max(self.p95_s, other.p95_s),
        )


NOTHING = Forecast(0.0, 0.0, 0.0, 0.0)
