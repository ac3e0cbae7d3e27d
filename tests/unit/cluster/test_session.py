"""Session files, and ending what belongs to a session and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kvrelay.cluster import startup
from kvrelay.cluster.lifecycle import Stopped, signals_as_exit, stop, stop_all
from kvrelay.cluster.processes import MARKER, end_processes, living, marked_processes
from kvrelay.cluster.session import Session, load_sessions, sessions_dir

SLEEPER = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)",
]

# Its child does not end when asked, and has no environment.
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time;"
    "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)';"
    "subprocess.Popen([sys.executable, '-c', code], env={});"
    "time.sleep(0.5); print('up', flush=True); time.sleep(60)",
]


@pytest.fixture(autouse=True)
def _own_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def spawn() -> Iterator[object]:
    children = []

    def start(command: list[str], mark: str | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({MARKER: mark} if mark else {})}
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # it has started
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def session(pid: int | None = None, **changes: object) -> Session:
    process = psutil.Process(pid or os.getpid())
    values = {
        "id": os.urandom(8).hex(),
        "pid": process.pid,
        "pid_created_s": process.create_time(),
        "url": "http://127.0.0.1:1/v1",
        "agents": ("a", "b"),
        **changes,
    }
    return Session(**values)  # type: ignore[arg-type]


def test_saved_loaded_removed() -> None:
    one = session(shared_memory=("x",))
    one.save()
    assert load_sessions() == [one]
    assert (sessions_dir() / f"{one.id}.json").stat().st_mode & 0o077 == 0
    one.remove()
    one.remove()
    assert load_sessions() == []


def test_unreadable_files_are_skipped() -> None:
    sessions_dir().mkdir(parents=True)
    (sessions_dir() / "old.json").write_text('{"id": "x"}')
    (sessions_dir() / "broken.json").write_text("{")
    assert load_sessions() == []


def test_owner_is_not_another_process_with_the_same_pid() -> None:
    assert session().owner() is not None
    assert session(pid_created_s=1.0).owner() is None


def test_only_marked_processes_are_ended(spawn) -> None:  # type: ignore[no-untyped-def]
    ours, stubborn = spawn(SLEEPER, "mark-1"), spawn(STUBBORN, "mark-1")
    other, unmarked = spawn(SLEEPER, "mark-2"), spawn(SLEEPER)
    assert {p.pid for p in marked_processes("mark-1")} == {ours.pid, stubborn.pid}
    assert end_processes("mark-1", grace_s=0.5) == 2
    ours.wait(5)  # raises if it still runs
    stubborn.wait(5)  # raises if it still runs
    assert other.poll() is None
    assert unmarked.poll() is None


def test_children_end_that_have_lost_their_mark(spawn) -> None:  # type: ignore[no-untyped-def]
    parent = spawn(PARENT, "mark-3")
    (child,) = psutil.Process(parent.pid).children()
    assert [p.pid for p in marked_processes("mark-3")] == [parent.pid]
    assert end_processes("mark-3", grace_s=0.5) == 2
    parent.wait(5)  # raises if it still runs
    assert living(child.pid, child.create_time()) is None


def test_stop_ends_owner_and_leftovers(spawn, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    owner = spawn(SLEEPER)
    folder = tmp_path / "ray"
    folder.mkdir()
    one = session(owner.pid, temp_dir=str(folder))
    one.save()
    engine = spawn(SLEEPER, one.id)
    assert stop_all() == 1
    owner.wait(5)  # raises if it still runs
    engine.wait(5)  # raises if it still runs
    assert not folder.exists()
    assert load_sessions() == []
    assert stop_all() == 0


def test_stop_after_the_owner_was_killed(spawn) -> None:  # type: ignore[no-untyped-def]
    owner = spawn(SLEEPER)
    one = session(owner.pid)
    one.save()
    engine = spawn(SLEEPER, one.id)
    owner.kill()
    owner.wait()
    stop(one)
    stop(one)
    engine.wait(5)  # raises if it still runs


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_the_stack_once(which: signal.Signals) -> None:
    before = signal.getsignal(which)
    cleaned = False
    with pytest.raises(Stopped, match=which.name), signals_as_exit():
        try:
            os.kill(os.getpid(), which)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), which)  # an impatient second one
            cleaned = True
    assert cleaned
    assert signal.getsignal(which) == before


def test_a_replica_that_no_node_has_room_for_is_named() -> None:
    # As Ray 2.60 says it.
    message = (
        "Deployment 'agent:a' in application 'kvrelay' has 1 replicas that have taken more than "
        "30s to be scheduled. This may be due to waiting for the cluster to auto-scale or for a "
        "runtime environment to be installed. Resources required for each replica: "
        '[{"CPU": 4.0}], total resources available: {"CPU": 1.5}. '
        "Use `ray status` for more details."
    )
    deployments = {
        "agent:a": SimpleNamespace(message=message),
        "agent:b": SimpleNamespace(message=""),
    }
    status = SimpleNamespace(deployments=deployments)
    assert startup._without_room(status) == 'agent:a ([{"CPU": 4.0}])'
    assert startup._without_room(SimpleNamespace(deployments={})) == ""


def test_last_cause_is_the_exception_of_a_traceback() -> None:
    message = """The deployment failed to start 1 times in a row. Error:
    Traceback (most recent call last):
      File "x.py", line 1
    ValueError: max_model_len is too large
    """
    assert startup._last_cause(message) == "ValueError: max_model_len is too large"


def test_last_cause_goes_on_where_the_first_line_says_nothing() -> None:
    message = """RuntimeError: 1 validation error for ModelConfig
      Value error, User-specified max_model_len (9) is greater than 8 [type=value_error, input=1]
        For further information visit https://errors
    """
    assert startup._last_cause(message) == (
        "RuntimeError: 1 validation error for ModelConfig "
        "Value error, User-specified max_model_len (9) is greater than 8"
    )
    assert startup._last_cause("") == "no reason given"
