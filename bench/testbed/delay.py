"""The length of the wire: what one TUN device gives out, another one takes in, later.

    python delay.py FIRST SECOND    descriptors of both devices

Run by `bridge.py`, on Python alone. Each line on standard input is the delay of both directions
from then on, in seconds; when the input ends, so does the program, and the devices with it.

A turn of its loop takes in what has come and hands out what is due, about twice a packet. Packets
are up to 64 KiB, which the kernel cuts into frames for neither side (see `bridge.py`).
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections import deque

PACKET_BYTES = 10 + 2**16  # struct virtio_net_hdr, then the longest IPv4 packet
_CONTROL = 0


def carry(first: int, second: int) -> None:
    """Carry packets both ways until the input ends."""
    delay_s = 0.0
    spare: list[bytearray] = []  # fresh memory for every packet would cost more than the rest
    # By where they came in, in order: when each arrives, and its memory and length.
    under_way: dict[int, deque[tuple[float, bytearray, int]]] = {first: deque(), second: deque()}
    ways = ((under_way[first], second), (under_way[second], first))
    while True:
        due_s = min((queue[0][0] for queue, _ in ways if queue), default=None)
        wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        ready, _, _ = select.select((_CONTROL, first, second), (), (), wait_s)
        now_s = time.monotonic()
        for source in ready:
            if source == _CONTROL:
                lines = os.read(_CONTROL, 4096).split()
                if not lines:
                    return
                delay_s = float(lines[-1])
                continue
            buffer = spare.pop() if spare else bytearray(PACKET_BYTES)
            num_bytes = os.readv(source, (buffer,))
            under_way[source].append((now_s + delay_s, buffer, num_bytes))
        for queue, target in ways:
            while queue and queue[0][0] <= now_s:
                _, buffer, num_bytes = queue.popleft()
                with contextlib.suppress(OSError):  # the device is down: the packet is lost
                    os.write(target, memoryview(buffer)[:num_bytes])
                spare.append(buffer)


def main() -> None:
    """Be the wire."""
    # A wire does not wait for a core. Where that is refused it is late under load, and the round
    # trips that are measured beside the figures tell so.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    first, second = map(int, sys.argv[1:])
    carry(first, second)


if __name__ == "__main__":
    main()
