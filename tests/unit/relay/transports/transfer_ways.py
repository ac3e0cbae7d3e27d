"""Over which transports, and which of their ways, the suites of this folder run."""

from dataclasses import dataclass
from typing import Any

import pytest
from transfer_hosts import Host, LocalHost, ProcessHost, RayHost

REGION_BYTES = 16 << 20


@dataclass(frozen=True)
class Way:
    """A transport, where its parties live, and what UCX may use."""

    kind: str
    processes: bool = False
    tls: str | None = None  # None leaves it to UCX

    def __str__(self) -> str:
        return "-".join([self.kind, *([self.tls] if self.tls else [])])

    def host(self, prefix: tuple[str, ...] = ()) -> Host:
        if self.kind == "plasma":
            return RayHost(self.kind, REGION_BYTES)
        if not self.processes:
            return LocalHost(self.kind, REGION_BYTES)
        return ProcessHost(self.kind, REGION_BYTES, {"UCX_TLS": self.tls}, prefix)


def _ways(*ways: Way) -> list[Any]:
    """As parameters; what starts processes is slow."""
    return [
        pytest.param(way, id=str(way), marks=[] if way.kind == "memory" else pytest.mark.slow)
        for way in ways
    ]


NIXL_TCP, ISOLATED_TCP = Way("nixl", True, "tcp"), Way("isolated", True, "tcp")
ALL_WAYS = _ways(
    Way("memory"), NIXL_TCP, Way("nixl", True), ISOLATED_TCP, Way("isolated", True), Way("plasma")
)
PROCESS_WAYS = _ways(NIXL_TCP, ISOLATED_TCP)


@dataclass
class Pair:
    way: Way
    source: Any
    reader: Any
