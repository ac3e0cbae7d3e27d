"""The log's files: one directory on each node, any number of writers, a bound for all of them.

    AGENT--REPLICA--TIME.jsonl      being written, or left by a process that was killed
    AGENT--REPLICA--TIME.parquet    the same, once it was full; TIME, ns since 1970: its beginning

A writer appends to a file of its own, which it holds a lock on (flock) for as long. A full one
becomes Parquet, about a tenth of its size, and the oldest files of the directory are removed,
whoever wrote them, until the rest keeps the bound. So no log outgrows it, restarts or not.
A line is one write to the kernel: what a killed process had written is there, and at most its last
line is torn. After a failed write a new file is begun, so that a torn line is always a last one.
"""

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kvrelay.relay.decisions import parquet

logger = logging.getLogger(__name__)
LINES, TABLE = ".jsonl", ".parquet"
SEPARATOR = "--"  # no agent's name holds it
SEGMENTS = 16  # of a directory's bytes, so many parts are one file's
MAX_FILES = 256


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the log, and when it was last written to, in ns since 1970."""

    path: Path
    modified_ns: int

    @property
    def name(self) -> str:
        """The same before and after it became Parquet."""
        return self.path.stem


class Segments:
    """What one writer appends to. Not for use by several threads."""

    def __init__(
        self,
        directory: Path,
        writer: str,
        max_bytes: int,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Nothing is touched before the first line.

        Args:
            directory: made if it is not there.
            writer: begins the names of its files, `AGENT--REPLICA`.
            max_bytes: of all files in the directory, those of other writers included; while
                several write, each may hold a sixteenth more.
        """
        self._directory, self._writer, self._max_bytes = directory, writer, max_bytes
        self._segment_bytes = max_bytes // SEGMENTS
        self._clock_ns = clock_ns
        self._path = Path()
        self._file: FileIO | None = None
        self._size = 0

    def append(self, line: bytes) -> None:
        """Write a line, its end included.

        Raises:
            OSError: it is not written; the next one is tried anew.
        """
        if self._file is not None and self._size + len(line) > self._segment_bytes:
            self._finish()
        file = self._file or self._open()
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        except OSError:
            self.close()
            raise
        self._size += len(line)

    def close(self) -> None:
        """End the file that is being written; it stays as it is, and goes if nothing is in it."""
        file, self._file = self._file, None
        if file is None:
            return
        if self._size == 0:
            self._path.unlink(missing_ok=True)
        file.close()

    def _open(self) -> FileIO:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        sweep(self._directory, self._max_bytes - self._segment_bytes)
        name = f"{self._writer}{SEPARATOR}{self._clock_ns()}{LINES}"
        self._path = self._directory / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = FileIO(os.open(self._path, flags, 0o600), "wb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size = 0
        return self._file

    def _finish(self) -> None:
        try:
            parquet.convert(self._path, self._path.with_suffix(TABLE))
        except Exception as error:  # it is read as it is then
            logger.warning("decision log: %s does not become Parquet: %s", self._path.name, error)
        self.close()


def segments(directory: Path, agent: str | None = None) -> list[Segment]:
    """The files of a directory, latest first; none if it is not there.

    Args:
        directory: the log's.
        agent: only those of this agent.
    """
    found: dict[str, Segment] = {}
    for suffix in (LINES, TABLE):  # where both are, one has just become the other
        for path in directory.glob(f"*{suffix}"):
            if agent is None or path.name.partition(SEPARATOR)[0] == agent:
                with contextlib.suppress(FileNotFoundError):
                    found[path.stem] = Segment(path, path.stat().st_mtime_ns)
    return sorted(found.values(), key=lambda each: (each.modified_ns, each.name), reverse=True)


def sweep(directory: Path, max_bytes: int) -> None:
    """Remove the oldest files that nobody writes to, until the others keep the bounds."""
    sizes: list[tuple[int, str, int]] = []
    for path in directory.iterdir():
        if path.suffix in (LINES, TABLE, parquet.DRAFT):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                sizes.append((stat.st_mtime_ns, path.name, stat.st_size))
    total, count = sum(size for *_, size in sizes), len(sizes)
    for _, name, size in sorted(sizes):
        if total <= max_bytes and count < MAX_FILES:
            return
        path = directory / name
        if path.suffix == LINES and _in_use(path):
            continue
        path.unlink(missing_ok=True)
        total, count = total - size, count - 1


def _in_use(path: Path) -> bool:
    """Whether a living writer holds it."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False
