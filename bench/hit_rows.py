"""The rows of `kvrelay bench hit`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvrelay.bench.report import Row, number, seconds
from kvrelay.bench.stats import figure, paired_ratios, ratio_of_medians

TIMES = (
    "recompute_s",
    "relay_s",
    "local_hit_s",
    "local_hit_later_s",
    "peer_s",
    "miss_s",
    "plain_miss_s",
    "save_s",
    "peer_save_s",
    "copy_s",
    "load_s",
)
WATCHED = ("others_cores", "steal_cores")
RATIOS = {
    "recompute_over_relay": ("recompute_s", "relay_s"),
    "relay_over_local_hit": ("relay_s", "local_hit_s"),
    "relay_over_local_hit_later": ("relay_s", "local_hit_later_s"),
    "relay_over_peer": ("relay_s", "peer_s"),
    "miss_over_plain_miss": ("miss_s", "plain_miss_s"),
}
TIMES_TABLE: Mapping[str, Callable[[Row], str]] = {
    "tokens": number("tokens", ","),
    "recompute": seconds("recompute_s"),
    "relay": seconds("relay_s"),
    "local\nhit": seconds("local_hit_s"),
    "local hit,\nlater": seconds("local_hit_later_s"),
    "peer": seconds("peer_s"),
    "recompute\n/ relay": number("recompute_over_relay", ".1f"),
    "relay /\nlocal hit": number("relay_over_local_hit", ".2f"),
    "relay /\nlater": number("relay_over_local_hit_later", ".2f"),
    "relay\n/ peer": number("relay_over_peer", ".2f"),
}
COSTS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "tokens": number("tokens", ","),
    "miss": seconds("miss_s"),
    "plain\nmiss": seconds("plain_miss_s"),
    "A,\nsaving": seconds("save_s"),
    "peer,\nsaving": seconds("peer_save_s"),
    "copy": seconds("copy_s"),
    "bytes": number("bytes", ","),
    "path": number("load_path"),
}


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per length; a length that has no sample yet has no row.

    Every measure is a figure; ratios are of medians, and beside them, `..._paired`, those of
    the single repeats.
    """
    return [_row(tokens, samples) for tokens in sorted({s["tokens"] for s in samples})]


def _row(tokens: int, samples: Sequence[Row]) -> Row:
    values: dict[str, dict[int, list[Any]]] = {}
    cached: dict[str, int] = {}
    for sample in samples:
        if sample["tokens"] == tokens:
            repeats = values.setdefault(sample["measure"], {})
            repeats.setdefault(sample["repeat"], []).append(sample["value"])
            if "cached_tokens" in sample:
                cached[sample["measure"]] = sample["cached_tokens"]
    row: Row = {"tokens": tokens}
    for name in TIMES:
        if name in values:
            row[name] = figure(_flat(values[name]))
    if "bytes" in values:
        row["bytes"] = max(_flat(values["bytes"]))
    if "load_path" in values:
        row["load_path"] = "+".join(sorted(set(_flat(values["load_path"]))))
    row |= _ratios(values)
    for measure in ("relay_s", "local_hit_s", "local_hit_later_s", "peer_s", "recompute_s"):
        if measure in cached:
            row[f"{measure.removesuffix('_s')}_cached_tokens"] = cached[measure]
    timed = [s for s in samples if s["tokens"] == tokens and "others_cores" in s]
    if timed:
        row |= {name: figure([s[name] for s in timed]) for name in WATCHED}
    return row


def _ratios(values: Mapping[str, Mapping[int, list[Any]]]) -> Row:
    row: Row = {}
    for name, (above, below) in RATIOS.items():
        if above in values and below in values:
            tops, bottoms = values[above], values[below]
            row[name] = ratio_of_medians(_flat(tops), _flat(bottoms))
            if both := sorted(set(tops) & set(bottoms)):
                pairs = paired_ratios([tops[i][0] for i in both], [bottoms[i][0] for i in both])
                row[f"{name}_paired"] = figure(pairs)
    return row


def _flat(repeats: Mapping[int, list[Any]]) -> list[Any]:
    return [value for repeat in sorted(repeats) for value in repeats[repeat]]
