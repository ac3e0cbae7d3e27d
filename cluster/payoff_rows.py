"""Rows of `kvrelay payoff`, and how they read in a table and a picture."""

from __future__ import annotations

import math
from typing import Any

from kvrelay.policies.confidence import Estimate, Verdict

Row = dict[str, Any]
_MANY = 1_000_000


def make_row(label: str, estimate: Estimate, off_requests: int = 0) -> Row:
    """An estimate in plain JSON types; None where there is no figure yet.

    Args:
        off_requests: of its requests, those that were recomputed since their stratum was off.
    """
    return {
        "stratum": label,
        "requests": estimate.requests,
        "sessions": estimate.sessions,
        "off_requests": off_requests,
        "saving_s": _finite(estimate.saving_s),
        "lower_s": _finite(estimate.lower_s),
        "upper_s": _finite(estimate.upper_s),
        "since_s": estimate.since_s,
        "verdict": str(estimate.verdict),
        "more_sessions": estimate.more_sessions,
    }


def saving_text(row: Row) -> str:
    """The estimate; without an interval it would mislead."""
    return "-" if row["lower_s"] is None else f"{row['saving_s']:+.3f} s"


def interval_text(row: Row) -> str:
    """Both bounds."""
    return "-" if row["lower_s"] is None else f"{row['lower_s']:+.3f} to {row['upper_s']:+.3f}"


def verdict_text(row: Row) -> str:
    """The verdict in words."""
    verdict = str(row["verdict"])
    if verdict != Verdict.UNKNOWN:
        return verdict
    more = int(row["more_sessions"])
    number = "over a million" if more > _MANY else f"about {more:,}"
    return f"{verdict}: {number} more sessions needed"


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
