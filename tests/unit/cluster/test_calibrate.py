"""`kvrelay calibrate`: from what engines keep to words, JSON and a picture."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.cluster import cli
from kvrelay.cluster.calibration_picture import draw
from kvrelay.cluster.calibration_rows import age_text, make_row, off_text, step_bins
from kvrelay.policies import Costs, Work
from kvrelay.policies.prefill import PrefillCost
from kvrelay.relay.learnt import Memory, SeenLoad, SeenStep, read

NOW_S = 5000.0
TRUE = PrefillCost(0.03, 1e-3, 2e-7)
NIXL = ("nodes", "a" * 56, "nixl", "tcp/eth0", "raw")
SVG = "{http://www.w3.org/2000/svg}"


def keep(path: Path, steps: int = 40, loads: int = 20, agent: str = "reader") -> Path:
    """What an engine has kept at `NOW_S` that has seen so many; one a second, the last now."""
    rng = np.random.default_rng(1)
    costs, memory = Costs(), Memory(agent)
    for n in range(steps):
        work = Work.of(0 if n % 3 else 1000, int(rng.choice([40, 300, 900, 2000])))
        seconds = (
            TRUE.fixed_s + TRUE.per_token_s * work.tokens + TRUE.per_token_squared_s * work.squares
        ) * float(rng.lognormal(0, 0.05))
        predicted_s = costs.prefill(work).p50_s
        costs.observe_step(work, seconds)
        memory.add_step(SeenStep(NOW_S - steps + 1 + n, *work, seconds, predicted_s))
    for n in range(loads):
        way, rate = (NIXL, 1e8) if n % 2 else (("arena",), 4e9)
        num_bytes, ahead = 3_000_000 * (1 + n % 7), 0 if n % 4 else 10_000_000
        seconds = 0.01 + (num_bytes + ahead) / rate
        predicted_s = costs.load(way, num_bytes, ahead).p50_s
        costs.observe_load(way, num_bytes, ahead, seconds)
        memory.add_load(way, SeenLoad(NOW_S, num_bytes, ahead, seconds, predicted_s))
    path.write_text(json.dumps(costs.to_dict() | {"recent": memory.to_dict()}))
    return path


def row_of(path: Path) -> dict[str, Any]:
    return make_row(path, read(path), NOW_S)


def run(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["kvrelay", "calibrate", *words])
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    text = capsys.readouterr()
    return int(caught.value.code or 0), text.out, text.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    where = tmp_path / "kvrelay" / "calibration"
    where.mkdir(parents=True)
    return where


def test_rows_tell_curves_and_how_far_they_were_off(tmp_path: Path) -> None:
    row = row_of(keep(tmp_path / f"{'3f' * 8}-my-host.json"))
    assert (row["engine"], row["machine"], row["agent"]) == ("3f" * 8, "my-host", "reader")
    prefill = row["prefill"]
    assert prefill["per_token_s"] == pytest.approx(TRUE.per_token_s, rel=0.3)
    assert prefill["steps"] > 20
    assert len(prefill["observed"]) == 40
    late = prefill["observed"][20:]
    assert max(abs(point["off"]) for point in late) < 0.5
    assert all(point["fitted_s"] == pytest.approx(point["seconds"], rel=0.4) for point in late)
    assert prefill["error"] < 0.2 and prefill["age_s"] == 0
    assert prefill["factor"]["p5"] < prefill["factor"]["p50"] < prefill["factor"]["p95"]


def test_loads_are_told_by_way(tmp_path: Path) -> None:
    loads = {tuple(load["way"]): load for load in row_of(keep(tmp_path / "x.json"))["loads"]}
    assert len(loads) == 1 + len(NIXL)
    assert loads[NIXL]["gb_per_s"] == pytest.approx(0.1, rel=0.3)
    assert (loads[NIXL]["transport"], loads["arena",]["transport"]) == ("nixl", None)
    assert len(loads[NIXL]["observed"]) == 10
    beginning = loads[NIXL[:2]]
    assert beginning["observed"] == []
    assert beginning["off"] == loads[NIXL]["off"]


def test_steps_are_summed_up_by_their_tokens(tmp_path: Path) -> None:
    bins = step_bins(row_of(keep(tmp_path / "x.json"))["prefill"]["observed"])
    labels = ["1 to 127", "128 to 511", "512 to 1,023", "1,024 to 2,047"]
    assert [row["tokens"] for row in bins] == labels
    assert sum(row["steps"] for row in bins) == 40
    for row in bins:
        assert abs(row["off"]) <= abs(row["worst"])


def test_the_command_shows_every_engine(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for name, agent in (("11" * 8, "reader"), ("22" * 8, "[odd]")):
        keep(folder / f"{name}-host.json", agent=agent)
    os.utime(folder / f"{'11' * 8}-host.json", (1, 1))
    json_file, picture = tmp_path / "out.json", tmp_path / "out.svg"
    code, out, err = run(capsys, monkeypatch, "--json", str(json_file), "--picture", str(picture))
    assert code == 0, err
    assert out.index("22" * 8) < out.index("11" * 8)
    assert "agent [odd]" in out
    assert "ms + " in out and "µs per token" in out
    assert "512 to 1,023" in out
    assert "nodes aaaaaaaa nixl tcp/eth0 raw" in out
    engines = json.loads(json_file.read_text())["engines"]
    assert [row["engine"] for row in engines] == ["22" * 8, "11" * 8]
    titles = [node.text for node in ET.fromstring(picture.read_text()).iter(f"{SVG}text")]
    assert [title for title in titles if title and title.startswith("engine ")] == [
        f"engine {'22' * 8} on host, agent [odd]",
        f"engine {'11' * 8} on host, agent reader",
    ]
    code, out, _ = run(capsys, monkeypatch, "--engine", "11")
    assert code == 0 and "22" * 8 not in out


def test_a_damaged_file_is_left_out_and_named(folder: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    keep(folder / f"{'11' * 8}-host.json")
    (folder / f"{'22' * 8}-host.json").write_text("{")
    code, out, err = run(capsys, monkeypatch)
    assert code == 0 and "11" * 8 in out
    assert f"{'22' * 8}-host.json" in err.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "set `relay.policy: cost`"),
        (["--picture", "x.png"], "only .svg"),
        (["--dir", "/nowhere"], "set `relay.policy: cost`"),
    ],
)
def test_nothing_yet_says_what_to_do(words, said, folder: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(capsys, monkeypatch, *words)
    assert code == 2 and said in err and "Traceback" not in err


def test_an_unknown_engine_is_said(folder: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    keep(folder / f"{'11' * 8}-host.json")
    code, _, err = run(capsys, monkeypatch, "--engine", "ff")
    assert code == 2 and "leave out --engine" in err


def test_help_teaches(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "--help")
    assert code == 0 and "--picture curves.svg" in out


@pytest.mark.parametrize(("steps", "loads"), [(0, 0), (1, 0), (0, 1), (30, 30)])
def test_a_picture_of_however_much_is_known(tmp_path: Path, steps: int, loads: int) -> None:
    root = ET.fromstring(draw([row_of(keep(tmp_path / "x.json", steps, loads))]))
    dots = root.findall(f"{SVG}circle")
    assert len(dots) == 2 * (steps + loads)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width and 0 < float(dot.attrib["cy"]) < height


def test_a_curve_that_was_fitted_to_nothing_is_drawn(tmp_path: Path) -> None:
    path = keep(tmp_path / "x.json")
    state = json.loads(path.read_text())
    state["prefill"]["coefficients"] = [0.0, 0.0, 0.0]
    state["loads"][0]["coefficients"] = [0.0, 0.0, 0.0]
    path.write_text(json.dumps(state))
    row = row_of(path)
    assert row["loads"][0]["gb_per_s"] is None
    ET.fromstring(draw([row]))


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (None, "-"),
        (-1.0, "0 s ago"),
        (90.0, "90 s ago"),
        (600.0, "10 min ago"),
        (7200.0, "2 h ago"),
    ],
)
def test_ages_in_words(age_s: float | None, text: str) -> None:
    assert age_text(age_s) == text


def test_residuals_in_words() -> None:
    assert [off_text(off) for off in (None, 0.0, 0.254, -0.5)] == ["-", "+0%", "+25%", "-50%"]
