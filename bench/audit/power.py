"""How many pairs and sessions a plan needs, beside how many it asks for. Pure.

Normal approximation with the correction for the t test of W. Guenther, "Sample size formulas for
normal theory t tests", The American Statistician 35 (1981): within one of the exact numbers for
all sizes that a plan can have, so that no library of statistics is needed to read a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from kvrelay.bench.audit.plan import AA, PAIRED, ArmPlan, Plan, Power


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sample sizes of one arm and design.

    Attributes:
        arm, design: whose.
        strata: in how many.
        asked: pairs or sessions in each.
        turns: of a session that are compared: all but A's first; one of a pair.
        needed: for the planned effect and power, each stratum by itself, before Holm.
        needed_holm: the same at `alpha` over the number of strata that the arm has in this design,
            in other entries of the plan too: for the hardest of them.
    """

    arm: str
    design: str
    strata: int
    asked: int
    turns: int
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


def sessions_needed(power: Power, tests: int = 1, turns: int = 1) -> int:
    """Sessions of each of two arms of the same size for a two-sided t test of their means.

    Sessions are independent: if a pair shares nothing, the difference within it varies by twice the
    variance of a session, and what `sd_relative` says of pairs is taken for that. Of several turns
    the mean varies by (1 + (turns - 1) turn_correlation) / turns of what one does (the design
    effect of L. Kish, Survey Sampling, 1965, over the size of a cluster).

    Args:
        power: effect and standard deviations, over the control's mean.
        tests: over which alpha is shared.
        turns: of each session that are compared.
    """
    at, of = _quantiles(power, tests)
    of_mean = (1 + (turns - 1) * power.turn_correlation) / turns
    size = power.sd_relative * math.sqrt(of_mean / 2) / power.effect_relative
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
            turns = 1 if design == PAIRED else arm.turns - 1
            tests = sum(len(plan.strata_of(each)) for each in plan.arms if _same(each, arm, design))
            one, family = (_needed(plan.power, design, count, turns) for count in (1, tests))
            found.append(Sizes(arm.name, design, strata, asked or 0, turns, one, family))
    return found


def _same(one: ArmPlan, other: ArmPlan, design: str) -> bool:
    """Whether two entries are of one arm in this design: their strata are one family."""
    return one.name == other.name and design in one.designs


def _needed(power: Power, design: str, tests: int, turns: int) -> int:
    if design == PAIRED:
        return pairs_needed(power, tests)
    return sessions_needed(power, tests, turns)


def _quantiles(power: Power, tests: int) -> tuple[float, float]:
    """Of the test, and of its power."""
    normal = NormalDist()
    return normal.inv_cdf(1 - power.alpha / tests / 2), normal.inv_cdf(power.power)
