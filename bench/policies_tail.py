"""Tails under load in `kvrelay bench policies`: p95 and p99 of `cost`, beside never and always.

The requests of a block come together and wait for each other, so a block is what is drawn anew:
the blocks of a round had the same prompts after the same gaps, and are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.policies_rows import COST, RECOMPUTE, RELAY, TAIL, Cell, cell_of
from kvrelay.bench.report import Row

Floats = NDArray[np.float64]
BLOCKS = {"never": RECOMPUTE, "always": RELAY, COST: COST}
_DRAWS = 2000
_DIGITS = 5


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per tail cell and policy, in seconds.

    `p95_over_never` is the ratio of `cost`'s p95 to that of `never`, with what it is below with
    95 % confidence (`bound`), left out where there is only one round.
    """
    rounds: dict[Cell, list[Row]] = {}
    for sample in samples:
        if sample["load"] == TAIL:
            rounds.setdefault(cell_of(sample), []).append(sample)
    return [
        _row(cell, found, policy) for cell, found in sorted(rounds.items()) for policy in BLOCKS
    ]


def _row(cell: Cell, rounds: Sequence[Row], policy: str) -> Row:
    seconds = _seconds(rounds, policy)
    p50_s, p95_s, p99_s = np.percentile(seconds, [50, 95, 99]).tolist()
    row: Row = {
        "policy": policy,
        **cell.factors(),
        "requests": seconds.size,
        "p50_s": round(p50_s, _DIGITS),
        "p95_s": round(p95_s, _DIGITS),
        "p99_s": round(p99_s, _DIGITS),
    }
    if policy == COST:
        row["p95_over_never"] = _ratio(seconds, _seconds(rounds, "never"))
    return row


def _seconds(rounds: Sequence[Row], policy: str) -> Floats:
    """Of each request, by round."""
    block = BLOCKS[policy]
    return np.array([[each["seconds"] for each in one["requests"][block]] for one in rounds])


def _ratio(own: Floats, other: Floats) -> dict[str, float]:
    found = {"estimate": round(float(_p95(own.ravel()) / _p95(other.ravel())), _DIGITS)}
    count = len(own)
    if count > 1:
        drawn = np.random.default_rng(0).integers(count, size=(_DRAWS, count))
        ratios = [_p95(own[numbers]) / _p95(other[numbers]) for numbers in drawn]
        found["bound"] = round(float(np.percentile(ratios, 95)), _DIGITS)
    return found


def _p95(seconds: Floats) -> float:
    return float(np.percentile(seconds, 95))


def _over_never(row: Row) -> str:
    ratio = row.get("p95_over_never")
    if ratio is None:
        return "-"
    text = f"{ratio['estimate']:.2f}"
    return text + (f"\n[dim]<= {ratio['bound']:.2f}[/]" if "bound" in ratio else "")


TAIL_TABLE: Mapping[str, Callable[[Row], str]] = {
    "link": lambda row: str(row["link"]),
    "tokens": lambda row: f"{row['tokens']:,}",
    "shared": lambda row: f"{row['shared_prefix_fraction']:.0%}",
    "policy": lambda row: str(row["policy"]),
    "requests": lambda row: str(row["requests"]),
    "p50": lambda row: f"{row['p50_s']:.3f}",
    "p95": lambda row: f"{row['p95_s']:.3f}",
    "p99": lambda row: f"{row['p99_s']:.3f}",
    "p95\n/ never": _over_never,
}
