"""What is demanded of the rows of `kvrelay bench policies`, and whether they meet it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvrelay.bench.policies_rows import CLOSE_RATIO, COST, IDLE, MAX_HALF_WIDTH, ORACLE, OWNER
from kvrelay.bench.report import Row

MAX_REGRET = 0.05
MAX_OVER_BASELINE = 0.05
MAX_UNRESOLVED = 0.1
MIN_CLOSE = 0.25
MIN_SMOKE_REGRET = 0.2
MAX_TAIL_RATIO = 1.05
MIN_TAIL_REQUESTS = 400
MIN_PREDICTIONS = 200
MAX_MEDIAN_ERROR = 0.15
MIN_COVERED, MAX_COVERED = 0.85, 0.95
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
    cells = [row for row in rows if "resolved" in row]
    if smoke:
        return [
            _smoke(policy, grid[policy]["regret"]["estimate"])
            for policy in ("always", "never")
            if policy in grid
        ]
    found = []
    if grid:
        found += [_close(cells), _resolved(cells)]
    if COST in grid:
        rules = [row for policy, row in grid.items() if policy not in NO_RULES]
        found += [_small_regret(grid[COST]), _no_worse(cells), *map(_better, rules)]
    found += [_tail(row) for row in rows if "p95_over_never" in row]
    for row in rows:
        if "median_error" in row and row["load"] == IDLE:
            found += [_accurate(row), _covering(row)]
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


def _tail(row: Row) -> Aim:
    ratio, requests = row["p95_over_never"], row["requests"]
    bound = ratio.get("bound")
    where = f"{row['tokens']} tokens, {row['shared_prefix_fraction']:.0%} shared, {row['link']}"
    text = (
        f"under load the p95 of cost is within {MAX_TAIL_RATIO - 1:.0%} of never's, {where}, by "
        f"{MIN_TAIL_REQUESTS} requests"
    )
    known = "no interval" if bound is None else f"below {bound:.2f}"
    found = f"{ratio['estimate']:.2f} times, {known}, {requests} requests"
    holds = bound is not None and bound <= MAX_TAIL_RATIO and requests >= MIN_TAIL_REQUESTS
    return Aim(text, holds, found)


def _accurate(row: Row) -> Aim:
    error, count = row["median_error"], row["predictions"]
    text = f"the median error of predictions of {row['arm']} is within {MAX_MEDIAN_ERROR:.0%}"
    holds = error <= MAX_MEDIAN_ERROR and count >= MIN_PREDICTIONS
    return Aim(f"{text}, by {MIN_PREDICTIONS} requests", holds, f"{error:.1%} of {count}")


def _covering(row: Row) -> Aim:
    covered, count = row["covered"], row["predictions"]
    limits = f"{MIN_COVERED:.0%} to {MAX_COVERED:.0%}"
    text = f"of predictions of {row['arm']} 90 % intervals hold {limits}, by {MIN_PREDICTIONS}"
    holds = MIN_COVERED <= covered <= MAX_COVERED and count >= MIN_PREDICTIONS
    found = f"{covered:.1%} of {count}; if 90 % were true, p = {row['covered_p']:.2f}"
    return Aim(f"{text} requests", holds, found)


def _better(row: Row) -> Aim:
    """The interval of the difference lies on the right side of 0."""
    more = row["regret_over_cost"]
    low = more.get("low")
    found = f"{more['estimate']:.1%}" + ("" if low is None else f", at least {low:.1%}")
    holds = low is not None and low > 0
    return Aim(f"cost has less regret over the grid than {row['policy']}", holds, found)
