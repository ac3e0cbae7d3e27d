"""`kvrelay predict` on a real engine: what it says of prefill is what a request then takes."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from calls import prompt_ids
from openai import OpenAI

from kvrelay.bench.audit.analysis.break_even import law_row
from kvrelay.bench.audit.analysis.law import Law
from kvrelay.cluster import cli

LAW = Law(
    fixed_s=0.02,
    wire_factor=1.0,
    saved_factor=1.0,
    covariance=((1e-6, 0, 0), (0, 1e-4, 0), (0, 0, 1e-4)),
    misfit=0.02,
    num_cells=16,
    tokens=(256, 8192),
    wire_over_prefill=(0.001, 2.0),
    prefill_s_per_token=(1e-5, 1e-2),
    typical_prefill_s_per_token=1e-3,
)
TOKENS = 1024


def ttft_s(client: OpenAI, seed: int) -> float:
    start_s = time.perf_counter()
    options: Any = {"model": "plain", "prompt": prompt_ids(seed, TOKENS), "max_tokens": 1}
    with client.completions.create(**options, stream=True) as stream:
        next(iter(stream))
        return time.perf_counter() - start_s


def test_a_running_engine_is_placed(
    app: Any, client: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    analysis = tmp_path / "analysis.json"
    analysis.write_text(json.dumps({"break_even": {"laws": [law_row("idle", LAW, 1)]}}))
    point = EntryPoint("predict", "kvrelay.bench.audit.predict.command:predict", "kvrelay.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [point])
    words = [app.url, "--model", "plain", "--config", "demo", "--link-gbit", "1"]
    words += ["--seconds", "25", "--longest", "2048", "--analysis", str(analysis), "--json"]
    monkeypatch.setattr(sys, "argv", ["kvrelay", "predict", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    found = json.loads(capsys.readouterr().out)

    assert found["kv"]["bytes_per_token"] == 23_040
    assert found["engine"]["tokens"][1] >= 512
    (row,) = found["rows"]
    assert row["wire_s_per_token"] == pytest.approx(23_040 / 125e6)
    # CPUs take far longer for a token than 1 Gbit/s does for its KV.
    assert row["wire_over_prefill"] < 1
    assert row["pays"] in ("from", "always")
    expected_s = next(each for each in row["at"] if each["tokens"] == TOKENS)["recompute_s"]
    measured_s = median(ttft_s(client, 77_000 + n) for n in range(3))
    assert expected_s == pytest.approx(measured_s, rel=0.6)
