"""The rows of `kvrelay bench topology`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvrelay.bench.report import Row, number, seconds
from kvrelay.bench.stats import figure

# What does not depend on the link is measured once a repeat and stands in every link's row.
SHARED = ("recompute_s", "local_hit_s")
OF_THE_LINK = ("relay_s", "transfer_s", "copy_s", "bridge_cores")
BYTES = ("bytes", "wire_bytes", "interface_bytes")
WORDS = ("transport", "path", "codec")
WATCHED = ("others_cores", "steal_cores")
RATIOS = {
    "recompute_over_relay": ("recompute_s", "relay_s"),
    "relay_over_local_hit": ("relay_s", "local_hit_s"),
    "relay_over_local_hit_and_wire": ("relay_s", "local_hit_and_wire_s"),
}
TIMES_TABLE: Mapping[str, Callable[[Row], str]] = {
    "link": number("link"),
    "way": number("way"),
    "tokens": number("tokens", ","),
    "recompute": seconds("recompute_s"),
    "relay": seconds("relay_s"),
    "local\nhit": seconds("local_hit_s"),
    "recompute\n/ relay": number("recompute_over_relay", ".2f"),
    "relay /\nlocal hit": number("relay_over_local_hit", ".2f"),
    "relay / (local\nhit + wire)": number("relay_over_local_hit_and_wire", ".2f"),
}
TRANSFERS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "link": number("link"),
    "way": number("way"),
    "tokens": number("tokens", ","),
    "KV\nMB": lambda row: _megabytes(row.get("bytes")),
    "moved\nMB": lambda row: _megabytes(row.get("wire_bytes")),
    "transfer": seconds("transfer_s"),
    "wire": seconds("wire_s"),
    "path": number("path"),
}


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per link, way and length that has a relay.

    Every measure is a figure; ratios are of medians. `wire_s` pairs each relay with the goodput
    of its repeat.
    """
    relays = [sample for sample in samples if sample["measure"] == "relay_s"]
    links = list(dict.fromkeys(sample["link"] for sample in relays))
    goodput = {link: _goodput(link, samples) for link in links}
    order = {link: _slowness(goodput[link]) for link in links}
    keys = {(order[s["link"]], s["link"], s["tokens"], s.get("way", "")) for s in relays}
    return [
        _row((link, way), tokens, samples, goodput[link]) for _, link, tokens, way in sorted(keys)
    ]


def _row(
    place: tuple[str, str],
    tokens: int,
    samples: Sequence[Row],
    goodput: Mapping[int, Sequence[float]],
) -> Row:
    link, way = place
    of_tokens = [sample for sample in samples if sample.get("tokens") == tokens]
    of_link = [s for s in of_tokens if (s.get("link"), s.get("way", "")) == place]
    of_wire = [s for s in samples if s.get("link") == link]
    row: Row = {"link": link, "tokens": tokens}
    if way:
        row["way"] = way
    for names, pool in ((SHARED, of_tokens), (OF_THE_LINK, of_link)):
        for name in names:
            if values := _values(pool, name):
                row[name] = figure(values)
    for name in BYTES:
        if counts := _values(of_link, name):
            row[name] = max(counts)
    for name in WORDS:
        if words := _values(of_link, name):
            row[name] = "+".join(sorted(set(words)))
    if goodput:
        everything = [value for values in goodput.values() for value in values]
        row["goodput_gbit_per_s"] = figure([value / 1e9 for value in everything])
        if round_trips := _values(of_wire, "rtt_s"):
            row["rtt_s"] = figure(round_trips)
        if wire := _wire_s(of_link, goodput):
            row["wire_s"] = figure(wire)
    row |= _ratios(row)
    watched = {name: [sample[name] for sample in of_link if name in sample] for name in WATCHED}
    row |= {name: figure(values) for name, values in watched.items() if values}
    return row


def _ratios(row: Row) -> Row:
    """Ratios of medians; `local_hit_and_wire_s` is what a relay cannot be faster than."""
    found: Row = {}
    if "wire_s" in row and "local_hit_s" in row:
        found["local_hit_and_wire_s"] = _median(row["local_hit_s"]) + _median(row["wire_s"])
    for name, (top, bottom) in RATIOS.items():
        known = row | found
        if top in known and bottom in known:
            found[name] = round(_median(known[top]) / _median(known[bottom]), 4)
    return found


def _median(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)


def _goodput(link: str, samples: Sequence[Row]) -> dict[int, list[float]]:
    """Bits per second of the plain stream over a link, by repeat."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        if sample["measure"] == "goodput_bits_per_s" and sample["link"] == link:
            found.setdefault(sample["repeat"], []).append(sample["value"])
    return found


def _wire_s(samples: Sequence[Row], goodput: Mapping[int, Sequence[float]]) -> list[float]:
    return [
        8 * sample["value"] / figure(goodput[sample["repeat"]])["median"]
        for sample in samples
        if sample["measure"] == "bytes" and sample["repeat"] in goodput
    ]


def _slowness(goodput: Mapping[int, Sequence[float]]) -> float:
    """Orders links: the same node, then from the fastest wire to the slowest."""
    values = [value for each in goodput.values() for value in each]
    return -max(values) if values else float("-inf")


def _values(samples: Sequence[Row], measure: str) -> list[Any]:
    return [sample["value"] for sample in samples if sample["measure"] == measure]


def _megabytes(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e6:.1f}"
