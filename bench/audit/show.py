"""A plan for people: what it measures, how long that takes, and what it can find."""

from __future__ import annotations

from collections import Counter

from kvrelay.bench.audit.plan import Plan
from kvrelay.bench.audit.power import Sizes, sizes
from kvrelay.bench.audit.units import estimate_s, planned
from kvrelay.bench.policies_plan import duration
from kvrelay.bench.report import number, show
from kvrelay.cluster.cli.console import out


def show_plan(plan: Plan) -> None:
    """Print it."""
    units = planned(plan)
    counts = Counter(unit.design for unit in units)
    out.print(plan.question, style="bold", highlight=False, markup=False)
    out.print(f"plan sha256 {plan.sha256}", highlight=False)
    words = ", ".join(f"{count} {design}" for design, count in counts.items())
    requests = sum(unit.requests for unit in units)
    total_s = sum(estimate_s(unit) for unit in units)
    out.print(
        f"{len(plan.all_strata())} strata; {len(units)} units ({words}), {requests} requests; "
        f"about {duration(total_s)} on two cores, engines already up",
        highlight=False,
    )
    columns = {
        "arm": number("arm"),
        "design": number("design"),
        "turns": number("turns", ","),
        "strata": number("strata", ","),
        "asked": number("asked", ","),
        "needed": number("needed", ","),
        "Holm": number("needed_holm", ","),
        "enough": number("enough"),
    }
    rows = [_row(each) for each in sizes(plan)]
    power = plan.power
    show(
        f"pairs or sessions to find {power.effect_relative:.0%} of the control's mean with power "
        f"{power.power:.0%} at alpha {power.alpha:g}",
        columns,
        rows,
    )


def _row(each: Sizes) -> dict[str, object]:
    return {
        "arm": each.arm,
        "design": each.design,
        "turns": each.turns,
        "strata": each.strata,
        "asked": each.asked,
        "needed": each.needed,
        "needed_holm": each.needed_holm,
        "enough": "yes" if each.enough else "no",
    }
