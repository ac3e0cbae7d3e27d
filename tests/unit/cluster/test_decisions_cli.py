"""`kvrelay decisions`: over a log that lies in a folder, as a person and as a program sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from records import made_record

from kvrelay.cluster import cli
from kvrelay.cluster.session import Session
from kvrelay.policies import Arm, Decision, Reason
from kvrelay.relay.decisions.rows import to_row
from kvrelay.relay.decisions.segments import Segments


@pytest.fixture(autouse=True)
def _own_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("COLUMNS", "200")


def line(number: int, reason: Reason, age_s: float, **changes: Any) -> bytes:
    relays = reason is Reason.RELAYED
    values: dict[str, Any] = {
        "num_bytes": 5_000_000 if relays else 0,
        "load_s": 0.25 if relays else 0.0,
        "request_id": f"cmpl-{number}-0-0000abcd",
        "time_s": time.time() - age_s,
    }
    return msgspec.json.encode(to_row(made_record(reason, **(values | changes)))) + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two hours old, an hour old, and now."""
    files = Segments(tmp_path / "log", "reader--r1", 1 << 20)
    files.append(line(1, Reason.NO_SOURCE, 7200))
    files.append(line(2, Reason.RELAYED, 3600, session_id="s"))
    files.append(line(3, Reason.RELAYED, 0, agent="writer"))
    files.close()
    return tmp_path / "log"


def run(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["kvrelay", "decisions", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    text = capsys.readouterr()
    return int(caught.value.code or 0), text.out, text.err


@pytest.mark.parametrize("command", [(), ("tail",), ("summary",)])
def test_help(command: tuple[str, ...], capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, *command, "--help")
    assert code == 0
    assert "Usage" in out


def test_summary(log: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "summary", "--dir", str(log))
    assert code == 0
    lines = [each.split() for each in out.splitlines()]
    relayed = ["relay", "relayed", "2", "400", "0", "256", "144", "10.0", "0.250", "/", "0.250"]
    assert relayed in lines
    assert ["recompute", "no_source", "1", "200", "0", "0", "200", "0.0", "-"] in lines
    assert any(each[:3] == ["total", "3", "600"] for each in lines)
    assert "first token" not in out  # records have none


def test_summary_of_first_tokens(log: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    files = Segments(log, "reader--r2", 1 << 20)
    decision = Decision(Arm.RELAY, Reason.RELAYED, 128, relay_s=0.2)
    files.append(line(4, Reason.RELAYED, 0, decision=decision, first_token_s=0.3))
    files.close()
    code, out, _ = run(capsys, monkeypatch, "summary", "--dir", str(log))
    assert code == 0
    for words in ("first token s", "predicted s", "realised s", "0.300 / 0.300", "0.200 / 0.200"):
        assert words in out


def test_summary_for_programs(log: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "summary", "--dir", str(log), "--json")
    content = json.loads(out)
    assert (code, content["skipped"], content["total"]["requests"]) == (0, 0, 3)
    first = content["groups"][0]
    assert (first["arm"], first["reason"], first["requests"]) == ("relay", "relayed", 2)
    assert first["load_s"] == {"median": 0.25, "p95": 0.25, "n": 2}


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ((), ["cmpl-1", "cmpl-2", "cmpl-3"]),
        (("-n", "1"), ["cmpl-3"]),
        (("--agent", "writer"), ["cmpl-3"]),
        (("--reason", "no_source"), ["cmpl-1"]),
        (("--arm", "relay"), ["cmpl-2", "cmpl-3"]),
        (("--session", "s"), ["cmpl-2"]),
        (("--since", "90m"), ["cmpl-2", "cmpl-3"]),
        (("--since", "90m", "--session", "s"), ["cmpl-2"]),
    ],
)
def test_tail(log: Path, words: tuple[str, ...], answers: list[str], capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    tail = ("tail", "--no-follow", "--dir", str(log), *words)
    code, out, _ = run(capsys, monkeypatch, *tail, "--json")
    assert code == 0
    assert [json.loads(each)["response_id"] for each in out.splitlines()] == answers
    code, out, _ = run(capsys, monkeypatch, *tail)
    head, *lines = out.splitlines()
    assert head.split()[:4] == ["time", "agent", "arm", "reason"]
    assert [each.split()[-1] for each in lines] == answers


def test_torn_lines_are_told(log: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (path,) = log.iterdir()
    path.write_bytes(path.read_bytes() + b'{"schema')
    _, out, err = run(capsys, monkeypatch, "summary", "--dir", str(log))
    assert "relayed" in out
    assert "skipped 1" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--since", "soon"), "write for example 90s, 10m or 2h"),
        (("--dir", "/nowhere/at/all"), "no such folder"),
        (("--reason", "bad"), "bad"),
        (("--arm", "left"), "left"),
    ],
)
def test_bad_input(words: tuple[str, ...], text: str, log: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(capsys, monkeypatch, "summary", "--dir", str(log), *words)
    assert code == 2
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [("summary",), ("tail", "--no-follow")])
def test_nothing_to_show_says_what_to_do(  # type: ignore[no-untyped-def]
    command: tuple[str, ...], log: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    code, _, err = run(capsys, monkeypatch, *command)
    assert code == 1
    assert "kvrelay serve" in err
    running(tmp_path, "").save()
    code, _, err = run(capsys, monkeypatch, *command)
    assert code == 1
    assert "telemetry.decisions.max_bytes" in err
    code, out, err = run(capsys, monkeypatch, *command, "--dir", str(log), "--agent", "nobody")
    assert (code, out) == (0, "")
    assert "leave out a filter" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = run(capsys, monkeypatch, *command, "--dir", str(empty))
    assert (code, out) == (0, "")
    assert "send a request" in err


def running(tmp_path: Path, decisions: str) -> Session:
    process = psutil.Process()
    return Session(
        id="1",
        pid=process.pid,
        pid_created_s=process.create_time(),
        url="http://127.0.0.1:1/v1",
        agents=("reader",),
        ready=True,
        decisions=decisions,
    )


def test_the_running_clusters_log(log: Path, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    running(tmp_path, str(log)).save()
    code, out, _ = run(capsys, monkeypatch, "summary", "--json")
    assert code == 0
    assert json.loads(out)["directory"] == str(log)
    running(tmp_path, str(tmp_path / "not there yet")).save()
    code, _, err = run(capsys, monkeypatch, "summary")
    assert code == 0
    assert "send a request" in err


def test_following_until_ctrl_c(log: Path) -> None:
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "decisions", "tail", "--json"]
    child = subprocess.Popen(
        [*command, "-n", "1", "--dir", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["response_id"] == "cmpl-3"
    files = Segments(log, "reader--r2", 1 << 20)
    files.append(line(4, Reason.NO_SOURCE, 0))
    assert json.loads(child.stdout.readline())["response_id"] == "cmpl-4"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (0, b"", b"")
    files.close()
