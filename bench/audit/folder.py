"""The folder of a run: its plan, its rows as they come, and how far it is.

    plan.yaml     the plan in its canonical form; plan.SHA.yaml, what it was before it was changed
    rows.jsonl    a line for each row. Lines with the one key `run` are not rows: they say what the
                  rows after them were measured with, and which unit is done with those before
    state.json    the same summed up, for people and for the report

`rows.jsonl` alone is the truth. A unit is written in one piece, its end last, and is on the disk
before the next one begins. So what a killed process has left is whole units and perhaps a torn one,
which is cut off and measured again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from kvrelay.bench.audit.plan import Plan
from kvrelay.bench.raw import SAME_ENGINE, differing
from kvrelay.bench.report import Row, write_atomically
from kvrelay.cluster.errors import ConfigError

_SAME = (*SAME_ENGINE, "relay")
PLAN, ROWS, STATE = "plan.yaml", "rows.jsonl", "state.json"
MARK = "run"


@dataclass(slots=True)
class State:
    """How far a run is.

    Attributes:
        plans: hashes of the plans that it was run with, the last one now.
        started_unix_s: of its first process; rows count their seconds from there.
        done: keys of the units that are measured, in order.
        lost: of those that failed, why; a unit that was measured later is in both.
        rows: so many.
        discarded_requests: made to warm up, not kept.
        seconds: spent on units.
        units: of the plan as it is now; left: of those, not measured.
        ended_by: what ended the last process before its end; None if nothing did.
        not_measured: columns that a process could not fill, and why.
    """

    plans: list[str] = field(default_factory=list)
    started_unix_s: float = 0.0
    done: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    discarded_requests: int = 0
    seconds: float = 0.0
    units: int = 0
    left: int = 0
    ended_by: str | None = None
    not_measured: dict[str, str] = field(default_factory=dict)

    @property
    def plan_changed(self) -> bool:
        """Whether data were there before the plan was what it is now."""
        return len(set(self.plans)) > 1

    def to_dict(self) -> dict[str, Any]:
        """The form in which it is written."""
        return {
            **asdict(self),
            "done": len(self.done),  # their keys are in the rows
            "plan_sha256": self.plans[-1],
            "plan_changed": self.plan_changed,
            "complete": self.left == 0 and self.ended_by is None,
        }


class RunFolder:
    """A folder that one process at a time adds to."""

    def __init__(self, path: Path, plan: Plan, meta: Mapping[str, Any]) -> None:
        """Begin it, or go on with what is there.

        Args:
            path: is made if it is not there.
            plan: what is measured from now on.
            meta: with what: versions, machine; `not_measured`, see `State`.

        Raises:
            ConfigError: it cannot be written, another process is at it, it holds no rows of an
                audit, or they were measured on other engines or another machine.
        """
        self.path = path.resolve()  # whoever starts a cluster changes the working directory
        self.state = State()
        self._meta = dict(meta)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lines: IO[bytes] = (path / ROWS).open("a+b")
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be written: {error.strerror}") from None
        try:
            self._lock()
            self._read()
        except ConfigError:
            self.close()
            raise
        if not self.state.plans:
            self.state.started_unix_s = time.time()
        if self.state.plans[-1:] != [plan.sha256]:
            self._keep_plan(plan)
            self.state.plans.append(plan.sha256)
        self.state.not_measured |= meta.get("not_measured", {})
        head = {"plan_sha256": plan.sha256, "started_unix_s": self.state.started_unix_s}
        self._append([{MARK: {**head, "meta": self._meta}}])

    def keep(self, key: str, rows: Sequence[Row], seconds: float, discarded: int) -> None:
        """Write a unit, whole or not at all; it is on the disk when this returns.

        Args:
            key: of the unit.
            rows: all of it.
            seconds: that it took.
            discarded: requests to warm up since the last unit.
        """
        end = {"done": key, "rows": len(rows), "seconds": round(seconds, 3)}
        self._append([*rows, {MARK: {**end, "discarded_requests": discarded}}])
        self._take(end | {"discarded_requests": discarded}, len(rows))

    def lose(self, key: str, reason: str) -> None:
        """Write that a unit could not be measured."""
        lost = {"lost": key, "reason": reason}
        self._append([{MARK: lost}])
        self._take(lost, 0)

    def write_state(self) -> None:
        """Sum up."""
        write_atomically(self.path / STATE, json.dumps(self.state.to_dict(), indent=1) + "\n")

    def close(self) -> None:
        """Let go of the folder."""
        self._lines.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--out {self.path}: another run is writing there") from None

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        self._lines.write(content.encode())
        self._lines.flush()
        os.fsync(self._lines.fileno())

    def _keep_plan(self, plan: Plan) -> None:
        file = self.path / PLAN
        if self.state.plans and file.exists():
            file.replace(self.path / f"plan.{self.state.plans[-1][:8]}.yaml")
        write_atomically(file, plan.canonical())

    def _read(self) -> None:
        """Take over what is whole, and cut off the rest."""
        self._lines.seek(0)
        whole_bytes = num_bytes = num_rows = 0
        for number, line in enumerate(self._lines, 1):
            num_bytes += len(line)
            if not line.endswith(b"\n"):
                break
            try:
                content = json.loads(line)
            except ValueError:
                content = None
            if not isinstance(content, dict):
                raise ConfigError(
                    f"{self.path / ROWS}, line {number}: no row of an audit; name another --out"
                )
            if set(content) != {MARK}:
                num_rows += 1
                continue
            self._take(content[MARK], num_rows)
            whole_bytes, num_rows = num_bytes, 0
        os.ftruncate(self._lines.fileno(), whole_bytes)
        self._lines.seek(0, os.SEEK_END)

    def _take(self, mark: Mapping[str, Any], num_rows: int) -> None:
        state = self.state
        if "done" in mark:
            state.done.append(mark["done"])
            state.rows += num_rows
            state.seconds += mark["seconds"]
            state.discarded_requests += mark["discarded_requests"]
        elif "lost" in mark:
            state.lost[mark["lost"]] = mark["reason"]
        else:
            before = mark.get("meta", {})
            told = {name: self._meta[name] for name in _SAME if name in self._meta}
            if other := differing(told, before):
                raise ConfigError(
                    f"--out {self.path} was measured with another {other}: strata of two kinds of "
                    "machine cannot be compared; name another --out"
                )
            if not state.plans:
                state.started_unix_s = mark["started_unix_s"]
            if state.plans[-1:] != [mark["plan_sha256"]]:
                state.plans.append(mark["plan_sha256"])
            state.not_measured |= before.get("not_measured", {})


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file of a run; empty if it is not there.

    Raises:
        ConfigError: it holds something else.
    """
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: expected an object")
    return found
