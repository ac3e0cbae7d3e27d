"""The command line: help, exit statuses and one-line errors."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvrelay.agents.workflow import StepResult
from kvrelay.cluster import cli, lifecycle
from kvrelay.cluster.cli.demo import _read_input, _row
from kvrelay.cluster.cli.serve import usage
from kvrelay.cluster.config import TenantsConfig, load_config
from kvrelay.cluster.errors import ConfigError, LifecycleError


@pytest.fixture(autouse=True)
def _own_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def run(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["kvrelay", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    text = capsys.readouterr()
    return int(caught.value.code or 0), text.out, text.err


@pytest.mark.parametrize("command", ["serve", "status", "stop", "demo", "check", "model"])
def test_help_teaches(command: str, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, command, "--help")
    assert code == 0
    assert "Usage" in out


@pytest.mark.parametrize("command", ["serve", "check"])
def test_bad_configuration_is_bad_input(  # type: ignore[no-untyped-def]
    command: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models: {m: {source: demo}}\nagents: [{name: a, model: x}]\n")
    code, _, err = run(capsys, monkeypatch, command, str(path))
    assert code == 2
    assert "agents[0].model: unknown model 'x'; known: m" in err
    assert "Traceback" not in err


def test_missing_argument_is_bad_input(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    assert run(capsys, monkeypatch, "serve")[0] == 2


def test_failures_are_one_line(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def fail() -> int:
        raise LifecycleError("it [did] not end; do this")

    monkeypatch.setattr("kvrelay.cluster.cli.serve.stop_all", fail)
    code, _, err = run(capsys, monkeypatch, "stop")
    assert code == 1
    assert err.strip().splitlines()[-1] == "error: it [did] not end; do this"


def test_a_signal_gives_the_shells_status(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def interrupted() -> int:
        raise lifecycle.Stopped("SIGINT")

    monkeypatch.setattr("kvrelay.cluster.cli.serve.stop_all", interrupted)
    assert run(capsys, monkeypatch, "stop")[0] == 130


def test_status_without_anything(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "status", "--json")
    assert code == 0
    assert json.loads(out) == {"clusters": []}


def test_it_says_which_version_it_is(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "--version")
    assert (code, out) == (0, f"kvrelay {version('kvrelay')}\n")


def test_help_loads_neither_ray_nor_vllm() -> None:
    script = (
        "import sys; from kvrelay.cluster.cli import make_app; make_app();"
        "print([m for m in ('ray', 'vllm', 'torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_demo_input(tmp_path: Path) -> None:
    assert "class StoreCore" in _read_input(None)[0]
    with pytest.raises(ConfigError, match="--file"):
        _read_input(tmp_path / "none.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        _read_input(empty)


def test_demo_row() -> None:
    def result(ttft_s: float) -> StepResult:
        return StepResult("a", 10, 1, 6, 3, "relayed", ttft_s, (1,), (2,), "x", {})

    row = _row(result(0.1), result(1.0))
    assert row["ratio"] == 10
    assert row["relayed_tokens"] == 6
    assert row["relay_ttft_s"] == {"min": 0.1, "median": 0.1, "max": 0.1, "n": 1}


def test_an_open_door_is_said_before_anything_starts(  # type: ignore[no-untyped-def]
    tmp_path: Path, capsys, monkeypatch
) -> None:
    path = tmp_path / "open.yaml"
    content = "models: {m: {source: demo}}\nagents: [{name: a, model: m}]\n"
    path.write_text(content + "operator: {open: true}\n")

    def fail(*_: object) -> None:
        raise LifecycleError("nothing was to start")

    monkeypatch.setattr("kvrelay.cluster.cli.serve.running", fail)
    code, _, err = run(capsys, monkeypatch, "serve", str(path))
    assert code == 1
    assert "warning: operator.open" in " ".join(err.split())


def test_check_shows_no_secret(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    without_vllm = SimpleNamespace(check_engine_kwargs=lambda _: None)
    monkeypatch.setitem(sys.modules, "kvrelay.cluster.engine_kwargs", without_vllm)
    path = Path(cli.__file__).parents[1] / "configs" / "tenants.yaml"
    tenants = load_config(path).tenants
    assert tenants is not None
    code, out, err = run(capsys, monkeypatch, "check", str(path))
    assert code == 0, err
    assert not any(key.api_key_sha256[:8] in out + err for key in tenants.api_keys)


def test_examples_say_where_the_key_goes() -> None:
    url = "http://127.0.0.1:1/v1"
    open_to_all = usage(url, "a", None)
    assert 'OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none")' in open_to_all
    assert "Authorization" not in open_to_all
    keys = [{"name": "t", "api_key_sha256": "0" * 64}]
    by_key = usage(url, "a", TenantsConfig.model_validate({"api_keys": keys}))
    assert "export OPENAI_API_KEY=" in by_key
    assert '-H "Authorization: Bearer $OPENAI_API_KEY"' in by_key
    assert 'OpenAI(base_url="http://127.0.0.1:1/v1")' in by_key
    by_header = usage(url, "a", TenantsConfig.model_validate({"trusted_header": "X-Tenant"}))
    assert "-H 'X-Tenant: TENANT'" in by_header
    assert 'default_headers={"X-Tenant": "TENANT"}' in by_header
    for text in (open_to_all, by_key, by_header):
        python = text[text.index("from openai") :]
        compile(python, "example", "exec")


def test_demo_wants_a_key_before_anything_starts(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = Path(cli.__file__).parents[1] / "configs" / "tenants.yaml"
    code, _, err = run(capsys, monkeypatch, "demo", "--config", str(path))
    assert code == 2
    assert "OPENAI_API_KEY is not set" in " ".join(err.split())
