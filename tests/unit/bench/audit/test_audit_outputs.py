"""From the rows of a run, or of others, to data, analysis and report."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fake_audit import FakeExecutor, content

from kvrelay.bench.audit import outputs
from kvrelay.bench.audit.plan import load_plan
from kvrelay.bench.audit.run import run
from kvrelay.bench.errors import BenchError
from kvrelay.cluster.errors import ConfigError

pytest.importorskip("statsmodels")
pytest.importorskip("kvrelay.bench.audit.analysis.analyze")


class Faster(FakeExecutor):
    """Relay takes a third of the time."""

    def measure(self, unit: Any) -> Any:
        rng = random.Random(unit.key)
        return [
            {
                **row,
                **unit.stratum.factors(),
                "design": unit.design,
                "propensity": 1.0,
                "pair": unit.key,
                "ttft_s": (0.2 if row["arm"] == "relay" else 0.6) + rng.uniform(0, 0.02),
                "completed": row["arm"] == "relay",
                "relayed_tokens": 384 if row["arm"] == "relay" else 0,
                "bytes_moved": 10**7 if row["arm"] == "relay" else 0,
                "wire_s": 0.1 if row["arm"] == "relay" else None,
                "failed": False,
            }
            for row in super().measure(unit)
        ]


@pytest.fixture
def done(tmp_path: Path) -> Path:
    run(load_plan(content()), tmp_path / "out", {}, Faster(tmp_path / "log").opened)
    return tmp_path / "out"


def analysis(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "analysis.json").read_text())
    return found


def test_a_run_becomes_data_analysis_and_report(done: Path) -> None:
    outputs.analyze(outputs.source_of(done, None, None), {})
    found = analysis(done)
    assert found["meta"]["plan_sha256"] == load_plan(content()).sha256
    assert (found["meta"]["rows"], found["meta"]["plan_changed"]) == (24, False)
    assert found["meta"]["excluded"]["warm_up"] == 12  # the executor's discarded requests
    effects = [e for e in found["effects"] if e["arm"] == "relay" and e["stratum"]]
    assert effects and all(
        -0.45 < e["estimate"] < -0.35 for e in effects if e["outcome"] == "ttft_s"
    )
    assert {row["stratum"] for row in found["transfers"]} == {e["stratum"] for e in effects}
    assert outputs.report(done)
    assert (done / "report.html").exists() and (done / "report.md").exists()


def test_what_is_told_beside_the_rows_is_in_the_report(done: Path) -> None:
    offered = {"kind": "weights", "matching_tokens": 6144, "relayed_tokens": 0, "passed": True}
    (done / "heterogeneity.json").write_text(json.dumps({"plan_sha256": "", "rows": [offered]}))
    outputs.analyze(outputs.source_of(done, None, None), {})
    assert analysis(done)["heterogeneity"] == [offered]
    outputs.report(done)
    assert "0 of 6,144 that match" in (done / "report.md").read_text()


def test_the_same_rows_give_the_same_bytes(done: Path) -> None:
    seen = set()
    for _ in ("rows.jsonl", "data.parquet"):
        outputs.analyze(outputs.source_of(done, None, None), {})
        seen.add((done / "analysis.json").read_bytes())
        (done / "rows.jsonl").unlink(missing_ok=True)
    assert len(seen) == 1


class Alike(Faster):
    """Somebody has measured the cosine."""

    def measure(self, unit: Any) -> Any:
        rng = random.Random(unit.key)
        return [{**row, "cosine": rng.random()} for row in super().measure(unit)]


def test_the_report_says_why_there_is_no_cosine_and_no_effect_needs_one(tmp_path: Path) -> None:
    reason = "no model; pip install 'it'"
    found = []
    for executor in (Faster, Alike):
        out = tmp_path / executor.__name__
        meta = {"not_measured": {"cosine": reason}}
        run(load_plan(content()), out, meta, executor(tmp_path / "log").opened)
        outputs.analyze(outputs.source_of(out, None, None), {})
        outputs.report(out)
        found.append((analysis(out), (out / "report.md").read_text()))
    (without, said), (labelled, silent) = found
    assert without["not_measured"]["cosine"] == reason
    assert f"cosine | not measured: {reason} |" in said
    assert f"the cosine itself is not measured ({reason})." in said
    # What some rows have is measured, whatever a process of the run could not.
    assert "cosine" not in labelled["not_measured"] and reason not in silent
    assert [row["measure"] for row in labelled["similarity"]] == ["cosine"]
    for section in ("effects", "verdicts", "break_even", "quality"):
        assert labelled[section] == without[section]


def test_another_plan_is_shown(done: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(load_plan(content(question="Something else?")).canonical())
    outputs.analyze(outputs.source_of(done, other, None), {})
    assert analysis(done)["meta"]["plan_changed"] is True


def test_rows_of_others(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = ["user,when,group,latency"]
    for i in range(60):
        group = ("recompute", "relay")[rng.random() < 0.5]
        lines.append(f"u{i},{i},{group},{rng.uniform(0.5, 0.6) - 0.3 * (group == 'relay'):.4f}")
    (tmp_path / "theirs.csv").write_text("\n".join(lines) + "\n")
    names = {"session": "user", "time_s": "when", "arm": "group", "ttft_s": "latency"}
    source = outputs.source_of(tmp_path / "theirs.csv", None, tmp_path / "made")
    outputs.analyze(source, names)
    found = analysis(tmp_path / "made")
    assert found["meta"]["plan_sha256"] == ""
    assert any(e["arm"] == "relay" and e["estimate"] < -0.2 for e in found["effects"])
    with pytest.raises(BenchError, match="session"):
        outputs.analyze(source, {})


def test_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a file nor a folder with rows\.jsonl"):
        outputs.source_of(tmp_path, None, None)
