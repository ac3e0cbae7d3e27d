"""What is no effect, but what the article's table speaks of: how alike prompts are, and the wire.

Both are means over sessions with Student's interval: requests of one session are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvrelay.bench.stats import t975

Columns = Mapping[str, Sequence[Any]]
Row = dict[str, Any]
MEASURES = ("cosine", "jaccard", "shared_prefix_fraction")
# The quantile of Student's t that is used is off by more than 1 % below.
MIN_SESSIONS = 4
_NO_VALUE = "no row has a value and a level"


def described(columns: Columns, reasons: Mapping[str, str], arm: str = "relay") -> dict[str, Any]:
    """The sections `similarity`, `not_measured` and `transfers` of an analysis.

    Args:
        columns: an audit's rows by column, those left after exclusions, and `stratum`.
        reasons: why a column could not be filled, by its name.
        arm: whose transfers.

    Returns:
        `similarity`: `level`, `measure`, `mean`, `low`, `high`, `n` (requests).
        `not_measured`: for each measure without any value, why it has none.
        `transfers`: `stratum`, `arm`, `estimate`, `low`, `high` in seconds on the wire of one
        request that moved something, `n`.
    """
    similarity = _similarity(columns)
    missing = set(MEASURES) - {row["measure"] for row in similarity}
    return {
        "similarity": similarity,
        "not_measured": {each: reasons.get(each, _NO_VALUE) for each in sorted(missing)},
        "transfers": _transfers(columns, arm),
    }


def _similarity(columns: Columns) -> list[Row]:
    found: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for row in _rows(columns, ("similarity", "session", *MEASURES)):
        for measure in MEASURES:
            value = _finite(row[measure])
            if value is not None and row["similarity"] not in (None, ""):
                key = (str(row["similarity"]), measure)
                found[key].append((str(row["session"]), value))
    return [
        {"level": level, "measure": measure, **_mean(values, "mean")}
        for (level, measure), values in sorted(found.items())
    ]


def _transfers(columns: Columns, arm: str) -> list[Row]:
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in _rows(columns, ("arm", "session", "wire_s", "stratum")):
        value = _finite(row["wire_s"])
        if row["arm"] == arm and value is not None and value > 0:
            found[str(row["stratum"])].append((str(row["session"]), value))
    return [
        {"stratum": stratum, "arm": arm, **_mean(values, "estimate")}
        for stratum, values in sorted(found.items())
    ]


def _mean(values: Sequence[tuple[str, float]], name: str) -> Row:
    """The mean of sessions' means; without an interval from too few of them."""
    sessions: dict[str, list[float]] = defaultdict(list)
    for session, value in values:
        sessions[session].append(value)
    means = [statistics.fmean(each) for _, each in sorted(sessions.items())]
    mean = statistics.fmean(means)
    row: Row = {name: mean, "low": None, "high": None, "n": len(values)}
    if len(means) >= MIN_SESSIONS:
        error = statistics.stdev(means) / math.sqrt(len(means))
        reach = t975(len(means) - 1) * error
        row |= {"low": mean - reach, "high": mean + reach}
    return row


def _rows(columns: Columns, names: Sequence[str]) -> Iterator[Row]:
    """Rows of these columns; None throughout for a column that is not there."""
    length = len(columns.get("arm", ()))
    chosen = [columns[name] if name in columns else [None] * length for name in names]
    for values in zip(*chosen, strict=True):
        yield dict(zip(names, values, strict=True))


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
