"""The README's tables are those of the committed runs, figure for figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench import hit_rows, topology_rows
from kvrelay.bench.readme import TABLES, between, main, render, replace_table

ROOT = Path(__file__).resolve().parents[3]
README, RESULTS = ROOT / "README.md", ROOT / "bench" / "results"


@pytest.mark.parametrize("name", TABLES)
def test_the_readme_shows_the_committed_run(name: str) -> None:
    shown, result = between(README.read_text(encoding="utf-8"), name), RESULTS / f"{name}.json"
    assert (shown is not None) == result.is_file(), f"README.md and {result.name} go together"
    if shown is None:
        pytest.skip(f"bench {name} has not been run for the README yet")
    report = json.loads(result.read_text(encoding="utf-8"))
    assert report["meta"]["complete"] is True
    assert shown == render(name, report), "run python -m kvrelay.bench.readme (see bench/README.md)"


def test_the_readme_says_what_came_of_the_committed_faults() -> None:
    report = json.loads((RESULTS / "faults.json").read_text(encoding="utf-8"))
    assert report["meta"]["complete"] is True

    def total(name: str) -> int:
        return sum(row[name] for row in report["rows"])

    said = (
        f"{total('injections')} such faults, of {total('requests'):,} requests to replicas that "
        f"live on {total('failures')} failed, {total('wrong_tokens')} had a wrong token, and "
        f"{total('bytes_leaked')} bytes had leaked."
    )
    assert said in " ".join(README.read_text(encoding="utf-8").split())
    assert total("wrong_reason") == total("leases_leaked") == 0


def test_a_table_replaces_what_lies_between_its_own_markers() -> None:
    other = "<!-- bench:topology -->kept<!-- /bench:topology -->\n"
    text = f"# Title\n{other}<!-- bench:hit -->\nold\n<!-- /bench:hit -->\nrest\n"
    new = replace_table(text, "hit", "\nnew\n")
    assert new == text.replace("old", "new")
    assert between(new, "hit") == "\nnew\n"
    assert between("nothing", "hit") is None
    with pytest.raises(ValueError, match="has no <!-- bench:hit -->"):
        replace_table("nothing", "hit", "new")


def test_a_report_of_no_table_changes_nothing(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("as it was", encoding="utf-8")
    with pytest.raises(ValueError, match="known: hit, topology, policies"):
        main(readme, [tmp_path / "other.json"])
    assert readme.read_text(encoding="utf-8") == "as it was"


@pytest.mark.parametrize("with_peer", [False, True])
def test_hit_has_a_line_per_length(with_peer: bool) -> None:
    names = ["recompute_s", "relay_s", "local_hit_s", *(["peer_s"] if with_peer else [])]
    samples = [
        {"tokens": tokens, "repeat": 0, "measure": name, "value": 0.5}
        for tokens in (512, 4096)
        for name in names
    ]
    lines = _lines("hit", hit_rows.summarize(samples))
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {9 if with_peer else 7}
    assert lines[-1].startswith("| 4,096 | 0.500 s |")


def test_topology_shows_the_fastest_way_of_each_link_and_length() -> None:
    def of(measure: str, value: float, **more: Any) -> dict[str, Any]:
        return {"tokens": 512, "repeat": 0, "measure": measure, "value": value, **more}

    samples = [of("recompute_s", 1.0), of("local_hit_s", 0.1)]
    for link, way, relay_s in (
        ("same-node", "", 0.125),
        ("1gbit", "nixl raw", 0.5),
        ("1gbit", "plasma raw", 0.75),
    ):
        of_way = {"link": link, **({"way": way} if way else {})}
        samples.append(of("relay_s", relay_s, **of_way))
        samples.append(of("bytes", 12_500_000, **of_way))
    samples.append(
        {"measure": "goodput_bits_per_s", "value": 1e9, "repeat": 0, "link": "1gbit"},
    )
    lines = _lines("topology", topology_rows.summarize(samples))
    assert lines[2:] == [
        "| `same-node` | 512 | 1.000 s | 0.125 s | - | - | 0.100 s | 8.00 | - |",
        "| `1gbit` | 512 | 1.000 s | 0.500 s | nixl raw | 0.100 s | 0.100 s | 2.00 | 2.50 |",
    ]


def test_policies_are_shown_the_best_first() -> None:
    def of(policy: str, regret: float, decided: dict[str, int], **more: Any) -> dict[str, Any]:
        found = {"estimate": regret, "low": regret - 0.01, "high": regret + 0.01}
        of_grid = {"cells": 2, "pairs": 16, "mean_ttft_s": 1.5, "decided": decided}
        return {"policy": policy, **of_grid, "regret": found, **more}

    rows = [
        of("never", 0.5, {"recompute": 16}, regret_over_cost={"estimate": 0.48}),
        of("owner_affinity", -0.1, {"owner_affinity": 16}),
        of("cost", 0.02, {"recompute": 4, "relay": 8, "relay_part": 4}),
        {"policy": "cost", "tokens": 512},
    ]
    lines = _lines("policies", rows)
    assert lines[2:] == [
        "| `owner_affinity` | 1.500 s | -10.0% [-11.0%, -9.0%] | - | - |",
        "| `cost` | 1.500 s | 2.0% [1.0%, 3.0%] | - | 75% |",
        "| `never` | 1.500 s | 50.0% [49.0%, 51.0%] | 48.0% | 0% |",
    ]


def _lines(name: str, rows: list[dict[str, Any]]) -> list[str]:
    meta = {
        "versions": {"vllm": "1", "ray": "2"},
        "cores": 2,
        "cpu": "x",
        "engine_kwargs": {"dtype": "float32"},
        "model": "demo",
    }
    meta |= {"commit": "abc", "command": f"kvrelay bench {name}"}
    table = render(name, {"meta": meta, "rows": rows})
    return [line for line in table.splitlines() if line.startswith("|")]
