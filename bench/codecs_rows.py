"""The rows of `kvrelay bench codecs`, computed from its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvrelay.bench.report import Row, number
from kvrelay.bench.stats import figure
from kvrelay.relay.codecs.break_even import break_even_gbit_per_s

WATCHED = ("others_cores", "steal_cores")


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per codec that has a sample.

    `ratio` is over the blocks, raw by encoded bytes; rates are raw bytes by CPU time, and they
    and the break-even are over the passes. A pass's break-even is that of its own rates and of the
    ratio of all blocks together.
    """
    names = dict.fromkeys(sample["codec"] for sample in samples)
    return [_row(name, [s for s in samples if s["codec"] == name]) for name in names]


def _row(name: str, passes: Sequence[Row]) -> Row:
    block_bytes, encoded = passes[0]["block_bytes"], passes[0]["encoded_bytes"]
    raw_bytes = block_bytes * len(encoded)
    encode = [raw_bytes / each["encode_s"] / 1e9 for each in passes]
    decode = [raw_bytes / each["decode_s"] / 1e9 for each in passes]
    ratio = raw_bytes / sum(encoded)
    return {
        "codec": name,
        "blocks": len(encoded),
        "block_bytes": block_bytes,
        "ratio": figure([block_bytes / length for length in encoded]),
        "encode_gb_per_s": figure(encode),
        "decode_gb_per_s": figure(decode),
        "break_even_gbit_per_s": figure(
            [
                break_even_gbit_per_s(raw_bytes, ratio, encode_rate, decode_rate)
                for encode_rate, decode_rate in zip(encode, decode, strict=True)
            ]
        ),
        **{each: figure([s[each] for s in passes]) for each in WATCHED},
    }


def _cell(name: str, digits: int) -> Callable[[Row], str]:
    """A cell: median of a figure, and below it its range."""

    def cell(row: Row) -> str:
        value = row[name]
        low, high = value["min"], value["max"]
        return f"{value['median']:.{digits}f}\n[dim]{low:.{digits}f} - {high:.{digits}f}[/]"

    return cell


TABLE: Mapping[str, Callable[[Row], str]] = {
    "codec": number("codec"),
    "ratio": _cell("ratio", 3),
    "encode\nGB/s": _cell("encode_gb_per_s", 2),
    "decode\nGB/s": _cell("decode_gb_per_s", 2),
    "pays below\nGbit/s": _cell("break_even_gbit_per_s", 2),
}
