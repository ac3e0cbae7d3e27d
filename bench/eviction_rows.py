"""The rows of `kvrelay bench eviction`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvrelay.bench.report import Row, number
from kvrelay.bench.stats import figure, paired_ratios

BASELINES = ("lru", "gdsf")
MEASURES = ("saved_prefill_s", "saved_of_unlimited_ratio", "hit_token_ratio", "evicted_blocks")


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per trace, capacity and policy; figures are over the seeds.

    `saved_over_lru` and `saved_over_gdsf` are ratios of prefill saved, seed by seed.
    """
    cells: dict[tuple[str, float, str], dict[int, Row]] = {}
    for sample in samples:
        key = sample["trace"], sample["capacity"], sample["policy"]
        cells.setdefault(key, {})[sample["seed"]] = sample
    rows = []
    for (trace, capacity, policy), by_seed in cells.items():
        some = next(iter(by_seed.values()))
        row: Row = {"trace": trace, "capacity": capacity, "policy": policy}
        row |= {name: some[name] for name in ("block_tokens", "requests")}
        row["slots"] = figure([each["slots"] for each in by_seed.values()])
        row |= {name: figure([each[name] for each in by_seed.values()]) for name in MEASURES}
        for baseline in BASELINES:
            others = cells.get((trace, capacity, baseline), {})
            if both := sorted(set(by_seed) & set(others)):
                own = [by_seed[seed]["saved_prefill_s"] for seed in both]
                theirs = [others[seed]["saved_prefill_s"] for seed in both]
                row[f"saved_over_{baseline}"] = figure(paired_ratios(own, theirs))
        rows.append(row)
    return rows


def _cell(name: str, digits: int, scale: float = 1.0) -> Callable[[Row], str]:
    """A cell: median of a figure, and below it its range."""

    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "-"
        low, middle, high = (f"{scale * value[k]:.{digits}f}" for k in ("min", "median", "max"))
        return f"{middle}\n[dim]{low} - {high}[/]"

    return cell


TABLE: Mapping[str, Callable[[Row], str]] = {
    "trace": number("trace"),
    "capacity": number("capacity", ".0%"),
    "policy": number("policy"),
    "saved, % of\nunlimited": _cell("saved_of_unlimited_ratio", 1, 100),
    "hit tokens,\n%": _cell("hit_token_ratio", 1, 100),
    "saved\n/ LRU": _cell("saved_over_lru", 3),
    "saved\n/ GDSF": _cell("saved_over_gdsf", 3),
}
