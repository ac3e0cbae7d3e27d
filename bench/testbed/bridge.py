"""A second way between the nodes that takes time: the kernel's `netem` is not in every kernel.

    kvrID1 <------------ veth ------------> kvrID2      a link without a round-trip time
    kvrID1t <-- TUN -- delay.py -- TUN --> kvrID2t      a link with one

Which way is taken is a matter of routes: both nodes keep their addresses, so connections outlive
the change, and what listens at an address or is bound to `kvrID1` need not know. The rate is
that of `tc` either way, at the end that sends.

A TUN device would hand out frames of 1500 bytes, 8,000 a second at 100 Mbit/s. With a
`virtio_net_hdr` before each packet it hands out what TCP gave it, up to 64 KiB and without
checksum, as a veth pair does: the bridge has a few hundred packets a second to carry.
Source: Documentation/networking/tuntap.rst, <linux/if_tun.h>, <linux/virtio_net.h>.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import delay, system
from kvrelay.bench.testbed.network import Network, Node
from kvrelay.cluster.processes import MARKER

TUN = Path("/dev/net/tun")
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 0x01, 0x02, 0x04
_END_TIMEOUT_S = 5.0


class Bridge:
    """Both devices, and the process between them. They go when it goes."""

    def __init__(self, network: Network, bed_id: str) -> None:
        """Make them; nothing is sent there until routes say so.

        Raises:
            BenchError: there can be none here, with the remedy.
        """
        if reason := unavailable():
            raise BenchError(reason)
        ends: list[int] = []
        try:
            for node in network.nodes:
                ends.append(_open(node))
            program = [sys.executable, "-I", "-S", str(Path(delay.__file__))]
            self._process = subprocess.Popen(
                [*program, *map(str, ends)],
                stdin=subprocess.PIPE,
                env={MARKER: bed_id},
                cwd="/",
                pass_fds=ends,
                start_new_session=True,  # Ctrl-C is for us
            )
        finally:
            for end in ends:
                os.close(end)
        try:
            for node in network.nodes:
                system.run(["ip", "-n", node.namespace, "link", "set", "dev", node.tunnel, "up"])
        except BaseException:
            self.close()
            raise

    def set_delay(self, seconds: float) -> None:
        """How long either direction takes from now on.

        Raises:
            BenchError: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{seconds:.9f}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise BenchError(f"the bridge between the nodes has ended: {error}") from None

    def cpu_s(self) -> float:
        """CPU seconds of the process so far: its own, and the kernel's for its packets.

        Raises:
            BenchError: the process has ended: what went between the nodes did not pass it.
        """
        if self._process.poll() is not None:
            raise BenchError("the bridge between the nodes has ended; start again")
        # clock_getcpuclockid(3), which Python lacks. The times in /proc are in steps of 10 ms.
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def close(self) -> None:
        """End the process, and with it the devices."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def unavailable() -> str | None:
    """Why no link can have a round-trip time here, with the remedy; None if they can."""
    if os.access(TUN, os.R_OK | os.W_OK):
        return None
    return (
        f"a link with a round-trip time goes through {TUN}, which is not there or may not be "
        f"opened; modprobe tun, and start a container with --device {TUN}"
    )


def _open(node: Node) -> int:
    """A descriptor of the node's device, which exists as long as somebody has it open."""
    with system.entered(node):  # a device is made in the network in which the file was opened
        try:
            end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BenchError(f"cannot open {TUN}: {error.strerror}") from None
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", node.tunnel.encode(), flags))
        fcntl.ioctl(end, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    except OSError as error:
        os.close(end)
        raise BenchError(f"cannot make the device '{node.tunnel}': {error.strerror}") from None
    return end
