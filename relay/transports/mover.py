"""The process that moves a node's bytes for `IsolatedTransport`; started by it, ends with it.

It maps the same shared memory as the store, runs a `NixlTransport`, and polls it: often while
something is offered or read, once a second otherwise, so that dead connections are cleared.
The two talk over a socket:

    Register (and a descriptor) ->  <- Registered     memory, with this process's address of it
    Opened, Withdrawn ->                              an offer's life
    Read, Cancel ->                 <- Moved          a read's
                                    <- Started        once, at the beginning
"""

import contextlib
import ctypes
import logging
import mmap
import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from kvrelay.relay.memory import map_present
from kvrelay.relay.transports.base import Offer, Span, Transfer, TransferError
from kvrelay.relay.transports.nixl import NixlTransport, Ticket
from kvrelay.relay.transports.ucx import UNKNOWN

_BUSY_WAIT_S = 0.0002
_IDLE_WAIT_S = 1.0
# NIXL does not say whether a call has moved bytes. One that took longer has: more are waiting.
_MOVED_S = 15e-6


@dataclass(frozen=True, slots=True)
class Register:
    """Map `num_bytes` of the file whose descriptor follows, from `offset`, and register them."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """An offer may be read from now on."""

    number: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """An offer is not read any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read an offer of another mover; addresses are the movers'."""

    number: int
    offer: Offer
    targets: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a read early."""

    number: int


@dataclass(frozen=True, slots=True)
class Started:
    """NIXL runs, or why not."""

    failure: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """Where the memory lies here, and what lets others read all that is registered."""

    address: int
    ticket: Ticket
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """How a read stands now; the last one says `quiet`."""

    number: int
    landed: int
    failure: str | None
    quiet: bool
    path: str


Order = Register | Opened | Withdrawn | Read | Cancel
Event = Started | Registered | Moved


@dataclass(slots=True)
class _Reading:
    transfer: Transfer
    offer: Offer
    told: Moved


class Mover:
    """The child's end."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._connection = Connection(os.dup(descriptor))
        self._transport = NixlTransport()
        self._mappings: list[mmap.mmap] = []
        self._offers: set[int] = set()
        self._reads: dict[int, _Reading] = {}

    def run(self) -> None:
        """Serve until the store goes."""
        try:
            self._transport.warm_up()
        except TransferError as error:
            self._connection.send(Started(str(error)))
            return
        self._connection.send(Started(None))
        while True:
            busy = bool(self._offers or self._reads)
            began_s = time.perf_counter()
            moved = busy and (self._move() or time.perf_counter() - began_s > _MOVED_S)
            wait_s = 0.0 if moved else _BUSY_WAIT_S if busy else _IDLE_WAIT_S
            # Not `Connection.poll`, which waits for whole milliseconds.
            if select.select([self._connection], [], [], wait_s)[0]:
                self._obey(self._connection.recv())
            elif not busy:
                self._transport.progress()

    def _obey(self, order: Order) -> None:
        match order:
            case Register():
                self._register(order)
            case Opened(number=number):
                self._offers.add(number)
            case Withdrawn(number=number):
                self._offers.discard(number)
            case Cancel(number=number):
                if number in self._reads:
                    self._reads[number].transfer.cancel()
            case Read(number=number, offer=offer, targets=targets):
                try:
                    transfer = self._transport.read(offer, targets)
                except TransferError as error:
                    self._connection.send(Moved(number, 0, str(error), True, UNKNOWN))
                else:
                    started = Moved(number, 0, None, False, UNKNOWN)
                    self._reads[number] = _Reading(transfer, offer, started)

    def _register(self, order: Register) -> None:
        _, (fd,), _, _ = socket.recv_fds(self._socket, 1, 1)
        ticket = self._transport.offer([]).ticket
        try:
            mapping = mmap.mmap(fd, order.num_bytes, offset=order.offset)
            region = Span(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), order.num_bytes)
            self._transport.register(region)
        except (OSError, TransferError) as error:
            self._connection.send(Registered(0, ticket, str(error)))
        else:
            self._mappings.append(mapping)
            threading.Thread(target=map_present, args=region, daemon=True).start()
            ticket = self._transport.offer([]).ticket
            self._connection.send(Registered(region.address, ticket))
        finally:
            os.close(fd)

    def _move(self) -> bool:
        """Move everything on; whether anything has moved."""
        self._transport.progress()
        moved = False
        for number, reading in list(self._reads.items()):
            told = reading.told
            landed, failure = told.landed, told.failure
            try:
                landed = reading.transfer.poll()
            except TransferError as error:
                failure = str(error)
            now = replace(told, landed=landed, failure=failure, quiet=reading.transfer.quiet)
            if now == told:
                continue
            moved = True
            reading.told = replace(now, path=self._transport.path(reading.offer))
            self._connection.send(reading.told)
            if now.quiet:
                del self._reads[number]
        return moved


def main() -> None:
    """The program: its argument is the descriptor of the socket."""
    logging.basicConfig(level=logging.WARNING, format="kvrelay mover: %(message)s")
    with contextlib.suppress(EOFError, ConnectionError):  # the store has gone
        Mover(int(sys.argv[1])).run()
    # Without NIXL's and UCX's own way out: what is under way ends with the process.
    os._exit(0)
