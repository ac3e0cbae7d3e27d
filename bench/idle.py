"""CPU that an agent takes while nobody asks anything."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

import psutil

from kvrelay.bench.errors import BenchError
from kvrelay.bench.quiet import cpu_s
from kvrelay.cluster.processes import marked_processes

STORE = "store"
_STORE_NAME = "KVStore"


def trees(session_id: str, agents: Sequence[str]) -> dict[str, list[psutil.Process]]:
    """The processes of each agent: its replica, engine core and worker; and of the store.

    Raises:
        BenchError: an agent's replica is not among the cluster's processes.
    """
    processes = marked_processes(session_id)
    found = {}
    for agent in agents:
        # ray::ServeReplica:kvrelay:agent:NAME, and behind a dot what it does at the moment
        title = re.compile(rf"\bServeReplica:.*\bagent:{re.escape(agent)}([.#\s]|$)")
        replicas = [p for p in processes if title.search(_title(p))]
        if len(replicas) != 1:
            raise BenchError(f"found {len(replicas)} replicas of agent '{agent}', expected one")
        found[agent] = [replicas[0], *replicas[0].children(recursive=True)]
    if stores := [p for p in processes if _STORE_NAME in _title(p)]:
        found[STORE] = stores
    return found


def idle_cores(
    processes: Mapping[str, Sequence[psutil.Process]], duration_s: float
) -> dict[str, float]:
    """Cores that each group of processes uses while nothing is asked, over `duration_s`."""
    start_s = time.monotonic()
    before = {name: cpu_s(group) for name, group in processes.items()}
    time.sleep(duration_s)
    wall_s = time.monotonic() - start_s
    return {name: (cpu_s(group) - before[name]) / wall_s for name, group in processes.items()}


def _title(process: psutil.Process) -> str:
    """What the process calls itself: Ray's actors name themselves after what they run."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
