"""An executor without engines, and a process that runs a plan with it, to be killed half way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrelay.bench.audit.design import Unit
from kvrelay.bench.audit.plan import load_plan
from kvrelay.bench.audit.run import run
from kvrelay.bench.errors import BenchError

Row = dict[str, Any]


def content(**changes: Any) -> dict[str, Any]:
    """A small plan."""
    found: dict[str, Any] = {
        "question": "Does it pay?",
        "seed": 3,
        "outcomes": {"primary": ["ttft_s"]},
        "strata": {
            "link": ["same-node", "100mbit"],
            "tokens": [512],
            "load": ["idle"],
            "similarity": ["high"],
            "language": ["en"],
        },
        "arms": [
            {"name": "recompute", "designs": ["paired"], "pairs": 6},
            {"name": "relay", "designs": ["paired"], "pairs": 6},
        ],
    }
    return found | changes


@dataclass
class FakeExecutor:
    """Says what it was asked in a file, which outlives it; fails where it is told to.

    Attributes:
        log: a line for each unit that was begun.
        seconds: that a unit takes.
        fails: keys of units, and how often they do.
    """

    log: Path
    seconds: float = 0.0
    fails: dict[str, int] = field(default_factory=dict)
    stops_at: int | None = None
    discarded: int = 0
    slowness: float = 1.0
    asked: int = 0

    def measure(self, unit: Unit) -> list[Row]:
        self.asked += 1
        with self.log.open("a") as lines:
            lines.write(unit.key + "\n")
        if self.asked == self.stops_at:
            raise KeyboardInterrupt
        time.sleep(self.seconds)
        if self.fails.get(unit.key, 0):
            self.fails[unit.key] -= 1
            raise BenchError("A did not answer")
        self.discarded += 1
        return [
            {
                "session": unit.key,
                "request": f"{unit.key}/{place}",
                "time_s": float(self.asked),
                "arm": ask.arm,
                "ttft_s": 0.5,
            }
            for place, block in enumerate(unit.blocks)
            for ask in block
        ]

    @contextmanager
    def opened(self, name: str, now_s: Callable[[], float]) -> Iterator[FakeExecutor]:
        assert name and now_s() >= 0
        yield self


if __name__ == "__main__":
    plan_file, out, log = map(Path, sys.argv[1:])
    executor = FakeExecutor(log, seconds=0.15)
    run(load_plan(plan_file), out, {"pid": os.getpid()}, executor.opened)
