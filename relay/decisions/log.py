"""Writing the log, from a thread that nothing waits for.

    request_finished --- offer ---> queue (bounded) ---> thread ---> Segments
     EngineCore's scheduler thread

It is written where records are made, since vLLM hands them on with whole answers only, not with
streams. What finds no room in the queue, or cannot be written, is dropped and counted.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvrelay.relay.decisions.rows import to_row
from kvrelay.relay.decisions.segments import SEPARATOR, Segments
from kvrelay.relay.settings import RelaySettings

logger = logging.getLogger(__name__)
QUEUE_RECORDS = 1024
CLOSE_S = 1.0
WARN_EVERY_S = 60.0


class DecisionLog:
    """Takes records from one thread; another one, its own, writes them."""

    def __init__(self, segments: Segments, queue_records: int = QUEUE_RECORDS) -> None:
        self._segments = segments
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(queue_records)
        self._refused = 0  # counted by the thread that offers
        self._lost = 0  # counted by the log's own
        self._told = 0
        self._warned_s = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrelay-decisions", daemon=True)
        self._thread.start()

    def offer(self, record: Mapping[str, Any]) -> None:
        """Have a record written; never waits and never raises. It must not change any more."""
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._refused += 1

    def take_dropped(self) -> int:
        """How many records were dropped since this was last asked."""
        dropped = self._refused + self._lost
        new, self._told = dropped - self._told, dropped
        return new

    def close(self) -> None:
        """Write what is queued, for up to a second."""
        self._closing.set()
        with contextlib.suppress(queue.Full):  # then the thread is not waiting for anything
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            record = self._queue.get()
            if record is not None:
                self._write(record)
        self._segments.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._segments.append(msgspec.json.encode(to_row(record)) + b"\n")
        except OSError as error:
            self._drop(
                f"{error}; records are dropped until it can be written: make room there, or set "
                "telemetry.decisions"
            )
        except Exception as error:
            self._drop(f"a record cannot be written: {error!r}")

    def _drop(self, why: str) -> None:
        self._lost += 1
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_EVERY_S:
            self._warned_s = now_s
            logger.warning("decision log: %s", why)


def open_log(settings: RelaySettings) -> DecisionLog | None:
    """The log of an engine with these settings; None if it keeps none."""
    if settings.decisions_directory is None or not settings.decisions_bytes:
        return None
    writer = f"{settings.agent}{SEPARATOR}{settings.replica or os.getpid()}"
    directory = Path(settings.decisions_directory)
    return DecisionLog(Segments(directory, writer, settings.decisions_bytes))


def default_directory() -> Path:
    """Where a node's log is unless told otherwise: in the folder of its Ray, and gone with it.

    Ray must be connected.
    """
    import ray

    context: Any = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name(), "kvrelay-decisions")
