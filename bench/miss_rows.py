"""The rows of `kvrelay bench miss`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvrelay.bench.idle import STORE
from kvrelay.bench.report import Row, number, seconds
from kvrelay.bench.roles import CONNECTOR, CONTROL, PLAIN
from kvrelay.bench.stats import figure, geometric_mean, interval_over_strata, ratio_interval

MAX_RATIO = 1.02
SEED = 1
COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "tokens": number("tokens", ","),
    "connector": seconds("connector_s"),
    "plain": seconds("plain_s"),
    "control": seconds("control_s"),
    "miss ratio": lambda row: _interval_cell(row, "miss_ratio"),
    "of any\nstart": lambda row: _interval_cell(row, "miss_ratio_over_starts"),
    "A/A ratio": lambda row: _interval_cell(row, "aa_ratio"),
}
_ROLES = {"connector_s": CONNECTOR, "plain_s": PLAIN, "control_s": CONTROL}


def summarize(samples: Sequence[Row]) -> list[Row]:
    """Rows of `kind` ttft (one per length), itl and idle (one each).

    `miss_ratio` is connector over plain and `aa_ratio` control over plain, the geometric mean
    of the pairs with its 95 % interval (`stats.ratio_interval`); `..._by_restart` are those of
    the single starts of the engines, whose spread the interval does not hold. From four starts on
    `..._over_starts` has an interval that does.
    """
    times = [s for s in samples if s["measure"] == "ttft_s"]
    rows = [_ttft_row(tokens, times) for tokens in sorted({s["tokens"] for s in times})]
    if row := _itl_row([s for s in samples if s["measure"].startswith("itl")]):
        rows.append(row)
    if row := _idle_row([s for s in samples if s["measure"] == "idle_cores"]):
        rows.append(row)
    return rows


def _ttft_row(tokens: int, samples: Sequence[Row]) -> Row:
    values: dict[str, dict[tuple[int, int], float]] = {role: {} for role in _ROLES.values()}
    for sample in samples:
        if sample["tokens"] == tokens:
            values[sample["role"]][sample["restart"], sample["repeat"]] = sample["value"]
    row: Row = {"kind": "ttft", "tokens": tokens}
    for name, role in _ROLES.items():
        if values[role]:
            row[name] = figure(list(values[role].values()))
    for name, role in (("miss_ratio", CONNECTOR), ("aa_ratio", CONTROL)):
        by_restart = _pairs(values[role], values[PLAIN])
        if by_restart:
            row[name] = ratio_interval(by_restart, SEED).to_dict()
            if (any_start := interval_over_strata(by_restart)) is not None:
                row[f"{name}_over_starts"] = any_start.to_dict()
            row[f"{name}_by_restart"] = [
                round(geometric_mean(ratios), 5) for _, ratios in sorted(by_restart.items())
            ]
    if "miss_ratio" in row:
        row["aim_met"] = row["miss_ratio"]["high"] <= MAX_RATIO
    timed = [s for s in samples if s["tokens"] == tokens]
    row |= {name: figure([s[name] for s in timed]) for name in ("others_cores", "steal_cores")}
    return row


def _pairs(
    above: Mapping[tuple[int, int], float], below: Mapping[tuple[int, int], float]
) -> dict[int, list[float]]:
    """Ratios of the complete pairs, by restart."""
    ratios: dict[int, list[float]] = {}
    for restart, repeat in sorted(set(above) & set(below)):
        pair = above[restart, repeat] / below[restart, repeat]
        ratios.setdefault(restart, []).append(pair)
    return ratios


def _itl_row(samples: Sequence[Row]) -> Row | None:
    row: Row = {"kind": "itl"}
    for measure in ("itl_s", "itl_worst_after_s", "itl_worst_s"):
        sides: dict[bool, dict[int, float]] = {True: {}, False: {}}
        for sample in samples:
            if sample["measure"] == measure:
                sides[sample["saving"]][sample["alternation"]] = sample["value"]
        both = sorted(set(sides[True]) & set(sides[False]))
        if not both:
            return None
        row["alternations"] = len(both)
        for side, name in ((True, "saving"), (False, "not_saving")):
            row[f"{name}_{measure}"] = figure([sides[side][i] for i in both])
        ratios = [sides[True][i] / sides[False][i] for i in both]
        row[f"{measure.removesuffix('_s')}_ratio"] = ratio_interval({0: ratios}, SEED).to_dict()
    return row


def _idle_row(samples: Sequence[Row]) -> Row | None:
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample["role"], []).append(sample["value"])
    if not {CONNECTOR, PLAIN, CONTROL} <= set(values):
        return None
    row: Row = {"kind": "idle"}
    for role in (CONNECTOR, PLAIN, CONTROL, STORE):
        if role in values:
            row[f"{role}_cores"] = figure(values[role])
    plain = [(a + b) / 2 for a, b in zip(values[PLAIN], values[CONTROL], strict=False)]
    extra = [a - b for a, b in zip(values[CONNECTOR], plain, strict=False)]
    row["connector_extra_cores"] = figure(extra)
    return row


def _interval_cell(row: Row, name: str) -> str:
    value: Any = row.get(name)
    if value is None:
        return "-"
    return f"{value['estimate']:.4f}\n[dim]{value['low']:.4f} - {value['high']:.4f}[/]"
