"""The README's tables, made of the JSON of runs, so that the two cannot differ.

python -m kvrelay.bench.readme README.md bench/results/hit.json bench/results/topology.json

The file's name says which table it is: `hit.json` goes between `<!-- bench:hit -->` and
`<!-- /bench:hit -->`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvrelay.bench.policies_rows import GRID_TABLE
from kvrelay.bench.report import Row, write_atomically


def render(name: str, report: Mapping[str, Any]) -> str:
    """The Markdown between the markers of the table `name`, a key of `TABLES`."""
    table, measured = TABLES[name]
    meta, rows = report["meta"], report["rows"]
    return "\n".join(["", *table(rows), "", f"{measured(rows)} {_caption(meta)}", ""])


def replace_table(text: str, name: str, table: str) -> str:
    """The text with what lies between the table's markers replaced.

    Raises:
        ValueError: the markers are not there, or not in order.
    """
    begin, end = _markers(name)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the text has no {begin} ... {end}")
    return before + begin + table + end + after


def between(text: str, name: str) -> str | None:
    """What lies between the table's markers; None if they are not there."""
    begin, end = _markers(name)
    _, found, rest = text.partition(begin)
    table, closed, _ = rest.partition(end)
    return table if found and closed else None


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"


def _hit(rows: Sequence[Row]) -> list[str]:
    """A line per length."""
    columns = ["tokens", "recompute", "relay", "local hit"]
    with_peer = any("peer_s" in row for row in rows)
    columns += ["vLLM ExampleConnector"] if with_peer else []
    columns += ["recompute / relay", "relay / local hit"]
    columns += ["relay / ExampleConnector"] if with_peer else []
    lines = []
    for row in rows:
        cells = [f"{row['tokens']:,}"]
        names = ["recompute_s", "relay_s", "local_hit_s", *(["peer_s"] if with_peer else [])]
        cells += [_seconds(row[name]) for name in names]
        cells += [f"{row['recompute_over_relay']:.1f}", f"{row['relay_over_local_hit']:.2f}"]
        cells += [f"{row['relay_over_peer']:.2f}"] if with_peer else []
        lines.append(cells)
    return _table(columns, lines)


def _topology(rows: Sequence[Row]) -> list[str]:
    """A line per link and length, with the way that was fastest there."""
    columns = ["A is", "tokens", "recompute", "relay", "by", "wire alone", "local hit"]
    columns += ["recompute / relay", "relay / (local hit + wire)"]
    fastest: dict[tuple[str, int], Row] = {}
    for row in rows:
        cell = (row["link"], row["tokens"])
        if cell not in fastest or row["relay_s"]["median"] < fastest[cell]["relay_s"]["median"]:
            fastest[cell] = row
    lines = []
    for (link, tokens), row in fastest.items():
        wire = _seconds(row["wire_s"]) if "wire_s" in row else "-"
        over_wire = row.get("relay_over_local_hit_and_wire")
        lines.append(
            [
                f"`{link}`",
                f"{tokens:,}",
                _seconds(row["recompute_s"]),
                _seconds(row["relay_s"]),
                row.get("way") or "-",
                wire,
                _seconds(row["local_hit_s"]),
                f"{row['recompute_over_relay']:.2f}",
                "-" if over_wire is None else f"{over_wire:.2f}",
            ]
        )
    return _table(columns, lines)


def _policies(rows: Sequence[Row]) -> list[str]:
    """A line per policy, the best first."""
    columns = ["policy", "mean TTFT", "over the better arm", "more than `cost`", "relayed"]
    grid = sorted(_grid(rows), key=lambda row: float(row["regret"]["estimate"]))
    lines = [
        [
            f"`{row['policy']}`",
            f"{row['mean_ttft_s']:.3f} s",
            _share(row["regret"]),
            _share(row["regret_over_cost"]) if "regret_over_cost" in row else "-",
            GRID_TABLE["relayed"](row),
        ]
        for row in grid
    ]
    return _table(columns, lines)


def _grid(rows: Sequence[Row]) -> list[Row]:
    """Those of a policy over all cells."""
    return [row for row in rows if "cells" in row]


def _share(interval: Mapping[str, float]) -> str:
    """In percent, with its interval if there is one."""
    text = f"{interval['estimate']:.1%}"
    return text + (f" [{interval['low']:.1%}, {interval['high']:.1%}]" if "low" in interval else "")


def _median_of(rows: Sequence[Row]) -> str:
    repeats = max(row["relay_s"]["n"] for row in rows)
    return f"Median TTFT of {repeats} at the HTTP endpoint; B's prompt is A's plus 32 other tokens."


def _mean_of(rows: Sequence[Row]) -> str:
    cells = _grid(rows)[0]
    return (
        f"{cells['pairs']} requests in {cells['cells']} cells of shared prefix, length and link, "
        "each measured recomputed and relayed."
    )


Table = Callable[[Sequence[Row]], list[str]]
# Each with what is said of how it was measured.
TABLES: Mapping[str, tuple[Table, Callable[[Sequence[Row]], str]]] = {
    "hit": (_hit, _median_of),
    "topology": (_topology, _median_of),
    "policies": (_policies, _mean_of),
}


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = "| ---: " * len(columns) + "|"
    return [f"| {' | '.join(columns)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]


def _seconds(figure: Mapping[str, float]) -> str:
    return f"{figure['median']:.3f} s"


def _caption(meta: Mapping[str, Any]) -> str:
    versions, dtype = meta["versions"], meta["engine_kwargs"]["dtype"]
    return (
        f"{meta['cores']} cores ({meta['cpu']}), vLLM {versions['vllm']}, Ray {versions['ray']}, "
        f"model {meta['model']} in {dtype}, commit `{str(meta['commit'])[:10]}`: "
        f"`{meta['command']}`"
    )


def main(readme: Path, reports: Sequence[Path]) -> None:
    """Put the tables of reports into a README.

    Raises:
        ValueError: a report's name is of no table, or the README has no place for it.
    """
    text = readme.read_text(encoding="utf-8")
    for report in reports:
        if report.stem not in TABLES:
            raise ValueError(f"{report}: no table has that name; known: {', '.join(TABLES)}")
        table = render(report.stem, json.loads(report.read_text(encoding="utf-8")))
        text = replace_table(text, report.stem, table)
    write_atomically(readme, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
