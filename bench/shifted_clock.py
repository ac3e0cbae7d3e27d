"""A jump of the clocks that Python code of this process reads.

The machine's own clocks belong to everybody on it, and a time namespace takes in no process
that runs already. So the functions of `time` are replaced: code that looks them up when it
calls them sees the jump, code that has kept one has to be given the new one. What waits for a
number of seconds goes on waiting for that long, as the kernel would have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_monotonic_ns, _time_ns = time.monotonic_ns, time.time_ns


class _Shift:
    """How far ahead of the machine's clocks this process is."""

    monotonic_ns = 0
    wall_ns = 0


def jump(monotonic_s: float, wall_s: float) -> None:
    """Let the monotonic and the wall clock jump on, or back, from where they stand."""
    _Shift.monotonic_ns += int(monotonic_s * 1e9)
    _Shift.wall_ns += int(wall_s * 1e9)
    replacements: dict[str, Callable[[], float]] = {
        "monotonic_ns": lambda: _monotonic_ns() + _Shift.monotonic_ns,
        "monotonic": lambda: (_monotonic_ns() + _Shift.monotonic_ns) / 1e9,
        "time_ns": lambda: _time_ns() + _Shift.wall_ns,
        "time": lambda: (_time_ns() + _Shift.wall_ns) / 1e9,
    }
    for name, function in replacements.items():
        setattr(time, name, function)
