"""Starting, looking at and ending `kvrelay serve`, for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvrelay.cluster.model import ensure_model
from kvrelay.cluster.processes import marked_processes
from kvrelay.cluster.session import Session

PLAIN = """
models: {demo: {source: {MODEL}, engine_kwargs: {max_model_len: 1024}}}
agents: [{name: only, model: demo, num_cpus: 0.5, engine_kwargs: {ENGINE}}]
relay: {enabled: false}
"""


def plain(engine_kwargs: str) -> str:
    """One agent without relay, on the demo model where it already is."""
    config = PLAIN.replace("{MODEL}", str(ensure_model("demo")))
    return config.replace("{ENGINE}", engine_kwargs)


def kvrelay(runtime_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "kvrelay.cluster.cli", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def wait_for(condition: Any, timeout_s: float = 60) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.1)
    return value


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Starts another `kvrelay serve`, whose folder is `tmp_path/run`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(config: str) -> subprocess.Popen[bytes]:
        path = tmp_path / "config.yaml"
        path.write_text(config)
        runtime_dir, cache = str(tmp_path / "run"), str(tmp_path / "cache")
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime_dir, "XDG_CACHE_HOME": cache}
        environment.pop("RAY_ADDRESS", None)
        command = [sys.executable, "-m", "kvrelay.cluster.cli", "serve", str(path)]
        with (tmp_path / "stderr").open("wb") as sink:
            child = subprocess.Popen(
                [*command, "--port", str(_free_port())],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=sink,
            )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
    kvrelay(tmp_path / "run", "stop")


def _free_port() -> int:
    from kvrelay.cluster.preflight import free_port

    return free_port()


def sessions(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    from kvrelay.cluster.session import load_sessions

    with monkeypatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))
        return load_sessions()


def assert_gone(session: Session) -> None:
    assert not marked_processes(session.id)
    assert not Path(session.temp_dir).exists()
    assert not [name for name in session.shared_memory if (Path("/dev/shm") / name).exists()]


def test_status(app: Any) -> None:
    done = kvrelay(app.runtime_dir, "status", "--json")
    (row,) = json.loads(done.stdout)["clusters"]
    assert row["state"] == "serving"
    assert row["url"] == app.url
    assert row["agents"] == ["a", "b", "plain"]


def test_a_port_in_use_is_one_line(app: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(plain("{}"))
    port = app.url.rsplit(":", 1)[1].removesuffix("/v1")
    done = kvrelay(tmp_path / "run", "serve", str(config), "--port", port)
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_nothing(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (session,) = app.sessions(monkeypatch)
    engines = marked_processes(session.id)
    assert len(engines) > 9  # 3 x (replica, engine core, worker), and Ray
    assert session.shared_memory
    app.process.send_signal(signal.SIGINT)
    assert app.process.wait(120) == 0
    assert_gone(session)
    assert not [p for p in engines if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert app.sessions(monkeypatch) == []


# The app is gone; what follows needs its memory.


def test_ctrl_c_while_engines_load(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = serve(plain("{}"))
    stderr = tmp_path / "stderr"
    wait_for(lambda: "loading engines" in stderr.read_text() or child.poll() is not None, 180)
    (session,) = sessions(tmp_path / "run", monkeypatch)
    wait_for(lambda: len(marked_processes(session.id)) > 3)
    child.send_signal(signal.SIGINT)
    assert child.wait(120) == 128 + signal.SIGINT
    assert_gone(session)
    assert sessions(tmp_path / "run", monkeypatch) == []


def test_an_engine_that_cannot_start_is_one_line(serve: Any, tmp_path: Path) -> None:
    child = serve(plain("{max_model_len: 100000}"))
    assert child.wait(300) == 1
    text = (tmp_path / "stderr").read_text()
    assert "agent:only did not start" in text
    assert "max_model_len" in text
    assert "logs: " in text
    assert "Traceback" not in text
