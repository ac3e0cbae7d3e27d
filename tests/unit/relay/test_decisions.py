"""The decision log: what is written is found again, within its bounds, and nothing waits for it."""

import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import made_record

from kvrelay.policies import Arm, Decision, Reason
from kvrelay.relay.decisions import parquet
from kvrelay.relay.decisions.log import DecisionLog, open_log
from kvrelay.relay.decisions.reader import DecisionReader, Follower
from kvrelay.relay.decisions.rows import Filter, column_types, response_id, to_record, to_row
from kvrelay.relay.decisions.segments import MAX_FILES, Segments, segments, sweep
from kvrelay.relay.decisions.summary import Spread, summarise, total
from kvrelay.relay.settings import RelaySettings

KEEP_ALL = 1 << 30


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    """The `number`th request of agent `reader`, which relayed unless told otherwise."""
    reason = changes.pop("reason", Reason.RELAYED)
    relays = reason is Reason.RELAYED
    values: dict[str, Any] = {
        "num_bytes": 1000 if relays else 0,
        "load_s": 0.25 if relays else 0.0,
        "sources": ("n1", "n2") if relays else (),
        "overhead": {"scheduler_s": 0.5, "faults": 0},
        "request_id": f"cmpl-{number}-0-0000abcd",
        "time_s": 1000.0 + number,
        "replica": "r1",
    }
    return made_record(reason, **(values | changes))


def rows_of(directory: Path) -> list[dict[str, Any]]:
    reader = DecisionReader(directory)
    rows = sorted(reader.rows(), key=lambda row: row["time_s"])
    assert reader.skipped == 0
    return rows


def ticking(start_ns: int = 1) -> Any:
    return itertools.count(start_ns).__next__


def write(directory: Path, *records: dict[str, Any], writer: str = "reader--r1") -> Segments:
    """Written, and still held."""
    import msgspec

    files = Segments(directory, writer, KEEP_ALL)
    for each in records:
        files.append(msgspec.json.encode(to_row(each)) + b"\n")
    return files


@pytest.fixture
def logs() -> Iterator[list[DecisionLog]]:
    """Those that a test starts; ended with it."""
    started: list[DecisionLog] = []
    yield started
    for log in started:
        log.close()
        assert not log._thread.is_alive()


# Rows


@pytest.mark.parametrize(
    ("request_id", "answer"),
    [
        ("cmpl-7-0-0a1b2c3d", "cmpl-7"),
        ("cmpl-7-12-0a1b2c3d", "cmpl-7"),
        ("0_cmpl-7-0-0a1b2c3d", "cmpl-7"),
        ("11_cmpl-7-1-0a1b2c3d", "cmpl-7"),
        ("cmpl-7-1-0-0a1b2c3d", "cmpl-7-1"),
        ("cmpl-7-0-12345678", "cmpl-7"),
        ("cmpl-12345678-0-12345678", "cmpl-12345678"),
        ("chatcmpl-7-0a1b2c3d", "chatcmpl-7"),
        ("1_chatcmpl-7-0a1b2c3d", "chatcmpl-7"),
        ("chatcmpl-7-1-0a1b2c3d", "chatcmpl-7-1"),
        (
            "cmpl-5b3a5c1e-19a5-4a53-8d6e-2b1f5f6d8c11-0-0a1b2c3d",
            "cmpl-5b3a5c1e-19a5-4a53-8d6e-2b1f5f6d8c11",
        ),
        (
            "chatcmpl-5b3a5c1e-19a5-4a53-8d6e-2b1f5f6d8c11-0a1b2c3d",
            "chatcmpl-5b3a5c1e-19a5-4a53-8d6e-2b1f5f6d8c11",
        ),
        ("cmpl-7-0123456789abcdef-beam-3-0a1b2c3d", "cmpl-7"),
        ("chatcmpl-7-0123456789abcdef-beam-3-0a1b2c3d", "chatcmpl-7"),
        ("r1", "r1"),
    ],
)
def test_the_answer_of_a_request(request_id: str, answer: str) -> None:
    assert response_id(request_id) == answer


def test_a_row_is_the_record_and_its_answer() -> None:
    given = record(4)
    row = to_row(given)
    assert row["decision.arm"] == "relay"
    assert row["overhead.scheduler_s"] == 0.5
    assert row["response_id"] == "cmpl-4"
    assert to_record(row) == given
    assert not any(isinstance(value, dict) for value in row.values())


def test_fields_that_others_add_are_columns() -> None:
    given = {**record(1), "similarity": {"jaccard": 0.5, "bands": {"low": 1}}, "later_s": 0.1}
    row = to_row(given)
    assert (row["similarity.jaccard"], row["similarity.bands.low"], row["later_s"]) == (0.5, 1, 0.1)
    assert to_record(row) == given


def test_every_declared_field_has_a_type() -> None:
    types = column_types()
    declared = {name for name in to_row(record()) if not name.startswith("overhead.")}
    assert set(types) == declared
    assert types["load_path"] is str
    assert types["decision.relay_s"] is float
    assert types["decision.arm"] is str
    assert types["sources"] == list[str]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Filter(), [0, 1, 2]),
        (Filter(agent="writer"), [2]),
        (Filter(reason="no_source"), [1]),
        (Filter(arm="relay"), [0, 2]),
        (Filter(session_id="s"), [2]),
        (Filter(since_s=1001.0), [1, 2]),
        (Filter(arm="relay", since_s=1001.0), [2]),
        (Filter(agent="nobody"), []),
    ],
)
def test_filters(wanted: Filter, numbers: list[int]) -> None:
    rows = [
        to_row(record(0)),
        to_row(record(1, reason=Reason.NO_SOURCE)),
        to_row(record(2, agent="writer", session_id="s")),
    ]
    assert [rows.index(row) for row in rows if wanted.matches(row)] == numbers


# Files


def test_a_full_file_becomes_parquet_with_the_same_rows(tmp_path: Path) -> None:
    given = [record(0), record(1, reason=Reason.NO_SOURCE, session_id="s"), record(2, codec="lz4")]
    files = write(tmp_path, *given)
    before = rows_of(tmp_path)
    assert before == [to_row({**each, "sources": list(each["sources"])}) for each in given]
    files._finish()
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".parquet"
    assert path.stat().st_mode & 0o077 == 0
    assert rows_of(tmp_path) == before


def test_columns_of_nulls_have_their_type(tmp_path: Path) -> None:
    import pyarrow.parquet

    write(tmp_path, record(reason=Reason.NO_SOURCE))._finish()
    (path,) = tmp_path.iterdir()
    kinds = {field.name: str(field.type) for field in pyarrow.parquet.read_schema(path)}
    assert kinds["load_path"] == kinds["session_id"] == "string"
    assert kinds["decision.relay_s"] == kinds["time_s"] == "double"
    assert kinds["prompt_tokens"] == "int64"
    assert kinds["sources"] == "list<element: string>"
    assert "null" not in kinds.values()


def test_a_directory_keeps_its_bounds(tmp_path: Path) -> None:
    max_bytes = 1 << 20
    writers = [Segments(tmp_path, f"a--r{n}", max_bytes, ticking(10 * n + 1)) for n in range(2)]
    line = b'{"x": "' + os.urandom(2000).hex().encode() + b'"}\n'  # nothing to compress
    largest = written = 0
    while written < 4 * max_bytes:
        for writer in writers:
            writer.append(line)
            written += len(line)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        largest = max(largest, sum(sizes))
        # A file of Parquet is a little larger than its rows.
        assert max(sizes) <= max_bytes / 16 * 1.25
    assert max_bytes / 2 < largest <= max_bytes * (1 + 2 / 16)
    for writer in writers:
        writer.close()


def test_the_newest_records_are_kept(tmp_path: Path) -> None:
    files = Segments(tmp_path, "reader--r1", 1 << 18)
    log = DecisionLog(files, queue_records=5000)
    for number in range(5000):
        log.offer(record(number, policy=os.urandom(200).hex()))
    log._closing.set()
    log._queue.put(None)
    log._thread.join(60)
    assert log.take_dropped() == 0
    times = [row["time_s"] for row in rows_of(tmp_path)]
    assert times == [1000.0 + number for number in range(5000 - len(times), 5000)]
    assert 100 < len(times) < 5000


def test_many_small_files_are_bounded_too(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 20):
        path = tmp_path / f"a--r{number}--{number}.jsonl"
        path.write_text("{}\n")
        os.utime(path, (number, number))
    sweep(tmp_path, KEEP_ALL)
    left = {int(path.stem.rpartition("--")[2]) for path in tmp_path.iterdir()}
    assert left == set(range(21, MAX_FILES + 20))


def test_what_a_living_writer_holds_stays(tmp_path: Path) -> None:
    held = write(tmp_path, record(0), writer="a--r1")
    left_over = tmp_path / "a--r0--1.jsonl"
    left_over.write_text("{}\n")
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    sweep(tmp_path, 0)
    assert not left_over.exists()
    assert foreign.exists()
    assert rows_of(tmp_path)
    held.close()
    sweep(tmp_path, 0)
    assert segments(tmp_path) == []


def test_a_torn_line_is_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1)).close()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    reader = DecisionReader(tmp_path)
    assert [row["time_s"] for row in reader.rows()] == [1000.0]
    assert reader.skipped == 1


@pytest.mark.parametrize("line", [b"[1]\n", b"{}\n", b'{"schema_version": 99}\n', b"\xff\n"])
def test_lines_of_another_kind_are_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, record(0)).close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(line + path.read_bytes())
    reader = DecisionReader(tmp_path)
    assert len(list(reader.rows())) == 1
    assert reader.skipped == 1


def test_a_damaged_table_is_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "reader--r1--1.parquet").write_bytes(b"PAR1")
    write(tmp_path, record(0)).close()
    reader = DecisionReader(tmp_path)
    assert len(list(reader.rows())) == 1
    assert reader.skipped == 1


def test_a_file_that_cannot_become_parquet_stays(tmp_path: Path) -> None:
    files = write(tmp_path, record(0))
    files.append(b"torn\n")
    files._finish()
    reader = DecisionReader(tmp_path)
    assert len(list(reader.rows())) == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}


def test_a_file_that_becomes_parquet_while_it_is_looked_for(tmp_path: Path) -> None:
    files = write(tmp_path, record(0))
    (before,) = segments(tmp_path)
    files._finish()
    assert before.path.suffix == ".jsonl"
    assert len(DecisionReader(tmp_path).segment(before)) == 1
    sweep(tmp_path, 0)
    assert DecisionReader(tmp_path).segment(before) == []


def test_a_killed_writer_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from kvrelay.relay.decisions.log import open_log\n"
        "from kvrelay.relay.settings import RelaySettings\n"
        "settings = RelaySettings(agent='a', decisions_directory=sys.argv[1],"
        " decisions_bytes=1 << 20)\n"
        "log = open_log(settings)\n"
        "for n in range(50): log.offer({'request_id': str(n), 'schema_version': 1})\n"
        "def lines(): return sum(p.read_bytes().count(10) for p in Path(sys.argv[1]).iterdir())\n"
        "while lines() < 50: time.sleep(0.01)\n"
        "print('written', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), os.environ.get("PYTHONPATH", "")],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    reader = DecisionReader(tmp_path)
    assert {row["request_id"] for row in reader.rows()} == {str(n) for n in range(50)}
    assert reader.skipped == 0
    (segment,) = segments(tmp_path)
    assert segment.path.name.startswith(f"a--{child.pid}--")
    with segment.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it any more


# Writing


class Stuck:
    """Files on a disk that does not answer until `free` is set."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        self.lines: list[bytes] = []

    def append(self, line: bytes) -> None:
        self.reached.set()
        assert self.free.wait(10)
        self.lines.append(line)

    def close(self) -> None:
        """Nothing is held."""


def test_a_slow_disk_costs_records_and_no_time(logs: list[DecisionLog]) -> None:
    files = Stuck()
    log = DecisionLog(files, queue_records=2)  # type: ignore[arg-type]
    logs.append(log)
    log.offer(record(0))
    assert files.reached.wait(10)
    for number in range(1, 6):
        log.offer(record(number))  # two find room
    assert log.take_dropped() == 3
    assert log.take_dropped() == 0
    files.free.set()
    log.close()
    assert len(files.lines) == 3


def test_what_cannot_be_written_is_counted(
    tmp_path: Path, logs: list[DecisionLog], caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "log"
    blocked.write_text("a file where the folder should be")
    settings = RelaySettings(decisions_directory=str(blocked), decisions_bytes=1 << 20)
    log = open_log(settings)
    assert log is not None
    logs.append(log)
    for number in range(3):
        log.offer(record(number))
    log.close()
    assert log.take_dropped() == 3
    assert caplog.text.count("decision log:") == 1  # not for each
    assert "telemetry.decisions" in caplog.text


def test_a_record_that_is_no_json_is_counted(tmp_path: Path, logs: list[DecisionLog]) -> None:
    log = DecisionLog(Segments(tmp_path, "reader--r1", KEEP_ALL))
    logs.append(log)
    log.offer(record(0) | {"strange": object()})
    log.offer({})
    log.offer(record(1))
    log.close()
    assert log.take_dropped() == 2
    assert [row["time_s"] for row in rows_of(tmp_path)] == [1001.0]


def test_a_failed_write_begins_a_new_file(tmp_path: Path) -> None:
    files = write(tmp_path, record(0))

    class Full:
        def write(self, line: bytes) -> int:
            return len(line) // 2

        def close(self) -> None:
            """Nothing is held."""

    kept, files._file = files._file, Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        files.append(b"x" * 10)
    assert kept is not None
    kept.close()
    files.append(b"{}\n")
    files.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_no_log_unless_there_is_room_and_a_place() -> None:
    assert open_log(RelaySettings(decisions_directory="/tmp/x")) is None
    assert open_log(RelaySettings(decisions_bytes=1 << 20)) is None
    with pytest.raises(ValueError, match="decisions_bytes"):
        RelaySettings(decisions_bytes=-1)


# Looking up and following


@pytest.mark.parametrize("full", [False, True], ids=["jsonl", "parquet"])
def test_the_records_of_an_answer(tmp_path: Path, full: bool) -> None:
    ids = [
        "0_cmpl-1-0-0000abcd",
        "1_cmpl-1-0-0000abcd",
        "cmpl-10-0-0000abcd",
        "cmpl-1-1-0-00000001",
    ]
    records = [record(n, request_id=name) for n, name in enumerate(ids)]
    records.append(record(8, session_id="cmpl-1", agent="cmpl-1"))  # names it, is not of it
    files = write(tmp_path, *records)
    write(tmp_path, record(9, request_id="cmpl-1-0-11111111"), writer="other--r1").close()
    if full:
        files._finish()
    reader = DecisionReader(tmp_path)

    def found(answer: str) -> list[str]:
        return [each["request_id"] for each in reader.find("reader", answer)]

    assert found("cmpl-1") == ids[:2]
    assert found("cmpl-1-1") == ids[3:]
    assert found("cmpl-10") == [ids[2]]
    assert found(ids[1]) == [ids[1]]
    assert found("cmpl-") == found("") == found('"') == found("../cmpl-1") == []
    (one,) = reader.find("reader", "cmpl-10")
    assert one["decision"]["arm"] == "relay"
    assert "response_id" not in one
    files.close()


def test_the_latest(tmp_path: Path) -> None:
    write(tmp_path, record(1), record(4), writer="reader--r1")._finish()
    held = write(tmp_path, record(2), record(3, agent="x"), record(5), writer="reader--r2")
    reader = DecisionReader(tmp_path)
    keep = Filter(agent="reader").matches
    assert [row["time_s"] for row in reader.latest(3, keep)] == [1002.0, 1004.0, 1005.0]
    assert len(reader.latest(10, keep)) == 4
    assert reader.latest(0, keep) == []
    held.close()


def test_following_through_files_that_come_fill_and_go(tmp_path: Path) -> None:
    old = write(tmp_path, record(0))
    follower = Follower(tmp_path, DecisionReader(tmp_path))
    assert follower.poll() == []

    def add(files: Segments, number: int) -> None:
        import msgspec

        files.append(msgspec.json.encode(to_row(record(number))) + b"\n")

    def polled() -> list[int]:
        return [int(row["time_s"]) - 1000 for row in follower.poll()]

    add(old, 1)
    assert polled() == [1]
    add(old, 2)
    old._finish()
    assert polled() == [2]  # not lost with the file's name
    add(old, 3)
    fresh = write(tmp_path, record(4), writer="writer--r2")
    assert polled() == [3, 4]
    passing = write(tmp_path, record(5), writer="writer--r3")
    passing._finish()
    assert polled() == [5]  # was full before anybody looked
    fresh.append(b'{"schema_version": 1, "time_s": 1006.0, ')
    assert polled() == []
    fresh.append(b'"request_id": "x", "response_id": "x"}\n')
    assert polled() == [6]
    follower.close()
    old.close()
    fresh.close()


# Summing up


def test_a_summary() -> None:
    rows = [
        to_row(record(n, load_s=0.1 * (n + 1), first_token_s=0.2 * (n + 1))) for n in range(20)
    ] + [to_row(record(99, reason=Reason.NO_SOURCE))]
    groups = summarise(rows)
    assert list(groups) == [("relay", "relayed"), ("recompute", "no_source")]
    relayed = groups["relay", "relayed"].to_dict()
    assert (relayed["requests"], relayed["relayed_tokens"], relayed["num_bytes"]) == (
        20,
        20 * 128,
        20_000,
    )
    assert relayed["load_s"] == {
        "median": pytest.approx(1.05),
        "p95": pytest.approx(1.9),
        "n": 20,
    }
    assert relayed["first_token_s"]["p95"] == pytest.approx(3.8)
    assert relayed["predicted_s"] is None
    assert groups["recompute", "no_source"].to_dict()["load_s"] is None
    assert total(groups.values()).requests == 21
    assert total([]).to_dict()["requests"] == 0


def test_predictions_are_held_against_what_came() -> None:
    relay = Decision(Arm.RELAY, Reason.RELAYED, 128, relay_s=0.2, recompute_s=9.0)
    other = Decision(Arm.RECOMPUTE, Reason.NO_SOURCE, relay_s=9.0, recompute_s=0.5)
    rows = [
        to_row(record(0, decision=relay, first_token_s=0.25)),
        to_row(record(1, reason=Reason.NO_SOURCE, decision=other, first_token_s=0.4)),
        to_row(record(2, decision=relay)),  # did not come to a token
    ]
    figures = total(summarise(rows).values()).to_dict()
    assert figures["predicted_s"] == {"median": pytest.approx(0.35), "p95": 0.5, "n": 2}
    assert figures["realised_s"] == {"median": pytest.approx(0.325), "p95": 0.4, "n": 2}
    assert figures["error_ratio"]["p95"] == pytest.approx(0.25)


def test_a_spread() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 1)
    assert Spread.of([2.0, 1.0, 3.0]) == Spread(2.0, 3.0, 3)
    assert Spread.of(range(1, 101)) == Spread(50.5, 95, 100)


def test_reading_by_answer_reads_only_those(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1))._finish()
    (path,) = tmp_path.iterdir()
    assert [row["response_id"] for row in parquet.read(path, "cmpl-1")] == ["cmpl-1"]
