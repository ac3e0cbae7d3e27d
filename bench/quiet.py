"""Whether the machine is quiet: before a timed request, and who else worked during it.

A vLLM worker keeps polling for a second after a request, and would take a core from the engine
that is asked next. The gate waits that out for every request alike.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from kvrelay.cluster.processes import marked_processes

T = TypeVar("T")
WINDOW_S = 0.2
# Ray's own control processes take about a tenth of a core when nothing happens.
BUSY_CORES = 0.3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Watched:
    """What the machine did during a timed request, in cores.

    Attributes:
        waited_s: how long the machine was waited for before it.
        quiet: whether it had become quiet by then.
        others_cores: load by processes that are not the benchmark's; None if nobody can tell.
        steal_cores: what other guests of the same host took from this machine.
    """

    waited_s: float
    quiet: bool
    others_cores: float | None
    steal_cores: float

    def to_dict(self) -> dict[str, float | bool]:
        """The form in which it goes into a sample; what nobody can tell is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class QuietGate:
    """Waits for a quiet machine; nothing of an earlier request may still be going on either."""

    def __init__(self, session_id: str | None, limit_s: float) -> None:
        """Take the cluster whose load is the benchmark's own, and how long to wait at most.

        Without one, of a Ray that others have started, the load cannot be told apart.
        """
        self._limit_s = limit_s
        self._own: list[psutil.Process] | None = None
        if session_id is not None:
            self._own = [psutil.Process(), *marked_processes(session_id)]
        self.total_waited_s = 0.0
        self.num_disturbed = 0

    def wait(self) -> tuple[float, bool]:
        """Wait for two quiet windows in a row; seconds waited, and whether they came."""
        start_s = time.monotonic()
        num_quiet = 0
        while num_quiet < 2 and time.monotonic() - start_s < max(self._limit_s, 2 * WINDOW_S):
            before_s = busy_cpu_s()
            time.sleep(WINDOW_S)
            is_quiet = (busy_cpu_s() - before_s) / WINDOW_S < BUSY_CORES
            num_quiet = num_quiet + 1 if is_quiet else 0
        waited_s = time.monotonic() - start_s
        self.total_waited_s += waited_s
        self.num_disturbed += num_quiet < 2
        return waited_s, num_quiet >= 2

    def forget(self) -> None:
        """Count anew from here."""
        self.total_waited_s, self.num_disturbed = 0.0, 0

    def summary(self) -> dict[str, float | int]:
        """What goes into a report's meta."""
        return {
            "waited_s": round(self.total_waited_s, 1),
            "requests_not_quiet": self.num_disturbed,
        }

    def watch(self, request: Callable[[], T]) -> tuple[T, Watched]:
        """Wait, then make the request and count what others did meanwhile."""
        waited_s, quiet = self.wait()
        own_s, busy_s, stolen_s = cpu_s(self._own or ()), busy_cpu_s(), stolen_cpu_s()
        start_s = time.monotonic()
        answer = request()
        wall_s = time.monotonic() - start_s
        others_s = (busy_cpu_s() - busy_s) - (cpu_s(self._own or ()) - own_s)
        others_cores = round(max(0.0, others_s / wall_s), 3)  # clocks of 0.01 s
        return answer, Watched(
            waited_s=round(waited_s, 3),
            quiet=quiet,
            others_cores=others_cores if self._own is not None else None,
            steal_cores=round((stolen_cpu_s() - stolen_s) / wall_s, 3),
        )


def busy_cpu_s() -> float:
    """CPU seconds of the whole machine so far, idling excepted."""
    user, nice, system, _idle, _iowait, irq, softirq, _steal = _machine_ticks()
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def stolen_cpu_s() -> float:
    """CPU seconds that the hypervisor has given to others while this machine wanted them."""
    return _machine_ticks()[7] / _TICKS_PER_S


def _machine_ticks() -> list[int]:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return [int(field) for field in fields[1:9]]


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of processes so far; those that have ended do not count."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
