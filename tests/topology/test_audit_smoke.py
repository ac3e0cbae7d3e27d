"""The whole audit on real engines: the smoke plan within its time, and all that it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvrelay.bench.audit.plan import load_plan
from kvrelay.bench.audit.report.described import MEASURES
from kvrelay.bench.audit.units import planned
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.network import PREFIX

LIMIT_S = 360
PLAN = Path(__file__).parents[2] / "bench" / "plans" / "smoke.yaml"
SAME_NODE, SLOW = "same-node/256/idle/high/en", "100mbit/256/idle/high/en"


@dataclass(frozen=True)
class Audit:
    """What the command has left."""

    out: Path
    seconds: float
    stderr: str
    namespaces: set[str]  # those there after it that were not before it

    def json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / name).read_text())
        return found

    def rows(self) -> list[dict[str, Any]]:
        return list(pq.read_table(self.out / "data.parquet").to_pylist())


def audit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "audit", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=590)


def namespaces() -> set[str]:
    return {name for name in system.namespaces() if name.startswith(PREFIX)}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audit]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("RAY_ADDRESS", raising=False)
        before, start_s = namespaces(), time.monotonic()
        ended = audit("run", "--plan", str(PLAN), "--out", "out", cwd=folder)
        seconds = time.monotonic() - start_s
    assert ended.returncode == 0, ended.stderr
    yield Audit(folder / "out", seconds, ended.stderr, namespaces() - before)


def test_it_keeps_its_time_and_leaves_no_network(done: Audit) -> None:
    assert done.seconds <= LIMIT_S
    assert not done.namespaces


def test_the_data(done: Audit) -> None:
    plan = load_plan(PLAN)
    rows, state = done.rows(), done.json("state.json")
    requests = [f"{u.key}/{place}.0" for u in planned(plan) for place, _ in enumerate(u.blocks)]
    assert sorted(row["request"] for row in rows) == sorted(requests)
    assert state["complete"] and state["plan_sha256"] == plan.sha256
    assert state["discarded_requests"] >= 2 * plan.warm_up_requests
    assert not any(row["failed"] for row in rows)
    relays = [row for row in rows if row["arm"] == "relay"]
    assert all(row["completed"] and row["bytes_moved"] > 0 for row in relays)
    assert all((row["wire_bytes"] or 0) > 0 for row in relays if row["link"] == "100mbit")
    assert not any(row["completed"] for row in rows if row["arm"] == "recompute")
    assert all(row["cached_tokens"] > 0 for row in rows if row["arm"] == "shared_pool")


def test_the_analysis(done: Audit) -> None:
    analysis = done.json("analysis.json")
    assert analysis["meta"]["plan_sha256"] == load_plan(PLAN).sha256
    assert analysis["meta"]["plan_changed"] is False
    effects = {
        each["stratum"]: each
        for each in analysis["effects"]
        if (each["design"], each["arm"], each["outcome"]) == ("paired", "relay", "ttft_s")
        and each["stratum"]
    }
    assert set(effects) == {SAME_NODE, SLOW}
    # On one node a relay is several times as fast; over 100 Mbit/s the wire takes longer.
    assert effects[SAME_NODE]["high"] < 0
    assert effects[SAME_NODE]["estimate"] < effects[SLOW]["estimate"]
    measures = {row["measure"] for row in analysis["similarity"]}
    assert measures | set(analysis["not_measured"]) == set(MEASURES)
    assert {"jaccard", "shared_prefix_fraction"} <= measures


def test_the_same_rows_give_the_same_bytes(done: Audit, tmp_path: Path) -> None:
    first = (done.out / "analysis.json").read_bytes()
    assert audit("analyze", str(done.out), cwd=tmp_path).returncode == 0
    assert (done.out / "analysis.json").read_bytes() == first


class Reader(HTMLParser):
    """Collects the text of a page and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "src" or (name == "href" and tag == "link"):
                self.fetched += [value or ""] if not (value or "").startswith("data:") else []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_report(done: Audit) -> None:
    page = Reader()
    page.feed((done.out / "report.html").read_text())
    assert page.fetched == []
    text = " ".join(page.text)
    summary = (done.out / "report.md").read_text()
    sha256 = load_plan(PLAN).sha256
    for found in (text, summary):
        assert sha256[:8] in found
        assert "100" in found and "relay" in found
