"""The two Ray nodes: the commands that start them, and what their processes are told."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kvrelay.bench.testbed.network import Network, Node
from kvrelay.cluster.config import NODE_LABEL
from kvrelay.cluster.processes import MARKER
from kvrelay.cluster.session import temp_environment

GCS_PORT = 6379  # each namespace has all ports to itself
OBJECT_STORE_BYTES = 2**30


def ray_address(network: Network) -> str:
    """What `RAY_ADDRESS` names."""
    return f"{network.first.address}:{GCS_PORT}"


def start_command(network: Network, node: Node, temp_dir: str, num_cpus: int) -> list[str]:
    """Start one node inside its namespace; the command returns when it has joined.

    By `ip netns exec`, which also gives it a `/sys` with its own interfaces only: UCX reads
    them there.
    """
    command = ["ip", "netns", "exec", node.namespace]
    command += [sys.executable, "-m", "ray.scripts.scripts", "start"]
    if node == network.first:
        command += ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"]
    else:
        command += [f"--address={ray_address(network)}"]
    return [
        *command,
        f"--node-ip-address={node.address}",
        f"--num-cpus={num_cpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temp_dir}",
        f"--labels={NODE_LABEL}={node.label}",
        "--disable-usage-stats",
    ]


def client_environment(
    network: Network, bed_id: str, token: str, base: Mapping[str, str]
) -> dict[str, str]:
    """What a driver in the first node's namespace is told, over the environment it has."""
    return {
        **base,
        MARKER: bed_id,
        "RAY_ADDRESS": ray_address(network),
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def node_environment(
    node: Node, bed_id: str, token: str, temp_dir: str, base: Mapping[str, str]
) -> dict[str, str]:
    """What the processes of a node inherit.

    UCX is held to the wire: it would see one machine and go through its memory. vLLM and gloo
    would look for the machine's own address, which is not in the namespace.
    """
    return {
        **{name: value for name, value in base.items() if name != "RAY_ADDRESS"},
        MARKER: bed_id,
        "RAY_AUTH_MODE": "token",  # `ray start` of a worker node does not turn it on by itself
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        **temp_environment(temp_dir),
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": node.device,
        "VLLM_HOST_IP": node.address,
        "GLOO_SOCKET_IFNAME": "lo",
    }
