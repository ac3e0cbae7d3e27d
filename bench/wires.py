"""What lies between B's node and the other one, as `bench topology` needs it.

`BedWire` is the test bed's: it can be made into any link, and its interfaces count what passes.
`ClusterWire` is whatever connects two nodes of a running Ray cluster: it is as it is and nobody
counts, so a relay counts if its record attests a path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from kvrelay.bench.errors import BenchError, WrongPath
from kvrelay.bench.testbed import goodput, stream
from kvrelay.bench.testbed.bed import Bed
from kvrelay.bench.testbed.goodput import Goodput
from kvrelay.bench.testbed.link import Link
from kvrelay.cluster.config import NODE_LABEL
from kvrelay.relay.transports.ucx import UNKNOWN

CLUSTER = Link("cluster", None)
_ASK_TIMEOUT_S = 60.0
_READ_TIMEOUT_S = 600.0


class Wire(ABC):
    """The way between the two nodes. B's is the first of them."""

    @abstractmethod
    def set_link(self, link: Link) -> None:
        """Be this link from now on."""

    @abstractmethod
    def goodput(self) -> Goodput:
        """What a plain TCP stream carries from the other node to B's.

        Raises:
            BenchError: it broke off.
        """

    @abstractmethod
    def round_trips_s(self) -> Sequence[float]:
        """How long a byte takes to be asked for and to come, by plain TCP.

        Raises:
            BenchError: the stream broke off.
        """

    def received_bytes(self, there: bool = False) -> int | None:
        """What has come in at B's node so far, or `there`; None where nobody counts."""
        return None

    def bridge_cpu_s(self) -> float | None:
        """CPU seconds so far of the process that makes the link long; None if there is none."""
        return None

    @abstractmethod
    def check(
        self,
        link: Link,
        record: Mapping[str, Any],
        received_bytes: int | None,
        there: bool = False,
    ) -> str:
        """The path of a relay, after a check that it went over this link.

        Args:
            link: what the wire was.
            record: the relay's own.
            received_bytes: what `received_bytes` has grown by meanwhile, at the end that has read.
            there: whether the other node has read, not B's.

        Raises:
            WrongPath: it did not, or nobody can tell.
        """


class BedWire(Wire):
    """The wire of a test bed."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    def set_link(self, link: Link) -> None:
        self._bed.set_link(link)

    def goodput(self) -> Goodput:
        return self._bed.goodput()

    def round_trips_s(self) -> Sequence[float]:
        return self._bed.round_trips_s()

    def received_bytes(self, there: bool = False) -> int:
        return self._bed.counters()[there].rx_bytes

    def bridge_cpu_s(self) -> float | None:
        return self._bed.bridge_cpu_s()

    def check(
        self,
        link: Link,
        record: Mapping[str, Any],
        received_bytes: int | None,
        there: bool = False,
    ) -> str:
        device = self._bed.network.nodes[there].device
        check_path(link.name, device, record, received_bytes or 0)
        return str(record["path"]).removesuffix(f"/{device}")


class ClusterWire(Wire):
    """What connects two nodes of the Ray cluster that this process has joined."""

    def __init__(self, first: str, second: str) -> None:
        """Take the Ray ids of B's node and of the other one."""
        self._first, self._second = first, second

    def set_link(self, link: Link) -> None:
        """It is as it is."""

    def goodput(self) -> Goodput:
        num_bytes = goodput.MAX_BYTES
        times_s = self._read(num_bytes, goodput.REPEATS)
        return Goodput(tuple(8 * num_bytes / seconds for seconds in times_s), num_bytes)

    def round_trips_s(self) -> Sequence[float]:
        return self._read(1, goodput.ROUND_TRIPS)

    def check(
        self,
        link: Link,
        record: Mapping[str, Any],
        received_bytes: int | None,
        there: bool = False,
    ) -> str:
        return check_attested(record)

    def _read(self, num_bytes: int, repeats: int) -> list[float]:
        """Seconds of reads of the plain stream, whose ends run where the two nodes are."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Affinity

        def place(node_id: str) -> dict[str, Any]:
            return {"num_cpus": 0, "scheduling_strategy": Affinity(node_id, soft=False)}

        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        address = addresses[self._second]
        sender = ray.remote(stream.Sender).options(**place(self._second)).remote(address)
        try:
            port = ray.get(sender.port.remote(), timeout=_ASK_TIMEOUT_S)
            sender.serve.remote()
            receive = ray.remote(stream.receive).options(**place(self._first))
            times_s = receive.remote(address, port, num_bytes, repeats)
            return list(ray.get(times_s, timeout=_READ_TIMEOUT_S))
        except (ray.exceptions.RayError, TimeoutError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise BenchError(f"no plain TCP stream between the nodes: {reason}") from None
        finally:
            ray.kill(sender)


def node_ids(labels: tuple[str, str]) -> tuple[str, str]:
    """Ray's ids of the nodes with these values of the label `kvrelay/node`.

    Raises:
        BenchError: a label names none or several, or this process is not on the first node.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    found = []
    for label in labels:
        ids = [node["NodeID"] for node in alive if node["Labels"].get(NODE_LABEL) == label]
        if len(ids) != 1:
            raise BenchError(f"{len(ids)} nodes are labelled {NODE_LABEL}={label}, expected one")
        found += ids
    here, there = found
    if ray.get_runtime_context().get_node_id() != here:
        raise BenchError(
            f"this is not the node labelled {NODE_LABEL}={labels[0]}: run it there, so that only "
            "the relay goes between the nodes"
        )
    return here, there


def check_path(
    link: str, device: str | None, record: Mapping[str, Any], received_bytes: int
) -> None:
    """Fail if a relay did not go where its row would say.

    Args:
        link: its name.
        device: B's end of the wire; None for the same node.
        record: the relay's own.
        received_bytes: what that end has received meanwhile.

    Raises:
        WrongPath: with what was found, and how to hold it to the wire.
    """
    path = record["path"]
    if device is None:
        if record["load_path"] != "arena":
            raise WrongPath(f"a relay on the same node came from '{record['load_path']}'")
        return
    if path not in {"tcp", f"tcp/{device}", "plasma/tcp"}:
        raise WrongPath(
            f"a relay over link {link} took path '{path or 'none'}' by transport "
            f"'{record['transport'] or record['load_path']}', expected tcp: its figures would be "
            "worth nothing (UCX_TLS=tcp holds UCX to the wire)"
        )
    if received_bytes < record["wire_bytes"] or record["wire_bytes"] <= 0:
        raise WrongPath(
            f"a relay over link {link} says that {record['wire_bytes']:,} bytes crossed, but the "
            f"interface has received {received_bytes:,}: they went past the wire"
        )


def check_attested(record: Mapping[str, Any]) -> str:
    """The path that a relay between nodes attests, whatever it is.

    Raises:
        WrongPath: it came from no other node, or by a path that nobody knows.
    """
    if record["load_path"] != "nodes" or record["wire_bytes"] <= 0:
        raise WrongPath(f"a relay between nodes came from '{record['load_path']}'")
    path = str(record["path"])
    if path in {"", UNKNOWN}:
        raise WrongPath(
            f"a relay by transport '{record['transport']}' does not know its path: its figures "
            "would be worth nothing (`kvrelay doctor` looks at every link)"
        )
    return path
