"""`kvrelay audit run`: what it hands on to the run, without engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_audit import FakeExecutor, content

from kvrelay.bench.audit import bed, commands, extras, material, outputs
from kvrelay.cluster.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs a plan with what `encoder_of` finds; the state, and the encoders that the bed got."""
    plan, out, given = tmp_path / "plan.yaml", tmp_path / "out", []

    def opened(plan: Any, encoder: Any, name: str, now_s: Callable[[], float]) -> Any:
        given.append(encoder)
        return FakeExecutor(tmp_path / "log").opened(name, now_s)

    monkeypatch.setattr(bed, "check", lambda: None)
    monkeypatch.setattr(bed, "opened", opened)
    for module, name in ((outputs, "require"), (extras, "make")):
        monkeypatch.setattr(module, name, lambda *_: None)
    for name in ("_analyze", "_report"):
        monkeypatch.setattr(commands, name, lambda *_: None)

    def run(encoder_of: Callable[[str | None], Any], **changes: Any) -> dict[str, Any]:
        monkeypatch.setattr(material, "encoder_of", encoder_of)
        plan.write_text(yaml.safe_dump(content(**changes)))
        commands.run(plan_file=plan, out=out)
        state: dict[str, Any] = json.loads((out / "state.json").read_text())
        return {"state": state, "given": given}

    return run


def test_the_bed_gets_the_encoder(run: Callable[..., dict[str, Any]]) -> None:
    asked: list[str | None] = []

    def encoder_of(name: str | None) -> tuple[str, None]:
        asked.append(name)
        return "encoder", None

    found = run(encoder_of, embedding_model="other/model")
    assert (asked, found["given"]) == (["other/model"], ["encoder"])
    assert found["state"]["complete"] and found["state"]["not_measured"] == {}


def test_without_one_the_reason_is_kept_and_told(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "pip install 'kvrelay[embed]'"
    found = run(lambda name: (None, reason))
    assert found["given"] == [None] and found["state"]["complete"]
    assert found["state"]["not_measured"] == {"cosine": reason}
    assert f"no cosine of prompts: {reason}" in capsys.readouterr().err


def test_a_named_model_that_is_missing_starts_nothing(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    def fail(name: str | None) -> Any:
        raise ConfigError("relay.embedding_model: not there")

    with pytest.raises(ConfigError, match="not there"):
        run(fail, embedding_model="other/model")
    assert not (tmp_path / "out").exists()
