"""Finding and ending the processes of one cluster, and the shared memory they leave.

Ray starts the replicas, they start the engines, those start their workers; when one of them
is killed its children may stay. Nearly all of them inherit an environment variable that only one
cluster has, and that is how they are found. One that renames itself may overwrite where it was told
of it, as agents of a Ray node do: those are found as children, as long as their parent lives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

MARKER = "KVRELAY_SESSION"
_SHM = Path("/dev/shm")


def living(pid: int, created_s: float) -> psutil.Process | None:
    """That process; None if it has ended, even if its pid is somebody else's by now."""
    try:
        process = psutil.Process(pid)
        alive = abs(process.create_time() - created_s) < 1
        return process if alive and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def marked_processes(session_id: str) -> list[psutil.Process]:
    """Processes of this user that carry the cluster's mark, this one excepted."""
    mark = f"{MARKER}={session_id}".encode()
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            if mark in environment.split(b"\0"):
                found.append(process)
    return found


def shared_memory_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Names under /dev/shm that these processes map.

    Found by inode: a semaphore is mapped before it gets the name it is known by.
    """
    mapped = set[int]()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                columns = line.split(maxsplit=5)
                if len(columns) == 6 and columns[5].startswith(f"{_SHM}/"):
                    mapped.add(int(columns[4]))
    names = set()
    for file in _SHM.iterdir() if _SHM.is_dir() else ():
        with contextlib.suppress(OSError):
            if file.stat().st_ino in mapped:
                names.add(file.name)
    return names


def end_processes(session_id: str, grace_s: float = 5.0) -> int:
    """End what is left of a cluster: first asked, then killed. Answers how many there were."""
    total = 0
    processes = _with_children(marked_processes(session_id))
    for end in (psutil.Process.terminate, psutil.Process.kill):
        if not processes:
            break
        total = max(total, len(processes))
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(processes, timeout=grace_s)
        alive = [each for each in left if living(each.pid, each.create_time())]
        processes = list({*alive, *marked_processes(session_id)})
    return total


def _with_children(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """These and all that descends from them, this process excepted."""
    found = set(processes)
    for process in tuple(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(process.children(recursive=True))
    return [process for process in found if process.pid != os.getpid()]


def remove_shared_memory(names: Iterable[str]) -> None:
    """Unlink what no process of the cluster will unlink any more."""
    for name in names:
        with contextlib.suppress(OSError):
            (_SHM / name).unlink()
