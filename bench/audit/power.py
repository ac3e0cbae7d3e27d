"""How many pairs and sessions a plan needs, beside how many it asks for. Pure.

Normal approximation with the correction for the t test of W. Guenther, "Sample size formulas for
normal theory t tests", The American Statistician 35 (1981): within one of the exact numbers for
all sizes that a plan can have, so that no library of statistics is needed to read a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from kvrelay.bench.audit.plan import AA, PAIRED, Plan, Power


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sample sizes of one arm and design.

    Attributes:
        arm, design: whose.
        strata: in how many.
        asked: pairs or sessions in each.
        needed: for the planned effect and power, each stratum by itself, before Holm.
        needed_holm: the same at `alpha` over the number of strata: for the hardest of them.
    """

    arm: str
    design: str
    strata: int
    asked: int
    needed: int
    needed_holm: int

    @property
    def enough(self) -> bool:
        """Whether an effect of that size would be found in any stratum, all tests counted."""
        return self.asked >= self.needed_holm


def pairs_needed(power: Power, tests: int = 1) -> int:
    """Pairs for a two-sided t test of differences.

    Args:
        power: effect and standard deviation of a difference, both over the control's mean.
        tests: over which alpha is shared.
    """
    at, of = _quantiles(power, tests)
    size = power.sd_relative / power.effect_relative
    return math.ceil(((at + of) * size) ** 2 + at**2 / 2)


def sessions_needed(power: Power, tests: int = 1) -> int:
    """Sessions of each of two arms of the same size for a two-sided t test.

    Sessions are independent: if a pair shares nothing, the difference within it varies by twice the
    variance of a session, and what `sd_relative` says of pairs is taken for that.
    """
    at, of = _quantiles(power, tests)
    size = power.sd_relative / math.sqrt(2) / power.effect_relative
    return math.ceil(2 * ((at + of) * size) ** 2 + at**2 / 4)


def sizes(plan: Plan) -> list[Sizes]:
    """What is asked and what is needed, for every arm but the control."""
    found = []
    for arm in plan.arms:
        for design in arm.designs:
            if design == AA or arm.name == plan.control:
                continue
            strata = len(plan.strata_of(arm))
            asked = arm.pairs if design == PAIRED else arm.sessions
            needed = pairs_needed if design == PAIRED else sessions_needed
            power = plan.power
            found.append(
                Sizes(arm.name, design, strata, asked or 0, needed(power), needed(power, strata))
            )
    return found


def _quantiles(power: Power, tests: int) -> tuple[float, float]:
    """Of the test, and of its power."""
    normal = NormalDist()
    return normal.inv_cdf(1 - power.alpha / tests / 2), normal.inv_cdf(power.power)
