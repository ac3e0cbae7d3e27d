"""What is demanded of the rows of `kvrelay bench policies`, and whether they meet it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvrelay.bench.policies_rows import CLOSE_RATIO, COST, MAX_HALF_WIDTH, ORACLE, OWNER
from kvrelay.bench.report import Row

MAX_REGRET = 0.05
MAX_OVER_BASELINE = 0.05
MAX_UNRESOLVED = 0.1
MIN_CLOSE = 0.25
MIN_SMOKE_REGRET = 0.2
NO_RULES = (COST, ORACLE, OWNER)


@dataclass(frozen=True, slots=True)
class Aim:
    """One demand.

    Attributes:
        text: what is demanded.
        holds: whether it is met.
        found: the figures.
    """

    text: str
    holds: bool
    found: str

    def line(self) -> str:
        """For people."""
        return f"{'met' if self.holds else 'NOT MET'}: {self.text} ({self.found})"


def aims(rows: Sequence[Row], smoke: bool) -> list[Aim]:
    """All demands that these rows can tell about."""
    grid = {row["policy"]: row for row in rows if "cells" in row}
    cells = [row for row in rows if "cells" not in row]
    if smoke:
        return [
            _smoke(policy, grid[policy]["regret"]["estimate"])
            for policy in ("always", "never")
            if policy in grid
        ]
    found = [_close(cells), _resolved(cells)]
    if COST in grid:
        rules = [row for policy, row in grid.items() if policy not in NO_RULES]
        found += [_small_regret(grid[COST]), _no_worse(cells), *map(_better, rules)]
    return found


def _smoke(policy: str, regret: float) -> Aim:
    text = f"{policy} has a regret over {MIN_SMOKE_REGRET:.0%} in these cells"
    return Aim(text, regret > MIN_SMOKE_REGRET, f"{regret:.1%}")


def _close(cells: Sequence[Row]) -> Aim:
    """Of the cells in which there is something to relay, enough leave a choice."""
    ratios = [
        row["recompute_over_relay"]
        for row in cells
        if row["policy"] == ORACLE and row["shared_prefix_fraction"] > 0
    ]
    close = sum(1 / CLOSE_RATIO < ratio < CLOSE_RATIO for ratio in ratios)
    limit = f"{CLOSE_RATIO - 1:.0%}"
    text = f"in about a third of the cells with something to relay the arms differ by under {limit}"
    return Aim(text, close >= MIN_CLOSE * len(ratios), f"{close} of {len(ratios)}")


def _resolved(cells: Sequence[Row]) -> Aim:
    one = [row for row in cells if row["policy"] == ORACLE]
    unresolved = sum(not row["resolved"] for row in one)
    text = f"at most a tenth of the cells are known less well than to {MAX_HALF_WIDTH:.0%}"
    holds = unresolved <= MAX_UNRESOLVED * len(one)
    return Aim(text, holds, f"{unresolved} of {len(one)}")


def _small_regret(row: Row) -> Aim:
    regret = row["regret"]["estimate"]
    text = f"cost has a mean regret within {MAX_REGRET:.0%}"
    return Aim(text, regret <= MAX_REGRET, f"{regret:.1%}")


def _no_worse(cells: Sequence[Row]) -> Aim:
    resolved = [row for row in cells if row["policy"] == COST and row["resolved"]]
    worse = [row for row in resolved if row["over_best_baseline"] > MAX_OVER_BASELINE]
    text = f"in no resolved cell is cost more than {MAX_OVER_BASELINE:.0%} over the best baseline"
    found = f"{len(worse)} of {len(resolved)}"
    if worse:
        worst = max(worse, key=lambda row: float(row["over_best_baseline"]))
        found += (
            f"; worst {worst['over_best_baseline']:.1%} at {worst['tokens']} tokens, "
            f"{worst['shared_prefix_fraction']:.0%} shared, {worst['link']}"
        )
    return Aim(text, not worse, found)


def _better(row: Row) -> Aim:
    """The interval of the difference lies on the right side of 0."""
    more = row["regret_over_cost"]
    low = more.get("low")
    found = f"{more['estimate']:.1%}" + ("" if low is None else f", at least {low:.1%}")
    holds = low is not None and low > 0
    return Aim(f"cost has less regret over the grid than {row['policy']}", holds, found)
