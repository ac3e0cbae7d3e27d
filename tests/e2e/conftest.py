"""One real app for all end-to-end tests: `kvrelay serve` as a process of its own.

Agents `a` and `b` relay, `plain` has no connector. Ports and folders are this run's own.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from calls import OPERATOR, OPERATOR_TOKEN
from openai import OpenAI

from kvrelay.bench.settle import StoreWatch
from kvrelay.cluster import preflight
from kvrelay.cluster.session import Session

MAX_MODEL_LEN = 8192
CONFIG = {
    "models": {
        "demo": {
            "source": "demo",
            "engine_kwargs": {
                "max_model_len": MAX_MODEL_LEN,
                "enforce_eager": True,
                "kv_cache_memory_bytes": "512MiB",
            },
        }
    },
    "agents": [
        {
            "name": "a",
            "model": "demo",
            "num_cpus": 0.5,
            "system_prompt": "You are a pirate. Always answer like a pirate.",
            "sampling": {"temperature": 0, "max_tokens": 7},
        },
        {"name": "b", "model": "demo", "num_cpus": 0.5},
        {"name": "plain", "model": "demo", "num_cpus": 0.5, "relay": False},
    ],
    # What is held is relayed, whether it pays or not: the tests are of what a relay does.
    "relay": {"policy": "always", "capacity_bytes": "512MiB"},
    "operator": {"token_sha256": hashlib.sha256(OPERATOR_TOKEN.encode()).hexdigest()},
    # Small, so that the decision log fills files: they become Parquet inside the engines.
    "telemetry": {"decisions": {"max_bytes": "1MiB"}},
}
START_S = 420


@dataclass(frozen=True)
class App:
    """A running `kvrelay serve`."""

    process: subprocess.Popen[bytes]
    url: str
    runtime_dir: Path
    stderr: Path

    def store_address(self) -> str:
        """The name of the socket on which its KV store listens."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        (store,) = [each for each in tree if each.cmdline()[:1] == ["ray::KVStore"]]
        names = {socket.laddr for socket in store.net_connections("unix")}
        (address,) = {name.removeprefix("@") for name in names if name.startswith("@kvrelay-")}
        return address

    def sessions(self, monkeypatch: pytest.MonkeyPatch) -> list[Session]:
        """What it has on record."""
        from kvrelay.cluster.session import load_sessions

        with monkeypatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(self.runtime_dir))
            return load_sessions()


def start_serve(config: Path, runtime_dir: Path, stderr: Path, port: int) -> App:
    """Start `kvrelay serve` without waiting for it."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "serve", str(config)]
    with stderr.open("wb") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            cwd=config.parent,
        )
    return App(process, f"http://127.0.0.1:{port}/v1", runtime_dir, stderr)


def stop_serve(app: App) -> int:
    """Ctrl-C, and its exit status."""
    if app.process.poll() is None:
        app.process.send_signal(signal.SIGINT)
    return app.process.wait(120)


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("e2e")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    started = start_serve(config, folder / "run", folder / "stderr", preflight.free_port())
    deadline_s = time.monotonic() + START_S
    try:
        while "Ctrl-C ends it" not in started.stderr.read_text():
            if started.process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"kvrelay serve did not start:\n{started.stderr.read_text()}")
            time.sleep(0.5)
        yield started
    finally:
        stop_serve(started)


@pytest.fixture
def client(app: App) -> Iterator[OpenAI]:
    with OpenAI(base_url=app.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def store(app: App) -> Iterator[StoreWatch]:
    """What the app's store counts."""
    with closing(StoreWatch(app.store_address())) as store:
        yield store


@pytest.fixture
def operator(client: OpenAI) -> OpenAI:
    """The same client with the operator's token."""
    return client.with_options(default_headers=OPERATOR)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(600))
    # Some tests kill parts of the app, the life-cycle tests end it: they come last, in this order.
    last = ("test_faults.py", "test_lifecycle.py")
    others = [item for item in items if item not in ours]
    items[:] = others + sorted(
        ours, key=lambda item: last.index(item.path.name) if item.path.name in last else -1
    )
