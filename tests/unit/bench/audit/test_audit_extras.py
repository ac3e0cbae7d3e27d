"""What an audit tells beside its rows is made once for a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_audit import content

from kvrelay.bench.audit import extras
from kvrelay.bench.audit.material import Prompts
from kvrelay.bench.audit.plan import load_plan
from kvrelay.cluster.errors import ConfigError


class Numbers:
    """B goes on where A ends; no two pairs begin alike."""

    def pair(self, stratum: Any, text: int) -> Prompts:
        second = (text % 50_021, *range(511))
        return Prompts(second[:384], second, 384)


def test_our_key_finds_what_is_the_same_and_nothing_else() -> None:
    pytest.importorskip("kvrelay.bench.audit.controls.keys")
    rows = extras.replayed_keys(load_plan(content()), Numbers())  # type: ignore[arg-type]
    assert {row["n"] for row in rows} == {24}
    whole, ours = rows[0], rows[-1]
    assert "whole prompt" in whole["key"] and "exact prefix" in ours["key"]
    assert (ours["hit_rate"], ours["wrong_reuse_rate"], whole["hit_rate"]) == (0.5, 0, 0)


def test_files_are_made_once_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def maker(plan: Any) -> list[dict[str, Any]]:
        made.append(plan.sha256)
        return [{"key": "k", "n": len(made)}]

    monkeypatch.setattr(extras, "_keys", maker)
    monkeypatch.setattr(extras, "_controls", maker)
    plan = load_plan(content())
    for _ in range(2):
        extras.make(plan, tmp_path)
    assert made == [plan.sha256]
    assert extras.sections(tmp_path) == {"keys": [{"key": "k", "n": 1}]}
    more = load_plan(content(controls={"examples": 4}))
    extras.make(more, tmp_path)
    assert made == [plan.sha256, more.sha256, more.sha256]
    assert set(extras.sections(tmp_path)) == {"keys", "controls"}


def test_engines_that_differ_have_a_place_for_their_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def maker(plan: Any, folder: Path) -> list[dict[str, Any]]:
        assert folder == tmp_path
        return [{"kind": str(kind)} for kind in plan.heterogeneity.kinds]

    monkeypatch.setattr(extras, "_keys", lambda plan: [])
    monkeypatch.setattr(extras, "_heterogeneity", maker)
    extras.make(load_plan(content(heterogeneity={"kinds": ["same", "dtype"]})), tmp_path)
    found = extras.sections(tmp_path)
    assert found["heterogeneity"] == [{"kind": "same"}, {"kind": "dtype"}]


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(ConfigError, match=r"keys\.json: not JSON"):
        extras.sections(tmp_path)
    (tmp_path / "keys.json").write_text(json.dumps([]))
    with pytest.raises(ConfigError, match="expected an object"):
        extras.sections(tmp_path)
