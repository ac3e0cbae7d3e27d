"""Pairs of requests: the same request under the control and under an arm, from an audit's rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

_CELL = ("link", "tokens", "load", "similarity", "language")
_SIDE = ("session", "failed", "relayed_tokens", "wire_s", "prefill_s")
# Over shared memory, so no wire is measured.
SAME_NODE = "same-node"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One request under both arms.

    Attributes:
        link, load, tokens: its cell; tokens of the whole prompt, as the plan names them.
        kind: what else tells strata apart, such as `high/en`; each counts the same in a cell.
        session: pairs of one session are not independent of each other.
        effect_s: seconds under the arm less seconds under the control.
        relayed_tokens: tokens of which KV came over; 0 if none did.
        wire_s: seconds for which that KV was on its way, 0 where there is no wire; NaN if not
            measured.
        saved_s: seconds of prefill under the control less those under the arm; NaN likewise.
    """

    link: str
    load: str
    tokens: int
    kind: str
    session: str
    effect_s: float
    relayed_tokens: float = 0.0
    wire_s: float = math.nan
    saved_s: float = math.nan


def pairs_of(
    columns: Mapping[str, Any],
    arm: str = "relay",
    control: str = "recompute",
    outcome: str = "ttft_s",
    similarity: str = "high",
) -> list[Pair]:
    """The complete pairs of the paired design.

    Requests that failed, or lack the outcome, take their pair with them. Several requests of one
    arm in a pair count with their mean.

    Args:
        columns: sequences or arrays of an audit's rows, by name; missing values are None, NaN or
            the empty string.
        arm, control: what is compared with what.
        outcome: a column in seconds.
        similarity: only of requests of this level, since a break-even is that of KV which there is
            to relay; of all if no row has it.
    """
    names = ("pair", "arm", "design", outcome, *_CELL, *_SIDE)
    found: dict[tuple[str, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    rows = _rows(columns, names)
    levels = {row["similarity"] for row in rows}
    for row in rows:
        of_paired = row["design"] in ("", "paired") and row["pair"] != ""
        of_level = similarity not in levels or row["similarity"] == similarity
        if of_paired and of_level and row["arm"] in (arm, control):
            key = (str(row["pair"]), *(str(row[name]) for name in _CELL))
            found[key][row["arm"]].append(row)
    return [
        _pair(sides[arm], sides[control], outcome)
        for sides in found.values()
        if _usable(sides[arm], outcome) and _usable(sides[control], outcome)
    ]


def _rows(columns: Mapping[str, Any], names: Sequence[str]) -> list[Row]:
    count = len(columns["arm"]) if "arm" in columns else 0
    plain = {
        name: [_plain(value) for value in columns[name]] if name in columns else [""] * count
        for name in names
    }
    return [dict(zip(names, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def _plain(value: Any) -> Any:
    """The empty string for what is missing."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else value


def _usable(side: Sequence[Row], outcome: str) -> bool:
    return bool(side) and all(row[outcome] != "" and not row["failed"] for row in side)


def _pair(treated: Sequence[Row], control: Sequence[Row], outcome: str) -> Pair:
    first = treated[0]
    # The arms of a pair may have been given sessions of their own: the pair stays together.
    sessions = sorted({str(row["session"]) for row in (*treated, *control)})
    relayed = fmean(float(row["relayed_tokens"] or 0.0) for row in treated)
    wire_s = _mean(treated, "wire_s")
    no_wire = first["link"] == SAME_NODE or not relayed
    return Pair(
        link=str(first["link"]),
        load=str(first["load"]),
        tokens=int(first["tokens"] or 0),
        kind=f"{first['similarity']}/{first['language']}",
        session="+".join(sessions),
        effect_s=_mean(treated, outcome) - _mean(control, outcome),
        relayed_tokens=relayed,
        wire_s=0.0 if math.isnan(wire_s) and no_wire else wire_s,
        saved_s=_mean(control, "prefill_s") - _mean(treated, "prefill_s"),
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(math.nan if row[name] == "" else float(row[name]) for row in rows)
