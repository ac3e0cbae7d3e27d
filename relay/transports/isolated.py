"""NIXL in a process of its own, so that the store outlives whatever happens to it.

Two faults of the library cannot be handled from within (UCX 1.21, NIXL 1.3.2, both tried):

- A reader that dies in the middle can end the *source's* process: UCX aborts when it cannot
  answer a read over TCP. Here it ends a mover; the store, and its arena, stay.
- A posted read cannot be taken back, so a source that stands still keeps its targets unusable.
  Here, after `PATIENCE_S`, the mover is killed: nothing writes after that.

Besides, serving other nodes does not wait for the store's interpreter. The mover holds no
state: a new one is started when one has gone, and what was under way has failed.
"""

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from kvrelay.relay.transports import mover
from kvrelay.relay.transports.base import (
    Offer,
    Span,
    Transfer,
    TransferError,
    Transport,
    offer_numbers,
    require_same_sizes,
)
from kvrelay.relay.transports.nixl import Ticket
from kvrelay.relay.transports.nixl_agent import load_bindings
from kvrelay.relay.transports.ucx import UNKNOWN

logger = logging.getLogger(__name__)
PATIENCE_S = 10.0
_START_TIMEOUT_S = 30.0
_REGISTER_TIMEOUT_S = 10.0
_MAX_PATHS = 1024


@dataclass(slots=True)
class _Region:
    """Shared memory here and in the mover; address 0 while the mover has not mapped it."""

    span: Span
    fd: int
    offset: int
    address: int = 0

    def translate(self, span: Span) -> Span | None:
        shift = span.address - self.span.address
        inside = shift >= 0 and shift + span.num_bytes <= self.span.num_bytes
        return Span(self.address + shift, span.num_bytes) if inside and self.address else None


class _Read(Transfer):
    """One read, as its mover reports it."""

    def __init__(self, owner: "IsolatedTransport", number: int, source: str) -> None:
        self.source = source  # its agent
        self._owner = owner
        self._number = number
        self._told = 0
        self._quiet = False
        self.moved = mover.Moved(number, 0, None, False, UNKNOWN)
        self.cancelled_s: float | None = None

    def poll(self) -> int:
        self._owner.hear()
        self._quiet = self.moved.quiet
        if self.moved.failure is not None and self._told == self.moved.landed:
            raise TransferError(self.moved.failure)
        self._told = self.moved.landed
        return self.moved.landed

    def cancel(self) -> None:
        if not self.moved.quiet and self.cancelled_s is None:
            self.cancelled_s = time.monotonic()
            self._owner.order(mover.Cancel(self._number))

    @property
    def quiet(self) -> bool:
        return self._quiet


class IsolatedTransport(Transport):
    """`NixlTransport`, moved into a child process; memory must be shared (a memfd)."""

    name = "nixl"

    def __init__(self) -> None:
        """Nothing is started yet.

        Raises:
            TransferError: NIXL is not installed.
        """
        load_bindings()
        self._regions: list[_Region] = []
        self._numbers = offer_numbers()
        self._offers: set[int] = set()
        self._reads: dict[int, _Read] = {}  # that are not quiet
        self._paths: OrderedDict[str, str] = OrderedDict()  # by the source's agent
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._running = False
        self._ready_by_s = 0.0
        self._failure: str | None = None  # for good: NIXL does not work here
        self._ticket: Ticket | None = None

    def warm_up(self) -> None:
        self._started()

    def register(self, region: Span) -> None:
        fd, offset = shared_file(region)
        known = _Region(region, fd, offset)
        self._regions.append(known)
        if self._process is not None:
            self._ready_by_s = max(self._ready_by_s, time.monotonic() + _REGISTER_TIMEOUT_S)
            self._send_region(known)

    def offer(self, spans: Sequence[Span]) -> Offer:
        self._started()
        theirs = self._translated(spans)
        if self._ticket is None:
            raise TransferError("no memory has been registered")
        number = next(self._numbers)
        self._offers.add(number)
        self.order(mover.Opened(number))
        return Offer(
            self.name, number, tuple(spans), Offer(self.name, number, theirs, self._ticket)
        )

    def withdraw(self, offer: Offer) -> None:
        if offer.number in self._offers:
            self._offers.discard(offer.number)
            self.order(mover.Withdrawn(offer.number))

    def read(self, offer: Offer, targets: Sequence[Span]) -> Transfer:
        require_same_sizes(offer, targets)
        self._started()
        theirs = self._translated(targets)
        number = next(self._numbers)
        read = self._reads[number] = _Read(self, number, offer.ticket.ticket.agent)
        self.order(mover.Read(number, offer.ticket, theirs))
        return read

    def progress(self) -> None:
        self.hear()

    def path(self, offer: Offer) -> str:
        """As the last read from that source went."""
        return self._paths.get(offer.ticket.ticket.agent, UNKNOWN)

    def close(self) -> None:
        self._end("the transport was closed")
        for region in self._regions:
            os.close(region.fd)
        self._regions.clear()

    # The mover

    def order(self, order: mover.Order) -> None:
        """Tell the mover something; one that does not take it is replaced."""
        if self._connection is None:
            return
        try:
            self._connection.send(order)
        except OSError as error:
            self._lost(f"it takes no orders: {error}")

    def hear(self) -> None:
        """Take in what the mover has reported; replace one that has gone, or is stuck."""
        try:
            while self._connection is not None and self._connection.poll(0):
                self._take(self._connection.recv())
        except (EOFError, OSError):
            self._lost("it ended")
        limit_s = time.monotonic() - PATIENCE_S
        if any(read.cancelled_s and read.cancelled_s < limit_s for read in self._reads.values()):
            self._lost(f"a read that was given up {PATIENCE_S:.0f} s ago has not ended")

    def _take(self, event: mover.Event) -> None:
        match event:
            case mover.Started(failure=str(failure)) | mover.Registered(failure=str(failure)):
                self._failure = failure
            case mover.Started():
                self._running = True
            case mover.Registered(address=address, ticket=ticket):
                self._ticket = ticket
                next(region for region in self._regions if not region.address).address = address
            case mover.Moved(number=number):
                if number in self._reads:
                    read = self._reads[number]
                    read.moved = event
                    self._paths[read.source] = event.path
                    self._paths.move_to_end(read.source)
                    if len(self._paths) > _MAX_PATHS:
                        self._paths.popitem(last=False)
                    if event.quiet:
                        del self._reads[number]

    def _started(self) -> None:
        """Have a mover that knows all memory.

        Raises:
            TransferError: there is none; one that is being replaced is not waited for.
        """
        if self._failure is not None:
            raise TransferError(self._failure)
        first = self._process is None
        if first:
            self._start()
        self.hear()
        while not self._ready:
            connection, left_s = self._connection, self._ready_by_s - time.monotonic()
            if left_s <= 0:
                self._lost("it does not start")
            if self._failure is not None:
                raise TransferError(self._failure)
            if not (first or self._running) or connection is None or left_s <= 0:
                raise TransferError("the process that moves bytes has not started")
            connection.poll(left_s)
            self.hear()

    @property
    def _ready(self) -> bool:
        return self._running and all(region.address for region in self._regions)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # A mover that takes no orders must not keep the store waiting.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        program = f"from {mover.__name__} import main; main()"  # -m would rename its classes
        command = [sys.executable, "-P", "-c", program, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._ready_by_s = time.monotonic() + _START_TIMEOUT_S
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        for region in self._regions:
            self._send_region(region)

    def _send_region(self, region: _Region) -> None:
        mover_socket = self._socket
        self.order(mover.Register(region.offset, region.span.num_bytes))
        # A mover that has just been replaced was told of all regions at its start.
        if mover_socket is not None and mover_socket is self._socket:
            with contextlib.suppress(OSError):  # the next order or event says so
                socket.send_fds(mover_socket, [b"f"], [region.fd])

    def _lost(self, why: str) -> None:
        """Replace a mover. Orders that were given to it have failed."""
        was_running = self._running
        status = self._process.poll() if self._process is not None else None
        self._end("the process that moves bytes ended")
        logger.warning("the process that moves bytes is replaced: %s (status %s)", why, status)
        if was_running:  # else it would go on like this
            self._start()

    def _end(self, failure: str) -> None:
        if self._process is None or self._socket is None or self._connection is None:
            return
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._socket.close()
        self._process = self._socket = self._connection = self._ticket = None
        self._running = False
        self._offers.clear()
        for region in self._regions:
            region.address = 0
        for read in self._reads.values():
            read.moved = replace(read.moved, failure=read.moved.failure or failure, quiet=True)
        self._reads.clear()

    def _translated(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(self._translate(span) for span in spans)

    def _translate(self, span: Span) -> Span:
        for region in self._regions:
            if (theirs := region.translate(span)) is not None:
                return theirs
        raise TransferError(f"{span} is not in registered memory")


def shared_file(region: Span) -> tuple[int, int]:
    """The file that is mapped at a region: a descriptor of one's own, and the offset in it.

    Raises:
        TransferError: the memory is not shared, or no descriptor of its file is open here.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, offset, device, inode, *_ = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        if not start <= region.address < end or permissions[3] != "s":
            continue
        at = int(offset, 16) + region.address - start
        major, minor = (int(part, 16) for part in device.split(":"))
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                status = fd.stat()
                if (status.st_dev, status.st_ino) == (os.makedev(major, minor), int(inode)):
                    return os.dup(int(fd.name)), at
    raise TransferError("only shared memory whose descriptor is open can be registered")
