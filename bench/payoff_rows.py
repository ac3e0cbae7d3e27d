"""The rows of `kvrelay bench payoff`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvrelay.bench.report import Row, number
from kvrelay.bench.stats import figure

ALL, SWITCH = "all", "switch"
MISSED_AT_MOST, WIDTH_AT_MOST = 0.065, 2.0
_OPTIONAL = ("interval_sessions", "sign_sessions", "width_over_fixed")
_SWITCH_FIGURES = ("off_sessions", "lost_share", "back_s", "back_sessions", "trials")


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per world, one of all streams together, and those of the switch.

    `missed_ratio` is the share of streams whose interval excluded the truth at any look.
    """
    streams = [sample for sample in samples if sample["scenario"] != SWITCH]
    worlds: dict[str, list[Row]] = {}
    for sample in streams:
        worlds.setdefault(sample["scenario"], []).append(sample)
    rows = [_world(name, found) for name, found in worlds.items()]
    if len(worlds) > 1:
        rows.append(_world(ALL, streams))
    planted: dict[str, list[Row]] = {}
    for sample in samples:
        if sample["scenario"] == SWITCH:
            planted.setdefault(sample["planted"], []).append(sample)
    return rows + [_switch(name, found) for name, found in planted.items()]


def _world(name: str, samples: Sequence[Row]) -> Row:
    count = len(samples)
    row: Row = {"scenario": name, "streams": count}
    if name != ALL:
        row |= {key: samples[0][key] for key in ("epsilon", "sessions", "truth_s")}
    for key in ("missed", "naive_missed", "wrong_sign"):
        row[key] = sum(sample[key] for sample in samples)
    row["no_interval"] = sum(sample["width_over_fixed"] is None for sample in samples)
    row["missed_ratio"] = round(row["missed"] / count, 4)
    row["naive_missed_ratio"] = round(row["naive_missed"] / count, 4)
    for key in _OPTIONAL:
        if found := [sample[key] for sample in samples if sample[key] is not None]:
            row[key] = figure(found)
    return row


def _switch(planted: str, samples: Sequence[Row]) -> Row:
    row: Row = {"scenario": SWITCH, "planted": planted, "streams": len(samples)}
    row["switched_off"] = sum(sample["off_sessions"] is not None for sample in samples)
    row["came_back"] = sum(sample["back_s"] is not None for sample in samples)
    for key in _SWITCH_FIGURES:
        if found := [sample[key] for sample in samples if sample[key] is not None]:
            row[key] = figure(found)
    return row


def verdict(rows: Sequence[Row]) -> str:
    """Whether the streams together keep what is promised, in words."""
    row = next((row for row in rows if row["scenario"] == ALL), None)
    if row is None:
        return "one world only: nothing is judged"
    widest = row["width_over_fixed"]["max"]
    narrow = not row["no_interval"] and widest <= WIDTH_AT_MOST
    kept = row["missed_ratio"] <= MISSED_AT_MOST and narrow
    return (
        f"{'kept' if kept else 'NOT KEPT'}: {row['missed_ratio']:.1%} of "
        f"{row['streams']:,} streams missed the truth at some look "
        f"(at most {MISSED_AT_MOST:.1%}); widest last interval {widest:.2f} of a fixed-n one "
        f"(at most {WIDTH_AT_MOST:g})"
    )


def _median(name: str, form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "-"
        low, middle, high = (format(value[key], form) for key in ("min", "median", "max"))
        return f"{middle}\n[dim]{low} - {high}[/]"

    return cell


WORLDS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "streams of": number("scenario"),
    "epsilon": number("epsilon", "g"),
    "sessions": number("sessions", ","),
    "saving, s": number("truth_s", "+.3f"),
    "streams": number("streams", ","),
    "missed at\nany look": number("missed_ratio", ".1%"),
    "95 % CI of\none look": number("naive_missed_ratio", ".1%"),
    "wrong\nsign": number("wrong_sign"),
    "width\n/ fixed n": _median("width_over_fixed", ".2f"),
    "sessions until\nan interval": _median("interval_sessions", ",.0f"),
    "sessions until\nthe sign": _median("sign_sessions", ",.0f"),
}
SWITCH_TABLE: Mapping[str, Callable[[Row], str]] = {
    "stratum in which relay": number("planted"),
    "streams": number("streams", ","),
    "turned\noff": number("switched_off"),
    "came\nback": number("came_back"),
    "sessions until\nit was off": _median("off_sessions", ",.0f"),
    "relayed\nwhile off": _median("lost_share", ".1%"),
    "sessions from the\nchange until back": _median("back_sessions", ",.0f"),
    "trials": _median("trials", ".0f"),
}
