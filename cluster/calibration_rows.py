"""Rows of `kvrelay calibrate`: what an engine has learnt about seconds, and how far it was off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kvrelay.policies.costs import Way
from kvrelay.relay.learnt import (
    LoadCurve,
    PrefillCurve,
    Saved,
    SeenLoad,
    SeenStep,
    engine_and_machine,
)

Row = dict[str, Any]
_NAMES = ("place", "source", "transport", "path", "codec")
_NODE_CHARACTERS = 8
# Tokens of a step, from each to below the next: what the table sums up.
_BINS = (1, 128, 512, 1024, 2048, 4096)


def make_row(path: Path, saved: Saved, now_s: float) -> Row:
    """All that one file tells, in plain JSON types; None where nothing is known."""
    engine, machine = engine_and_machine(path)
    loads = {each.way: each.loads for each in saved.recent.ways}
    ways = sorted(saved.loads, key=lambda curve: curve.way)
    prefill = _prefill(saved.prefill, saved.recent.steps, now_s)
    rows = [_load(curve, loads, now_s) for curve in ways]
    ages = [row["age_s"] for row in (prefill, *rows) if row["age_s"] is not None]
    return {
        "engine": engine,
        "machine": machine,
        "agent": saved.recent.agent,
        "file": str(path),
        "age_s": min(ages, default=None),
        "prefill": prefill,
        "loads": rows,
    }


def step_bins(points: Sequence[Row]) -> list[Row]:
    """Observed steps by how many tokens they computed: medians, and how far the worst was off."""
    known = [point for point in points if point["off"] is not None]
    rows = []
    for low, high in zip(_BINS, (*_BINS[1:], None), strict=True):
        some = [p for p in known if low <= p["tokens"] and (high is None or p["tokens"] < high)]
        if not some:
            continue
        figures = {name: median(p[name] for p in some) for name in ("seconds", "predicted_s")}
        worst = max((p["off"] for p in some), key=abs)
        label = f"{low:,} and more" if high is None else f"{low:,} to {high - 1:,}"
        rows.append({"tokens": label, "steps": len(some), "worst": worst, **figures} | _off(some))
    return rows


def name_of(row: Row) -> str:
    """An engine in a few words."""
    agent = f", agent {row['agent']}" if row["agent"] else ""
    return f"engine {row['engine']} on {row['machine']}{agent}"


def main_ways(loads: Sequence[Row]) -> list[Row]:
    """Places, by which it is decided, and ways to their ends; not what lies between."""

    def is_beginning(way: Sequence[str]) -> bool:
        longer = (row["way"] for row in loads if len(row["way"]) > len(way))
        return any(other[: len(way)] == way for other in longer)

    return [
        row
        for row in loads
        if len(row["way"]) == 1 or row["observed"] or not is_beginning(row["way"])
    ]


def way_text(row: Row) -> str:
    """A way in one line; nodes have long names."""
    place, *rest = row["way"]
    return " ".join([place, *(name[:_NODE_CHARACTERS] for name in rest[:1]), *rest[1:]])


def formula(prefill: Row) -> str:
    """The fitted curve of a step, in words."""
    fixed_s, token_s, square_s = (
        prefill[name] for name in ("fixed_s", "per_token_s", "per_token_squared_s")
    )
    return (
        f"{1e3 * fixed_s:.3g} ms + {1e6 * token_s:.3g} µs per token "
        f"+ {1e9 * square_s:.3g} ns per square"
    )


def off_text(off: float | None) -> str:
    """A residual: how much longer, or shorter, than predicted."""
    return "-" if off is None else f"{off:+.0%}"


def age_text(age_s: float | None) -> str:
    """How long ago, in one unit."""
    if age_s is None:
        return "-"
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit} ago"
    return f"{max(age_s, 0):.0f} s ago"


def _prefill(curve: PrefillCurve, steps: Sequence[SeenStep], now_s: float) -> Row:
    fixed_s, token_s, square_s = curve.coefficients
    short, long = curve.ratios
    points = [
        {
            "age_s": now_s - step.time_s,
            "tokens": step.tokens,
            "squares": step.squares,
            "fitted_s": fixed_s + token_s * step.tokens + square_s * step.squares,
            **_residual(step),
        }
        for step in steps
    ]
    return {
        "fixed_s": fixed_s,
        "per_token_s": token_s,
        "per_token_squared_s": square_s,
        "steps": curve.count,
        "factor_short": _factor(short),
        "factor": _factor(long),
        "observed": points,
        **_off(points),
        "age_s": min((point["age_s"] for point in points), default=None),
    }


def _load(curve: LoadCurve, seen: Mapping[Way, Sequence[SeenLoad]], now_s: float) -> Row:
    fixed_s, byte_s, ahead_s = curve.coefficients
    way = curve.way
    names = dict.fromkeys(_NAMES) | dict(zip(_NAMES, way, strict=False))
    within = [
        {
            "way": list(of),
            "age_s": now_s - load.time_s,
            "num_bytes": load.num_bytes,
            "bytes_ahead": load.bytes_ahead,
            "fitted_s": fixed_s + byte_s * load.num_bytes + ahead_s * load.bytes_ahead,
            **_residual(load),
        }
        for of, loads in seen.items()
        if of[: len(way)] == way
        for load in loads
    ]
    return {
        "way": list(way),
        **names,
        "fixed_s": fixed_s,
        "per_byte_s": byte_s,
        "per_byte_ahead_s": ahead_s,
        "gb_per_s": 1e-9 / byte_s if byte_s > 0 else None,
        "loads": curve.count,
        "factor": _factor(curve.ratios[0]),
        "observed": [point for point in within if point["way"] == list(way)],
        **_off(within),
        "age_s": min((point["age_s"] for point in within), default=None),
    }


def _factor(ratios: Sequence[float]) -> Row:
    """By what realised seconds have lately differed from the curve, as quantiles."""
    return dict(zip(("p5", "p50", "p75", "p95"), ratios, strict=True))


def _residual(seen: SeenStep | SeenLoad) -> Row:
    off = seen.seconds / seen.predicted_s - 1 if seen.predicted_s > 0 else None
    return {"seconds": seen.seconds, "predicted_s": seen.predicted_s, "off": off}


def _off(points: Sequence[Row]) -> Row:
    """The residuals' median, and that of their sizes."""
    offs = [point["off"] for point in points if point["off"] is not None]
    sizes = [abs(off) for off in offs]
    return {
        "off": median(offs) if offs else None,
        "error": median(sizes) if sizes else None,
    }
