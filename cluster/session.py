"""The record of what kvrelay has started: one file per running cluster.

`status` and `stop` read it. It lies in `$XDG_RUNTIME_DIR/kvrelay`, or in the user's cache
folder where there is no such directory, and only its owner can read it.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from kvrelay.cluster.processes import living

# The sockets below a temporary folder may have no longer path than 107 characters.
_LONGEST_TEMP_ROOT = 30


@dataclass(frozen=True, slots=True)
class Session:
    """One cluster that kvrelay started.

    Attributes:
        id: marks every process of this cluster, see `processes.MARKER`; in a joined Ray, whose
            processes others have started, only if those gave them this process's own mark.
        pid: the process that owns it: it serves until it is told to stop.
        pid_created_s: when that process began; a pid alone may be somebody else's by now.
        url: base URL of the OpenAI endpoint.
        agents: their names.
        ray_address: the Ray cluster it runs in.
        ray_token: that cluster's token, if kvrelay made it.
        owns_ray: whether kvrelay started that Ray cluster.
        temp_dir: everything this cluster writes; empty if Ray was joined.
        ready: whether it serves yet.
        shared_memory: names under /dev/shm that its processes use.
        decisions: where the decision log lies, on this machine as on the others; empty: none.
        metrics: pages on which the Ray nodes tell metrics; of those that were there at the start.
    """

    id: str
    pid: int
    pid_created_s: float
    url: str
    agents: tuple[str, ...]
    ray_address: str = ""
    ray_token: str = ""
    owns_ray: bool = True
    temp_dir: str = ""
    ready: bool = False
    shared_memory: tuple[str, ...] = ()
    decisions: str = ""
    metrics: tuple[str, ...] = ()

    def owner(self) -> psutil.Process | None:
        """The owning process; None if it has ended."""
        return living(self.pid, self.pid_created_s)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        folder = sessions_dir()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = folder / f".{self.id}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        draft.replace(folder / f"{self.id}.json")

    def remove(self) -> None:
        """Forget it; nothing happens if it is forgotten already."""
        folder = sessions_dir()
        for name in (f"{self.id}.json", f"{self.id}.log"):
            (folder / name).unlink(missing_ok=True)

    def log_path(self) -> Path:
        """Where a detached owner writes what it would print."""
        return sessions_dir() / f"{self.id}.log"


def sessions_dir() -> Path:
    """The folder of the session files."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "kvrelay"
    return cache_dir() / "run"


def cache_dir() -> Path:
    """What kvrelay keeps between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "kvrelay"


def make_temp_dir() -> str:
    """A new folder for all that a cluster writes."""
    root = tempfile.gettempdir()
    root = root if len(root) <= _LONGEST_TEMP_ROOT else "/tmp"
    return tempfile.mkdtemp(prefix="kvrelay-", dir=root)


def temp_environment(temp_dir: str) -> dict[str, str]:
    """Sends temporary files there: vLLM leaves its sockets where those go.

    The kernels that torch compiles stay where they would be otherwise, for the next start.
    """
    kernels = Path(tempfile.gettempdir()) / f"torchinductor_{psutil.Process().username()}"
    return {
        "TMPDIR": temp_dir,
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(kernels)),
    }


def load_sessions() -> list[Session]:
    """Every cluster on record, oldest first; files of another version are skipped."""
    known = {field.name for field in fields(Session)}
    sessions = []
    for path in sessions_dir().glob("*.json"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(content, dict) or set(content) != known:
            continue
        for name in ("agents", "shared_memory", "metrics"):
            content[name] = tuple(content[name])
        sessions.append(Session(**content))
    return sorted(sessions, key=lambda session: session.pid_created_s)
