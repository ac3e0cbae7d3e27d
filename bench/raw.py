"""Raw data that is on disk as soon as it is measured, so that a run can be taken up again.

JSON lines: each run begins with one that says what it ran with, `{"run": {...}}`; the others are
what it measured. A line that a killed run has left unfinished is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvrelay.bench.report import Row
from kvrelay.cluster.errors import ConfigError

_RUN = "run"
# What says that seconds were measured on engines and machines that are alike.
SAME_ENGINE = ("model", "cpu", "cpu_model", "cores", "versions", "engine_kwargs")


class RawFile:
    """A file of raw data, or none, then nothing is kept."""

    def __init__(self, file: Path | None, resume: bool, run: Mapping[str, Any]) -> None:
        """Begin it, or go on with it.

        Args:
            file: where it is.
            resume: go on with what is there; without, there may be nothing.
            run: what has to be the same for what was measured to belong together.

        Raises:
            ConfigError: it is there, or cannot be read, or was measured otherwise.
        """
        # A test bed changes the folder that relative paths begin at.
        self._file = None if file is None else file.absolute()
        self._run: dict[str, Any] | None = dict(run)  # until it is written
        self.samples: list[Row] = []
        if file is None:
            if resume:
                raise ConfigError("--resume goes on with the raw data beside --json: name it")
            return
        if file.exists() and not resume:
            raise ConfigError(f"{file} is there: --resume goes on with it, or remove it")
        if file.exists():
            self._read(file, run)

    def keep(self, sample: Row) -> None:
        """Take a sample, and write it."""
        if self._run is not None:
            self._append({_RUN: self._run})
            self._run = None
        self._append(sample)
        self.samples.append(sample)

    def _append(self, content: Mapping[str, Any]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(content) + "\n")

    def _read(self, file: Path, run: Mapping[str, Any]) -> None:
        whole, newline, _ = file.read_bytes().rpartition(b"\n")
        os.truncate(file, len(whole) + len(newline))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                content = json.loads(line)
                earlier = content.get(_RUN)
            except (ValueError, AttributeError) as error:
                raise ConfigError(f"{file}, line {number}: no raw data: {error}") from None
            if earlier is None:
                self.samples.append(content)
            elif other := differing(run, earlier):
                raise ConfigError(f"{file} was measured with another {other}: name another --json")


def differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """The names, for people, of what both tell and tell differently; empty if nothing."""
    return ", ".join(sorted(name for name in now if now[name] != before.get(name, now[name])))
