"""Names and addresses of one test bed, and the commands that make and remove its network.

    namespace kvrelay-ID-1                      namespace kvrelay-ID-2
    lo, kvrID1 198.18.x.y  <------ veth ------>  kvrID2 198.18.x.y+1, lo
        kvrID1t            <---- bridge.py ---->  kvrID2t

The second way is made when a link has a round-trip time, and routes say which one TCP takes. They
stand in a table of their own and are for the subnet: UCX connects by an interface only if no route
in any table, to fewer addresses, goes by another one. So one to the other node alone goes by the
veth pair.
Both ends are made inside their namespaces: the machine's own network never sees them, so that
nothing in it can collide. The addresses are nevertheless each bed's own, since Ray finds nodes by
looking through the processes of the whole machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

PREFIX = "kvrelay-"
# Set aside for benchmarks of networks: RFC 2544, appendix C.2.2.
ADDRESSES = ipaddress.ip_network("198.18.0.0/15")
_SUBNET_BITS = 30
_TCP_TABLE = "100"
NUM_SUBNETS = 2 ** (_SUBNET_BITS - ADDRESSES.prefixlen)


@dataclass(frozen=True, slots=True)
class Node:
    """One end: a network namespace with a loopback and its end of the wire.

    Attributes:
        label: the Ray node's label, what a configuration calls `agents[].node`.
        namespace: as `ip netns` knows it.
        device: its interface at the veth pair, which has the address; at most 15 characters.
        tunnel: its interface at the bridge, without an address of its own.
        address: its IPv4 address.
    """

    label: str
    namespace: str
    device: str
    tunnel: str
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """Both ends; the first one is the Ray head, and where drivers and clients are."""

    first: Node
    second: Node

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both, in order."""
        return self.first, self.second

    @property
    def subnet(self) -> str:
        """Both addresses, as a network."""
        address = f"{self.first.address}/{_SUBNET_BITS}"
        return str(ipaddress.ip_network(address, strict=False))

    @classmethod
    def of(cls, name: str, subnet: int) -> Network:
        """The network of a bed: names by its name (6 characters), addresses by number."""
        base = int(ADDRESSES.network_address) + subnet * 2 ** (32 - _SUBNET_BITS)
        first, second = (
            Node(
                label=f"node-{i}",
                namespace=f"{PREFIX}{name}-{i}",
                device=f"kvr{name}{i}",
                tunnel=f"kvr{name}{i}t",
                address=str(ipaddress.ip_address(base + i)),
            )
            for i in (1, 2)
        )
        return cls(first, second)

    def make_commands(self) -> list[list[str]]:
        """Make the namespaces and the wire; interfaces up, loopbacks too."""
        first, second = self.nodes
        wire = ["ip", "link", "add", first.device, "netns", first.namespace, "type", "veth"]
        wire += ["peer", "name", second.device, "netns", second.namespace]
        commands = [["ip", "netns", "add", node.namespace] for node in self.nodes]
        commands.append(wire)
        for node in self.nodes:
            inside = ["ip", "-n", node.namespace]
            address = f"{node.address}/{_SUBNET_BITS}"
            commands.append([*inside, "address", "add", address, "dev", node.device])
            commands.append([*inside, "link", "set", "dev", "lo", "up"])
            commands.append([*inside, "link", "set", "dev", node.device, "up"])
            commands.append([*inside, "rule", "add", "ipproto", "tcp", "lookup", _TCP_TABLE])
        return commands

    def route_commands(self, bridged: bool) -> list[list[str]]:
        """Send TCP to the other node by the bridge, or by the veth pair."""
        commands = []
        for node, other in (self.nodes, self.nodes[::-1]):
            ways: list[tuple[str, str, list[str]]] = [(f"{other.address}/32", node.device, [])]
            device = node.tunnel if bridged else node.device
            ways.append((self.subnet, device, ["table", _TCP_TABLE]))
            for target, by, table in ways:
                route = ["route", "replace", target, "dev", by, "src", node.address, *table]
                commands.append(["ip", "-n", node.namespace, *route])
        return commands

    def remove_commands(self, existing: Collection[str]) -> list[list[str]]:
        """Remove what is left of it, given which namespaces exist.

        The wire first: a namespace lives on, and would keep it, while a process is in it.
        """
        commands = []
        for node in self.nodes:
            if node.namespace in existing:
                commands.append(["ip", "-n", node.namespace, "link", "del", "dev", node.device])
                commands.append(["ip", "netns", "delete", node.namespace])
        return commands
