"""What the test bed does to the machine: commands of iproute2, and entering a namespace."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed.network import Node

NETNS_DIR = Path("/var/run/netns")
_CLONE_NEWNET = 0x40000000  # <linux/sched.h>
_NEEDED = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}  # <linux/capability.h>
_COMMAND_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes that an interface has received and sent since it was made, headers included."""

    rx_bytes: int
    tx_bytes: int


def unavailable(status: Path = Path("/proc/self/status")) -> str | None:
    """Why there can be no test bed here, with the remedy; None if there can."""
    remedy = "run it as root (sudo), in a container with --privileged"
    if os.geteuid() != 0:
        return f"two nodes on one machine need network namespaces, hence root; {remedy}"
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    effective = int(fields["CapEff"], 16)
    if lacking := [name for bit, name in _NEEDED.items() if not effective >> bit & 1]:
        return f"network namespaces need {' and '.join(lacking)}; {remedy}"
    if absent := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{' and '.join(absent)} not found; install iproute2"
    return None


def run(command: Sequence[str]) -> str:
    """Run a command to its end; its standard output.

    Raises:
        BenchError: it failed, with its own last line.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_COMMAND_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C is for us: half a command would leave half a network
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {error.returncode}"
        raise BenchError(f"`{' '.join(command)}` failed: {reason}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"`{' '.join(command)}` failed: {error}") from None
    return done.stdout


def namespaces() -> set[str]:
    """Names of the network namespaces that exist."""
    return {path.name for path in NETNS_DIR.iterdir()} if NETNS_DIR.is_dir() else set()


def counters(namespace: str, device: str) -> Counters:
    """What has passed an interface.

    Raises:
        BenchError: it does not exist.
    """
    command = ["ip", "-n", namespace, "-s", "-j", "link", "show", "dev", device]
    stats = json.loads(run(command))[0]["stats64"]
    return Counters(stats["rx"]["bytes"], stats["tx"]["bytes"])


@contextlib.contextmanager
def entered(node: Node) -> Iterator[None]:
    """This thread is in the node's network for the time of the block.

    Sockets, threads and processes made meanwhile stay there. `/sys` still shows the network
    that the thread came from: what reads interfaces there (UCX does) is to be started by
    `ip netns exec`.

    Raises:
        BenchError: the namespace is gone, or may not be entered.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(NETNS_DIR / node.namespace)
        try:
            yield
        finally:
            _setns(own)
    finally:
        os.close(own)


def _enter(path: Path) -> None:
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(there)
        finally:
            os.close(there)
    except OSError as error:
        raise BenchError(f"cannot enter {path.name}: {error.strerror}") from error


def _setns(descriptor: int) -> None:
    """setns(2), which Python itself has since 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
