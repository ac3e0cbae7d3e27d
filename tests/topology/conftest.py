"""Two nodes on this machine: needs root, `ip` and `tc`; skipped with the reason otherwise."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.network import PREFIX

# Makes a test bed, says what it is, and holds it until it is told to end.
OWNER = """
import json, sys, time
from kvrelay.bench.testbed.bed import two_nodes
from kvrelay.bench.testbed.link import parse_link
from kvrelay.cluster.lifecycle import signals_as_exit

link = parse_link("100mbit-1ms" if sys.argv[1] == "long" else "unshaped")
with signals_as_exit(), two_nodes(link) as bed:
    if sys.argv[1] == "ray":
        bed.start_ray(num_cpus=1)
    nodes = bed.network.nodes
    print(json.dumps({"id": bed.id, "namespaces": [n.namespace for n in nodes]}), flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("on purpose")
    time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Records of this module's own."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield folder


@pytest.fixture
def machine() -> Iterator[None]:
    """What a test bed could leave behind must be as before when the test ends."""
    yield from _as_before()


@pytest.fixture(scope="module")
def machine_of_module() -> Iterator[None]:
    """The same for the tests of a module together."""
    yield from _as_before()


def _as_before() -> Iterator[None]:
    before = _left()
    yield
    after = _left()
    assert {kind: after[kind] - before[kind] for kind in after} == {kind: set() for kind in after}


def _left() -> dict[str, set[str]]:
    names = {path.name for path in Path("/tmp").glob("kvrelay-*")}
    return {
        "namespaces": {name for name in system.namespaces() if name.startswith(PREFIX)},
        "interfaces": {path.name for path in Path("/sys/class/net").iterdir()},
        "temporary folders": names,
        "shared memory": {path.name for path in Path("/dev/shm").iterdir()},
    }


class Owner:
    """A process that owns a test bed."""

    def __init__(self, what: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        told: dict[str, Any] = json.loads(line)
        self.id: str = told["id"]
        self.namespaces = set(told["namespaces"])

    def end(self, which: signal.Signals) -> int:
        self.process.send_signal(which)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def owner() -> Iterator[Any]:
    """Starts owners; a test that fails leaves none."""
    started: list[Owner] = []

    def start(what: str) -> Owner:
        started.append(Owner(what))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGTERM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = system.unavailable()
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
