"""Reading the log while it is written: any process, any number of them, no lock.

A file may become Parquet, or be removed as the oldest, while it is looked for. Torn lines, damaged
files and what another version has written are skipped and counted.
"""

import logging
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from kvrelay.relay.decisions import parquet
from kvrelay.relay.decisions.rows import RESPONSE_ID, Row, to_record
from kvrelay.relay.decisions.segments import LINES, TABLE, Segment, segments
from kvrelay.relay.record import SCHEMA_VERSION

logger = logging.getLogger(__name__)
_LINE = msgspec.json.Decoder(Row)


class DecisionReader:
    """Reads one directory.

    Attributes:
        skipped: lines and files so far that could not be read, and rows of another version.
    """

    def __init__(self, directory: Path) -> None:
        self.skipped = 0
        self._directory = directory

    def rows(self, since_s: float = 0.0) -> Iterator[Row]:
        """All rows in no order; without files that end before `since_s`, in unix seconds."""
        for segment in segments(self._directory):
            if segment.modified_ns >= since_s * 1e9:
                yield from self.segment(segment)

    def latest(self, count: int, keep: Callable[[Row], bool]) -> list[Row]:
        """The last `count` rows, by arrival, of those that `keep` takes; oldest first."""
        found: list[Row] = []
        if count == 0:
            return found
        for segment in segments(self._directory):
            # What a file holds has arrived before it was last written to.
            if len(found) == count and segment.modified_ns < found[0]["time_s"] * 1e9:
                break
            found = sorted([*found, *filter(keep, self.segment(segment))], key=_arrival)[-count:]
        return found

    def find(self, agent: str, answer: str) -> list[dict[str, Any]]:
        """The records of an answer of this agent, in order of arrival.

        Args:
            agent: which has answered.
            answer: the id of the OpenAI response, or of one request of the engine.
        """
        files = segments(self._directory, agent)
        found = [row for segment in files for row in self.segment(segment, answer)]
        return [to_record(row) for row in sorted(found, key=_arrival)]

    def segment(self, segment: Segment, answer: str | None = None) -> list[Row]:
        """The rows of a file; with `answer`, only those of that answer or of that request."""
        path = segment.path
        if path.suffix == LINES:
            try:
                return self.lines(path.read_bytes(), answer)
            except FileNotFoundError:
                path = path.with_suffix(TABLE)  # which it has become
        try:
            return self._known(parquet.read(path, answer))
        except FileNotFoundError:
            return []  # it was the oldest
        except Exception as error:  # pyarrow's have no root of their own
            logger.warning("decision log: %s cannot be read: %s", path.name, error)
            self.skipped += 1
            return []

    def lines(self, content: bytes, answer: str | None = None) -> list[Row]:
        """The rows of JSON lines."""
        needle = msgspec.json.encode(answer) if answer is not None else b""
        rows: list[Row] = []
        for line in content.split(b"\n"):
            if not line or needle not in line:
                continue
            try:
                row = _LINE.decode(line)
            except msgspec.DecodeError:
                self.skipped += 1
                continue
            rows.append(row)
        rows = self._known(rows)
        if answer is None:
            return rows
        return [row for row in rows if answer in (row[RESPONSE_ID], row["request_id"])]

    def _known(self, rows: list[Row]) -> list[Row]:
        """Those whose columns mean what they mean here."""
        known = [row for row in rows if row.get("schema_version") == SCHEMA_VERSION]
        self.skipped += len(rows) - len(known)
        return known


class Follower:
    """What is written to a log from when this is made; see `poll`."""

    def __init__(self, directory: Path, reader: DecisionReader) -> None:
        self._directory, self._reader = directory, reader
        self._seen: set[str] = set()
        self._files: dict[str, BufferedReader] = {}
        self._torn: dict[str, bytes] = {}
        for segment in segments(directory):
            self._seen.add(segment.name)
            if self._open(segment):
                self._take(segment.name)

    def poll(self) -> list[Row]:
        """The rows since the last call, in order of arrival. A line that is not whole yet waits."""
        rows: list[Row] = []
        for segment in segments(self._directory):
            if segment.name not in self._seen:
                self._seen.add(segment.name)
                if not self._open(segment):
                    rows += self._reader.segment(segment)
        for name in tuple(self._files):
            # Looked at before the rest is read: once it has become Parquet, it has been whole.
            ended = not (self._directory / f"{name}{LINES}").exists()
            rows += self._reader.lines(self._take(name))
            if ended:
                self._files.pop(name).close()
                del self._torn[name]
        return sorted(rows, key=_arrival)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, segment: Segment) -> bool:
        """Hold on to a file that is being written; False if it is not one, or no longer."""
        if segment.path.suffix != LINES:
            return False
        try:
            self._files[segment.name] = segment.path.open("rb")
        except FileNotFoundError:
            return False
        return True

    def _take(self, name: str) -> bytes:
        """The lines that a file has gained."""
        content = self._torn.get(name, b"") + self._files[name].read()
        lines, newline, self._torn[name] = content.rpartition(b"\n")
        return lines + newline


def _arrival(row: Row) -> tuple[float, str]:
    return row["time_s"], row["request_id"]
