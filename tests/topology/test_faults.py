"""`kvrelay bench faults --smoke`, for real: nothing goes wrong, and nothing is left of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvrelay.bench.faults import FAULTS
from kvrelay.bench.faults_rows import ZEROS
from kvrelay.bench.testbed.record import load_records

pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.timeout(720)
def test_faults_make_nothing_wrong(tmp_path: Path) -> None:
    file, samples = tmp_path / "faults.json", tmp_path / "faults.jsonl"
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "bench", "faults", "--smoke"]
    command += ["--json", str(file), "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["meta"]["complete"]
    rows = report["rows"]
    assert {row["fault"] for row in rows} == set(FAULTS)
    assert sum(row["injections"] for row in rows) == 30
    assert sum(row["missed"] for row in rows) == len(samples.read_text().splitlines()) - 30
    for row in rows:
        assert {name: row[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0), row
        assert row["requests"] >= 4 * row["injections"] - row["requests_on_killed"]
        assert {"time_lost_s", "recovery_s"} <= row.keys()
    killed = {row["fault"] for row in rows if row["requests_on_killed"]}
    assert killed == {"node_lost", "engine_killed"}
    assert load_records() == []
