"""A JSON file that outlives the engine, written by a thread now and then. Sans vLLM."""

import json
import logging
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
EVERY_S = 10.0


class StateFile:
    """What is kept in one file. No error leaves it: losing the file costs learning anew."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock_s = clock_s
        self._written_s = clock_s()
        self._pool = ThreadPoolExecutor(1, "kvrelay-state")
        self._writing: Future[None] | None = None
        self._has_failed = False

    def read(self) -> Any | None:
        """What was written last; None if there is none, or it is damaged."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read and is written anew: %s", self.path, error)
            return None

    @property
    def is_due(self) -> bool:
        """Whether it is time to write again."""
        idle = self._writing is None or self._writing.done()
        return idle and self._clock_s() - self._written_s >= EVERY_S

    def write(self, state: Any) -> None:
        """Have it written; `state` must not change any more."""
        self._written_s = self._clock_s()
        self._writing = self._pool.submit(self._write, state)

    def close(self) -> None:
        """Wait until all is written."""
        self._pool.shutdown(wait=True)

    def _write(self, state: Any) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, encoding="utf-8", delete=False
            ) as file:
                file.write(json.dumps(state))
            Path(file.name).replace(self.path)
        except OSError as error:
            if not self._has_failed:
                logger.warning("what is learnt is not kept: %s", error)
            self._has_failed = True
