"""The README's table, made of the JSON of a run, so that the two cannot differ.

python -m kvrelay.bench.readme README.md bench/results/hit.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvrelay.bench.report import write_atomically

BEGIN, END = "<!-- bench:hit -->", "<!-- /bench:hit -->"


def render(report: Mapping[str, Any]) -> str:
    """The Markdown between the markers, for a report of `kvrelay bench hit`."""
    rows, meta = report["rows"], report["meta"]
    columns = ["recompute", "relay", "local hit"]
    with_peer = any("peer_s" in row for row in rows)
    columns += ["vLLM ExampleConnector"] if with_peer else []
    columns += ["recompute / relay", "relay / local hit"]
    columns += ["relay / ExampleConnector"] if with_peer else []
    lines = ["| tokens | " + " | ".join(columns) + " |", "| ---: " * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [f"{row['tokens']:,}"]
        names = ["recompute_s", "relay_s", "local_hit_s", *(["peer_s"] if with_peer else [])]
        cells += [f"{row[name]['median']:.3f} s" for name in names]
        cells += [f"{row['recompute_over_relay']:.1f}", f"{row['relay_over_local_hit']:.2f}"]
        cells += [f"{row['relay_over_peer']:.2f}"] if with_peer else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(["", *lines, "", _caption(meta, rows), ""])


def replace_table(text: str, table: str) -> str:
    """The text with what lies between the markers replaced.

    Raises:
        ValueError: the markers are not there, or not in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the text has no {BEGIN} ... {END}")
    return before + begin + table + end + after


def between(text: str) -> str | None:
    """What lies between the markers; None if they are not there."""
    _, begin, rest = text.partition(BEGIN)
    table, end, _ = rest.partition(END)
    return table if begin and end else None


def _caption(meta: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    versions = meta["versions"]
    repeats = max(row["relay_s"]["n"] for row in rows)
    return (
        f"Median TTFT of {repeats} at the HTTP endpoint; B's prompt is A's plus 32 other tokens. "
        f"{meta['cores']} cores ({meta['cpu']}), vLLM {versions['vllm']}, Ray {versions['ray']}, "
        f"model {meta['model']}, commit `{str(meta['commit'])[:10]}`: `{meta['command']}`"
    )


def main(readme: Path, report: Path) -> None:
    """Put the table of a report into a README."""
    table = render(json.loads(report.read_text(encoding="utf-8")))
    write_atomically(readme, replace_table(readme.read_text(encoding="utf-8"), table))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
