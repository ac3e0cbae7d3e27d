"""One party of a transfer, for the tests of transports: in this process, in one of its own, or
in a Ray actor. Offsets and sizes are within its one region of shared memory.
"""

import hashlib
import importlib
import itertools
import mmap
import os
import random
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from kvrelay.relay.transports.base import Offer, Span, Transfer, TransferError, Transport

KINDS = {
    "memory": ("kvrelay.relay.transports.memory", "MemoryTransport"),
    "nixl": ("kvrelay.relay.transports.nixl", "NixlTransport"),
    "plasma": ("kvrelay.relay.transports.plasma", "PlasmaTransport"),
    "isolated": ("kvrelay.relay.transports.isolated", "IsolatedTransport"),
}
Part = tuple[int, int]  # offset, size


def content(offset: int, size: int, seed: int) -> bytes:
    """What `fill` puts there."""
    return random.Random(f"{seed}:{offset}:{size}").randbytes(size)


class Peer:
    def __init__(self, kind: str, region_bytes: int) -> None:
        module, name = KINDS[kind]
        self.transport: Transport = getattr(importlib.import_module(module), name)()
        self.others: list[Peer] = []  # in this process, moved on with it
        self._fd = os.memfd_create("transfer-peer")
        os.ftruncate(self._fd, region_bytes)
        self.memory = np.frombuffer(mmap.mmap(self._fd, region_bytes), np.uint8)
        self.memory[:] = 0
        self.base = int(self.memory.ctypes.data)
        self.transport.register(Span(self.base, region_bytes))
        self._offers: dict[int, Offer] = {}
        self._reads: dict[int, Transfer] = {}
        self._numbers = itertools.count()

    # Memory

    def fill(self, parts: list[Part], seed: int) -> None:
        for offset, size in parts:
            self.memory[offset : offset + size] = np.frombuffer(
                content(offset, size, seed), np.uint8
            )

    def erase(self, byte: int) -> None:
        self.memory[:] = byte

    def differing(self, byte: int) -> int:
        """How many bytes of the region are not `byte`."""
        return int(np.count_nonzero(self.memory != byte))

    def digests(self, parts: list[Part]) -> list[bytes]:
        return [hashlib.sha256(self.memory[o : o + n].tobytes()).digest() for o, n in parts]

    # Source

    def offer(self, parts: list[Part]) -> Offer:
        offer = self.transport.offer(self._spans(parts))
        self._offers[offer.number] = offer
        return offer

    def withdraw(self, offer: Offer) -> None:
        self._offers.pop(offer.number, None)
        self.transport.withdraw(offer)

    # Reader

    def read(self, offer: Offer, parts: list[Part]) -> int:
        number = next(self._numbers)
        self._reads[number] = self.transport.read(offer, self._spans(parts))
        return number

    def poll(self, number: int) -> int | str:
        """The leading count, or why no more will land."""
        try:
            return self._reads[number].poll()
        except TransferError as error:
            return str(error)

    def wait(
        self, number: int, count: int, timeout_s: float = 20.0
    ) -> tuple[list[int], str | None]:
        """Poll until so many spans have landed; the different counts seen, and the error."""
        seen: list[int] = []
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.step()
            told = self.poll(number)
            if isinstance(told, str):
                return seen, told
            if not seen or told != seen[-1]:
                seen.append(told)
            if told >= count:
                return seen, None
            time.sleep(0.0002)
        return seen, "timeout"

    def fetch(self, offer: Offer, parts: list[Part], repeats: int = 1) -> list[float]:
        """Read to the end, again and again; seconds of each."""
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            number = self.read(offer, parts)
            _, error = self.wait(number, len(parts))
            took.append(time.perf_counter() - start)
            if error:
                raise TransferError(error)
            self.drop(number)
        return took

    def cancel(self, number: int) -> None:
        self._reads[number].cancel()

    def quiet(self, number: int) -> bool:
        return self._reads[number].quiet

    def wait_quiet(self, number: int, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.step()
            self.poll(number)
            if self._reads[number].quiet:
                return True
            time.sleep(0.0002)
        return False

    def drop(self, number: int) -> None:
        assert self._reads.pop(number).quiet

    # Both

    def path(self, offer: Offer) -> str:
        return self.transport.path(offer)

    def warm_up(self) -> None:
        self.transport.warm_up()

    def usage(self) -> dict[str, float]:
        """Of this process and its children."""
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        times = [process.cpu_times() for process in family]
        return {
            "cpu_s": sum(time.user + time.system for time in times),
            "rss_bytes": sum(process.memory_info().rss for process in family),
            "fds": sum(process.num_fds() for process in family),
        }

    def execute(self, source: str, **variables: Any) -> Any:
        """Run a test's code in here; the name `result` is the answer."""
        scope: dict[str, Any] = {"peer": self, **variables}
        exec(source, scope)
        return scope.get("result")

    @property
    def busy(self) -> bool:
        return bool(self._offers)

    def step(self) -> None:
        for peer in (self, *self.others):
            if peer.busy:
                peer.transport.progress()

    def close(self) -> None:
        self.transport.close()

    def _spans(self, parts: list[Part]) -> list[Span]:
        return [Span(self.base + offset, size) for offset, size in parts]


def main() -> None:
    """Serve one test over a socket; `transfer_hosts.ProcessHost` is its other end."""
    connection = Connection(int(sys.argv[1]))
    peer = Peer(sys.argv[2], int(sys.argv[3]))
    connection.send(("ok", None))
    while True:
        if not connection.poll(0.0002 if peer.busy else None):
            peer.step()
            continue
        try:
            name, args, kwargs = connection.recv()
        except EOFError:
            peer.close()
            return
        try:
            connection.send(("ok", getattr(peer, name)(*args, **kwargs)))
        except Exception as error:
            connection.send(("error", error))


if __name__ == "__main__":
    main()
