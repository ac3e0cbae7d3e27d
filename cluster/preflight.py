"""What must hold before anything is started, each with its remedy."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Collection
from pathlib import Path

from kvrelay.cluster.config import NODE_LABEL, AgentConfig, ClusterConfig, HttpConfig
from kvrelay.cluster.errors import LifecycleError
from kvrelay.relay.memory import available_bytes

GIB = 2**30
# Measured on CPU: an engine's three processes without weights and KV cache, and Ray itself.
ENGINE_BYTES = int(2.2 * GIB)
RAY_BYTES = int(1.5 * GIB)
OBJECT_STORE_BYTES = 256 * 2**20
# An engine's message queues are sparse files of 400 MiB of which little is ever touched.
_SHM_BYTES_PER_ENGINE = 64 * 2**20


def check_port(http: HttpConfig) -> None:
    """Fail if nobody could listen there.

    Raises:
        LifecycleError: the port is taken, or the host is not this machine's.
    """
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                cause = f"port {http.port} is in use; choose another with --port or http.port, "
                raise LifecycleError(cause + "or end what runs there (kvrelay status)") from None
            cause = f"cannot listen on {http.host}:{http.port}: {error.strerror}"
            raise LifecycleError(f"{cause}; check http.host and http.port") from None


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_memory(config: ClusterConfig, available: int | None = None) -> None:
    """Fail if the CPU engines and the store cannot fit.

    Args:
        config: what is to run on this machine.
        available: bytes of memory; default: what the machine and its container have left.

    Raises:
        LifecycleError: naming what is needed, what is there and what to lower.
    """
    needed = needed_bytes(config)
    free = available_bytes() if available is None else available
    if needed > free:
        raise LifecycleError(
            f"about {needed / GIB:.1f} GiB of memory are needed for {len(config.agents)} agents "
            f"and the KV store, but {free / GIB:.1f} GiB are free; run fewer agents, or lower "
            "relay.capacity_bytes, relay.encoded_bytes or engine_kwargs.kv_cache_memory_bytes"
        )


def needed_bytes(config: ClusterConfig) -> int:
    """Rough memory of Ray, the store and every CPU engine at start."""
    engines = sum(_engine_bytes(config, a) for a in config.agents if a.num_gpus == 0)
    relays = any(config.relays(agent) for agent in config.agents)
    store = config.relay.capacity_bytes + config.relay.encoded_bytes
    return RAY_BYTES + engines + (store if relays else 0)


def _engine_bytes(config: ClusterConfig, agent: AgentConfig) -> int:
    cache = config.engine_kwargs(agent).get("kv_cache_memory_bytes", 0)
    weights = _weight_bytes(config.models[agent.model].source)
    return config.num_replicas(agent) * (ENGINE_BYTES + int(cache) + weights)


def _weight_bytes(source: str) -> int:
    """Weights of a model in a local folder; 0 where the size is not known beforehand."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def check_shared_memory(config: ClusterConfig, folder: Path = Path("/dev/shm")) -> None:
    """Fail if /dev/shm is too small for Ray's objects and the engines' queues.

    Raises:
        LifecycleError: with the container option that enlarges it.
    """
    engines = sum(config.num_replicas(agent) for agent in config.agents)
    needed = OBJECT_STORE_BYTES + engines * _SHM_BYTES_PER_ENGINE
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if needed > free:
        raise LifecycleError(
            f"{folder} has {free / 2**20:.0f} MiB free, but about {needed / 2**20:.0f} MiB are "
            "needed; in a container start it with --shm-size=2g (Kubernetes: an emptyDir of "
            "medium Memory there), elsewhere: mount -o remount,size=2g /dev/shm"
        )


def local_cpus(config: ClusterConfig) -> float:
    """Ray CPUs that the agents reserve together; more than there are cores is possible."""
    reserved = sum(a.num_cpus * config.num_replicas(a) for a in config.agents)
    return max(reserved, os.cpu_count() or 1)


def check_nodes(config: ClusterConfig, labels: Collection[str]) -> None:
    """Fail if a `node` of the configuration is none of the Ray cluster's.

    Ray itself would wait for such a node without end.

    Args:
        config: what is to run there.
        labels: the nodes' values of `NODE_LABEL`; none in a Ray that kvrelay starts.

    Raises:
        LifecycleError: naming every field, and how a node gets its label.
    """
    asked = {f"agents[{i}].node": agent.node for i, agent in enumerate(config.agents)}
    asked["http.node"] = config.http.node
    if missing := {path: node for path, node in asked.items() if node and node not in labels}:
        fields = ", ".join(f"{path} '{node}'" for path, node in missing.items())
        known = f"there are {', '.join(sorted(labels))}" if labels else "no node has one"
        raise LifecycleError(
            f"{fields}: no Ray node carries this label ({known}); start one by `ray start "
            f"--labels {NODE_LABEL}=VALUE` and name its cluster in RAY_ADDRESS"
        )
