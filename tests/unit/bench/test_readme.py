"""The README's table is that of the committed run, figure for figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelay.bench import hit_rows
from kvrelay.bench.readme import BEGIN, END, between, render, replace_table

ROOT = Path(__file__).resolve().parents[3]
README, RESULT = ROOT / "README.md", ROOT / "bench" / "results" / "hit.json"


def test_the_readme_shows_the_committed_run() -> None:
    for file in (README, RESULT):
        if not file.is_file():
            pytest.skip(f"{file.relative_to(ROOT)} is not there yet")
    shown = between(README.read_text(encoding="utf-8"))
    assert shown is not None, f"README.md has no {BEGIN} ... {END}"
    report = json.loads(RESULT.read_text(encoding="utf-8"))
    assert report["meta"]["complete"] is True
    assert shown == render(report), "run python -m kvrelay.bench.readme (see bench/README.md)"


def test_a_table_replaces_what_lies_between_the_markers() -> None:
    text = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"
    new = replace_table(text, "\nnew\n")
    assert new == f"# Title\n{BEGIN}\nnew\n{END}\nrest\n"
    assert between(new) == "\nnew\n"
    assert between("nothing") is None
    with pytest.raises(ValueError, match="has no"):
        replace_table("nothing", "new")


@pytest.mark.parametrize("with_peer", [False, True])
def test_the_table_has_a_line_per_length(with_peer: bool) -> None:
    names = ["recompute_s", "relay_s", "local_hit_s", *(["peer_s"] if with_peer else [])]
    samples = [
        {"tokens": tokens, "repeat": 0, "measure": name, "value": 0.5}
        for tokens in (512, 4096)
        for name in names
    ]
    meta = {"versions": {"vllm": "1", "ray": "2"}, "cores": 2, "cpu": "x", "model": "demo"}
    meta |= {"commit": "abc", "command": "kvrelay bench hit"}
    table = render({"meta": meta, "rows": hit_rows.summarize(samples)})
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {9 if with_peer else 7}
    assert lines[-1].startswith("| 4,096 | 0.500 s |")
