"""What may be left of nothing once an injection is over, on both nodes of a `faults_lab.Lab`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from kvrelay.bench.faults_lab import Lab
from kvrelay.bench.faults_sites import Site
from kvrelay.cluster.processes import marked_processes, shared_memory_of

_MEMFD = "/memfd:kvrelay-"
_SHM = Path("/dev/shm")
# Claims on blocks: the store's own counts, and an engine's.
_STORE_CLAIMS = ("leases", "reserved", "fetches", "loans", "quarantined")
_ENGINE_CLAIMS = ("requests", "tracked", "loading", "held", "leases")


@dataclass(frozen=True, slots=True)
class Left:
    """What has not been given back.

    Attributes:
        leases: leases, reservations, loans and other claims on blocks.
        num_bytes: bytes in use that hold no block, and shared memory that nobody owns.
        what: both in words.
    """

    leases: int
    num_bytes: int
    what: str


@dataclass(slots=True)
class Leftovers:
    """Looks for them; remembers which names in /dev/shm were the lab's."""

    lab: Lab
    _shm: set[str] = field(default_factory=set)

    def look(self) -> Left:
        """What is left now.

        Raises:
            BenchError: a store's integrity is broken; it says how.
        """
        claims: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for site in (self.lab.near, self.lab.far):
            stats = site.stats()
            label = site.node.label
            claims |= {f"{label} {name}": stats[name] for name in _STORE_CLAIMS}
            stride = site.sight().slab.geometry.stride_bytes
            sizes[f"{label} unsealed"] = stats["used_bytes"] - stats["blocks"] * stride
            sizes[f"{label} stale memory"] = self._stale_bytes(site)
        for name, replica in (("A", self.lab.a), ("B", self.lab.b)):
            state = replica.engine.state()
            claims |= {f"{name} {claim}": state[claim] for claim in _ENGINE_CLAIMS}
            slot_bytes = replica.site.sight().slab.geometry.slot_bytes
            sizes[f"{name} KV"] = state["used_blocks"] * slot_bytes
        sizes["/dev/shm"] = self._shm_bytes()
        found = {name: count for name, count in (claims | sizes).items() if count}
        return Left(
            sum(claims.values()),
            sum(sizes.values()),
            ", ".join(f"{count} {name}" for name, count in found.items()),
        )

    def caught(self) -> dict[str, int]:
        """Unforeseen errors that were caught so far, by the process that caught them."""
        found = {}
        for site in (self.lab.near, self.lab.far):
            found[f"store {site.pid()}"] = site.stats().get("faults", 0)
        for replica in (self.lab.a, self.lab.b):
            found[f"engine {replica.engine.process.pid}"] = replica.engine.state()["faults"]
        return found

    def note(self) -> None:
        """Remember what the lab's processes have in /dev/shm now."""
        self._shm |= shared_memory_of(marked_processes(self.lab.bed.id))

    def _stale_bytes(self, site: Site) -> int:
        """Memory of stores that are gone, which others on the node still map."""
        alive = set(memfds(site.pid()))
        return sum(
            num_bytes
            for process in self.lab.bed.processes(site.node)
            for inode, num_bytes in memfds(process.pid).items()
            if inode not in alive
        )

    def _shm_bytes(self) -> int:
        """Files that the lab's processes had in /dev/shm and that no process of it has now."""
        orphans = self._shm - shared_memory_of(marked_processes(self.lab.bed.id))
        total = 0
        for name in orphans:
            with contextlib.suppress(OSError):
                total += (_SHM / name).stat().st_size
        return total


def memfds(pid: int) -> dict[int, int]:
    """Shared memory of stores that a process maps: bytes by inode."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            columns = line.split(maxsplit=5)
            if len(columns) == 6 and columns[5].startswith(_MEMFD):
                start, end = (int(address, 16) for address in columns[0].split("-"))
                inode = int(columns[4])
                found[inode] = found.get(inode, 0) + end - start
    return found
