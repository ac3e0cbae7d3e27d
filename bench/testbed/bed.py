"""The test bed: two namespaces, a wire between them, and a Ray node at either end.

    with two_nodes(parse_link("1gbit")) as bed:
        bed.start_ray()
        with bed.joined(), running(config) as session:
            ... agents with `node: node-1` and `node: node-2` ...
            bed.set_link(parse_link("100mbit-5ms"))

When the block is left, however that happens, nothing of it remains. What a killed process has
left is removed when the next test bed is made, or by `clear_leftovers`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import goodput, nodes, system
from kvrelay.bench.testbed.bridge import Bridge
from kvrelay.bench.testbed.goodput import Goodput
from kvrelay.bench.testbed.link import UNSHAPED, Link
from kvrelay.bench.testbed.network import Network, Node
from kvrelay.bench.testbed.record import BedRecord, load_records
from kvrelay.bench.testbed.system import Counters
from kvrelay.cluster.processes import (
    end_processes,
    marked_processes,
    remove_shared_memory,
    shared_memory_of,
)
from kvrelay.cluster.session import load_sessions

logger = logging.getLogger(__name__)
_RAY_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_POLL_S = 0.05


class Bed:
    """A test bed that exists; `two_nodes` makes it.

    Attributes:
        id: marks its processes, see `processes.MARKER`.
        network: names and addresses.
        link: how the wire is now.
        temp_dir: a folder that goes with it.
    """

    def __init__(self, record: BedRecord) -> None:
        self.id = record.id
        self.network: Network = record.network
        self.link = UNSHAPED
        self.temp_dir = Path(record.temp_dir)
        self._bridge: Bridge | None = None
        self._up = True
        self._token = secrets.token_hex(32)
        self._starts = 0

    def set_link(self, link: Link) -> None:
        """Give the wire another rate and length, in both directions, also while traffic flows.

        Raises:
            BenchError: the kernel does not let it be so.
        """
        if link.rtt_s:
            self._bridge = self._bridge or Bridge(self.network, self.id)
            self._bridge.set_delay(link.rtt_s / 2)
        for node in self.network.nodes:
            system.run(link.shape_command(node.namespace, _device(node, link)))
        if self._up:  # there are no routes by interfaces that are down; `set_up` comes back here
            for command in self.network.route_commands(bridged=link.rtt_s > 0):
                system.run(command)
        self.link = link

    def set_up(self, up: bool) -> None:
        """Mend the wire, or cut it."""
        node = self.network.second
        for device in (node.device, node.tunnel) if self._bridge else (node.device,):
            state = "up" if up else "down"
            system.run(["ip", "-n", node.namespace, "link", "set", "dev", device, state])
        self._up = up
        if up:
            self.set_link(self.link)  # an interface that goes down takes its routes along

    def counters(self) -> tuple[Counters, Counters]:
        """What has passed each end of the wire so far, as the link is now.

        Raises:
            BenchError: the bridge of a long link has ended.
        """
        first, second = (
            system.counters(node.namespace, _device(node, self.link)) for node in self.network.nodes
        )
        return first, second

    def bridge_cpu_s(self) -> float | None:
        """CPU seconds that the bridge has taken so far; None where the link needs none.

        Raises:
            BenchError: it has ended.
        """
        return self._bridge.cpu_s() if self._bridge and self.link.rtt_s else None

    def goodput(self, repeats: int = goodput.REPEATS) -> Goodput:
        """What a plain TCP stream carries from the second node to the first, as the link is now."""
        first, second = self.network.nodes
        return goodput.measure(second, first, goodput.read_bytes(self.link), repeats)

    def round_trips_s(self) -> list[float]:
        """How long a byte takes to be asked for and to come, by plain TCP."""
        first, second = self.network.nodes
        return goodput.round_trips_s(second, first)

    def start_ray(self, num_cpus: int | None = None) -> None:
        """Start the head at the first node and a worker node at the second.

        Args:
            num_cpus: Ray CPUs of each node; default: this machine's cores, which both share.

        Raises:
            BenchError: a node does not start.
        """
        for node in self.network.nodes:
            self.start_node(node, num_cpus)

    def start_node(self, node: Node, num_cpus: int | None = None) -> None:
        """Start Ray at one end, also again after `end_node`; the head is the first.

        Raises:
            BenchError: it does not start.
        """
        self._starts += 1
        folder = str(self.temp_dir / f"{node.label}.{self._starts}")
        Path(folder).mkdir()
        cpus = num_cpus or os.cpu_count() or 1
        command = nodes.start_command(self.network, node, folder, cpus)
        environment = nodes.node_environment(node, self.id, self._token, folder, os.environ)
        _start_node(node, command, environment, folder)

    def processes(self, node: Node) -> list[psutil.Process]:
        """The bed's processes in a node's network, this one excepted."""
        there = (system.NETNS_DIR / node.namespace).stat().st_ino
        found = []
        for process in marked_processes(self.id):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == there:
                    found.append(process)
        return found

    def raylet(self, node: Node) -> psutil.Process:
        """A node's Ray: when it is killed, what hangs on it follows by itself.

        Raises:
            BenchError: it does not run.
        """
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "raylet":
                    return process
        raise BenchError(f"Ray does not run at '{node.label}'")

    def end_node(self, node: Node) -> None:
        """End all processes of a node at once.

        Raises:
            BenchError: one does not end.
        """
        processes = self.processes(node)
        shared = shared_memory_of(processes)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        end_s = time.monotonic() + _END_TIMEOUT_S
        # Whoever has been killed may wait long for its parent, but has no environment any more.
        while left := self.processes(node):
            if time.monotonic() > end_s:
                pids = ", ".join(str(process.pid) for process in left)
                raise BenchError(f"processes {pids} of '{node.label}' do not end")
            time.sleep(_POLL_S)
        remove_shared_memory(shared)

    def environment(self) -> dict[str, str]:
        """For a process inside the first namespace that joins this Ray."""
        return nodes.client_environment(self.network, self.id, self._token, os.environ)

    def close(self) -> None:
        """End what this process keeps running for the bed."""
        if self._bridge is not None:
            self._bridge.close()

    def node_environment(self, node: Node) -> dict[str, str]:
        """For a process that is started at a node, see `system.entered`, beside its Ray."""
        folder = str(self.temp_dir)
        return nodes.node_environment(node, self.id, self._token, folder, os.environ)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """This thread is at the first node for the time of the block, and joins this Ray."""
        before = dict(os.environ)
        os.environ.update(self.environment())
        try:
            with system.entered(self.network.first):
                yield
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def two_nodes(link: Link = UNSHAPED) -> Iterator[Bed]:
    """Make the namespaces and the wire; all that was made of the bed is gone afterwards.

    Run it inside `signals_as_exit`, so that a signal leaves the block too.

    Raises:
        BenchError: it cannot be made here; with the remedy.
    """
    if reason := system.unavailable():
        raise BenchError(reason)
    clear_leftovers()
    record = BedRecord.new()
    try:
        record.save()
        for command in record.network.make_commands():
            system.run(command)
        with contextlib.closing(Bed(record)) as bed:
            bed.set_link(link)
            yield bed
    finally:
        _remove(record)


def clear_leftovers() -> int:
    """Remove the test beds of processes that were killed; how many there were."""
    abandoned = [record for record in load_records() if record.abandoned]
    for record in abandoned:
        _remove(record)
    return len(abandoned)


def _device(node: Node, link: Link) -> str:
    """Where a link comes in at a node."""
    return node.tunnel if link.rtt_s else node.device


def _start_node(
    node: Node, command: Sequence[str], environment: dict[str, str], folder: str
) -> None:
    try:
        subprocess.run(
            command,
            env=environment,
            cwd=folder,  # workers start there: not in a checkout, where a bare `agents` lies
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_RAY_START_TIMEOUT_S,
            start_new_session=True,
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr.strip() or error.stdout.strip()).splitlines()
        reason = lines[-1] if lines else f"exit status {error.returncode}"
        raise BenchError(f"the Ray node '{node.label}' did not start: {reason}") from None
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"the Ray node '{node.label}' did not start in {_RAY_START_TIMEOUT_S:.0f} s"
        ) from None


def _remove(record: BedRecord) -> None:
    """Remove all of a bed, whatever is left of it; what resists stays on record."""
    drivers = [session for session in load_sessions() if session.id == record.id]
    shared = shared_memory_of(marked_processes(record.id))
    shared.update(name for session in drivers for name in session.shared_memory)
    end_processes(record.id)
    remove_shared_memory(shared)
    for command in record.network.remove_commands(system.namespaces()):
        with contextlib.suppress(BenchError):  # what is gone already
            system.run(command)
    shutil.rmtree(record.temp_dir, ignore_errors=True)
    for session in drivers:
        session.remove()
    remaining = {node.namespace for node in record.network.nodes} & system.namespaces()
    if remaining or marked_processes(record.id):
        logger.warning("test bed %s could not be removed whole; the next one tries", record.name)
    else:
        record.remove()
