"""What is known of a test bed while it exists: one file each, so that a killed one is removed."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from kvrelay.bench.testbed.network import NUM_SUBNETS, Network
from kvrelay.cluster.processes import living
from kvrelay.cluster.session import make_temp_dir, sessions_dir

_NAME_BYTES = 3


@dataclass(frozen=True, slots=True)
class BedRecord:
    """One test bed, written down before anything of it is made.

    Attributes:
        id: marks its processes, see `processes.MARKER`.
        name: in the names of its namespaces and interfaces; 6 characters.
        subnet: number of its address range.
        pid, pid_created_s: the process that owns it.
        temp_dir: what its Ray nodes write.
    """

    id: str
    name: str
    subnet: int
    pid: int
    pid_created_s: float
    temp_dir: str

    @classmethod
    def new(cls) -> BedRecord:
        """A bed of this process; its address range is no other's on record."""
        taken = {record.subnet for record in load_records()}
        while (subnet := secrets.randbelow(NUM_SUBNETS)) in taken:
            pass
        return cls(
            id=secrets.token_hex(8),
            name=secrets.token_hex(_NAME_BYTES),
            subnet=subnet,
            pid=os.getpid(),
            pid_created_s=psutil.Process().create_time(),
            temp_dir=make_temp_dir(),
        )

    @property
    def network(self) -> Network:
        """Its names and addresses."""
        return Network.of(self.name, self.subnet)

    @property
    def abandoned(self) -> bool:
        """Whether its owner has ended without removing it."""
        return living(self.pid, self.pid_created_s) is None

    def save(self) -> None:
        """Write the file, whole or not at all."""
        folder = records_dir()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = folder / f".{self.id}"
        draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
        draft.replace(folder / f"{self.id}.json")

    def remove(self) -> None:
        """Forget it."""
        (records_dir() / f"{self.id}.json").unlink(missing_ok=True)


def records_dir() -> Path:
    """The folder of the files; `sessions_dir` says where."""
    return sessions_dir() / "testbeds"


def load_records() -> list[BedRecord]:
    """Every bed on record; files of another version are skipped."""
    known = {field.name for field in fields(BedRecord)}
    records = []
    for path in records_dir().glob("*.json"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and set(content) == known:
            records.append(BedRecord(**content))
    return records
