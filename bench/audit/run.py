"""Measures the units of a plan that are missing, one after another, whatever ends it on the way.

It knows no engine: an `Executor` measures. Started again, with the same plan or one that was added
to, it goes on with the first unit that is not on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvrelay.bench.audit.design import Unit
from kvrelay.bench.audit.folder import RunFolder, State
from kvrelay.bench.audit.plan import Plan
from kvrelay.bench.audit.units import estimate_s, planned
from kvrelay.bench.errors import BenchError
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Row
from kvrelay.cluster.cli.console import err

# Units that fail one after another say that something is wrong with more than them.
MOST_LOST = 3


class Executor(Protocol):
    """Measures units."""

    @property
    def discarded(self) -> int:
        """Requests that were made to warm up, so far."""

    @property
    def slowness(self) -> float:
        """Of this machine, against what `units.estimate_s` is made for."""

    def measure(self, unit: Unit) -> list[Row]:
        """All rows of a unit, as plain values for JSON.

        Raises:
            BenchError: it could not be measured; nothing of it is kept.
        """


# Given a name of this process's part of the run, and a clock of seconds since the run's start.
Open = Callable[[str, Callable[[], float]], AbstractContextManager[Executor]]


@dataclass(slots=True)
class _Loop:
    """Units on a running executor."""

    folder: RunFolder
    executor: Executor
    told: int = 0
    lost_in_a_row: int = 0

    def over(self, units: Sequence[Unit], title: str) -> list[Unit]:
        """Measure units; those that failed."""
        if not units:
            return []
        slowness = self.executor.slowness
        lost = []
        with progress_bar(title, sum(estimate_s(unit, slowness) for unit in units)) as advance:
            for unit in units:
                if not self._one(unit):
                    lost.append(unit)
                advance(estimate_s(unit, slowness))
        return lost

    def _one(self, unit: Unit) -> bool:
        start_s = time.monotonic()
        try:
            rows = self.executor.measure(unit)
        except BenchError as error:
            self.folder.lose(unit.key, error.message)
            self.folder.write_state()
            words = f"lost {unit.key}: {error.message}"
            err.print(words, style="yellow", highlight=False, markup=False)
            self.lost_in_a_row += 1
            if self.lost_in_a_row >= MOST_LOST:
                raise BenchError(
                    f"{MOST_LOST} units in a row could not be measured, the last because: "
                    f"{error.message}"
                ) from error
            return False
        self.lost_in_a_row = 0
        discarded = self.executor.discarded
        seconds = time.monotonic() - start_s
        self.folder.keep(unit.key, rows, seconds, discarded - self.told)
        self.told = discarded
        self.folder.state.left -= 1
        self.folder.write_state()
        return True


def run(plan: Plan, out: Path, meta: dict[str, Any], open_executor: Open) -> State:
    """Measure what is missing of a plan.

    A unit that fails is tried once more at the end. Whatever ends the run (an error, a signal that
    `signals_as_exit` has turned into an exception), state.json says so, and what is measured stays.

    Args:
        plan: what is measured.
        out: folder of the run.
        meta: with what, for the head of the rows.
        open_executor: starts the engines; not called if nothing is missing.

    Raises:
        ConfigError: the folder cannot be used.
        KvrelayError: what the executor raises.
    """
    with closing(RunFolder(out, plan, meta)) as folder:
        state = folder.state
        units = planned(plan)
        done = set(state.done)
        missing = [unit for unit in units if unit.key not in done]
        state.units, state.left = len(units), len(missing)
        if state.plan_changed:
            err.print("the plan is another one than at the run's start", style="yellow")
        if done:
            err.print(f"{len(units) - len(missing)} of {len(units)} units are measured already")
        try:
            if missing:
                name = f"audit-{len(done)}-{len(state.lost)}"
                start_s = state.started_unix_s
                with open_executor(name, lambda: time.time() - start_s) as executor:
                    loop = _Loop(folder, executor)
                    loop.over(loop.over(missing, "measuring"), "once more")
            state.ended_by = None
        except BaseException as error:
            state.ended_by = type(error).__name__
            raise
        finally:
            state.left = len({unit.key for unit in units} - set(state.done))
            folder.write_state()
            if state.left:
                err.print(f"{state.left} units are left; the same command goes on from here")
        return state
