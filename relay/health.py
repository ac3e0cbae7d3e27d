"""What about a node decides how well its store can relay; looked at by `kvrelay doctor`."""

import os
import resource
import shutil
from pathlib import Path

from kvrelay.relay.memory import available_bytes

_SHM = Path("/dev/shm")
_RDMA = Path("/sys/class/infiniband")


def look() -> dict[str, str | int]:
    """Facts of this process and its node; sizes in bytes, -1 for no limit.

    `shm_bytes`, `shm_free_bytes`: of /dev/shm. `memory_bytes`: available. `memlock_bytes`: how
    much memory may be pinned. `rdma`: RDMA devices, comma-separated. `pid_namespace`: its
    identity; processes that read each other's memory must share it. `host`: the machine.
    """
    shm = shutil.disk_usage(_SHM) if _SHM.is_dir() else None
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "host": os.uname().nodename,
        "shm_bytes": shm.total if shm else 0,
        "shm_free_bytes": shm.free if shm else 0,
        "memory_bytes": available_bytes(),
        "memlock_bytes": -1 if memlock == resource.RLIM_INFINITY else memlock,
        "rdma": ",".join(sorted(entry.name for entry in _RDMA.iterdir())) if _RDMA.is_dir() else "",
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
    }
