"""An engine half's link to its node's store: connected while it can be, else absent."""

import contextlib
import errno
import logging
import os
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kvrelay.relay import protocol
from kvrelay.relay.arena import Slab
from kvrelay.relay.errors import ProtocolError, RelayError, StoreUnavailable
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.store import Entry

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=protocol.Reply)
CALL_TIMEOUT_S = 1.0
RETRY_S = 0.5


class StoreClient:
    """One connection. Calls are serialised; any failure leaves it closed."""

    def __init__(
        self, address: str, role: str, timeout_s: float = CALL_TIMEOUT_S, agent: str = ""
    ) -> None:
        """Connect and say hello; as what, see `protocol.Hello`.

        Raises:
            StoreUnavailable: nobody serves the address, or it does not answer.
            ProtocolError: it has too many clients.
        """
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect("\0" + address)
        except OSError as error:
            self._socket.close()
            raise StoreUnavailable(f"no store at '{address}': {error}") from error
        try:
            welcome = self._call(protocol.Hello(role, os.getpid(), agent), protocol.Welcome)
        except RelayError:
            self.close()
            raise
        self.client_id = welcome.client_id
        self.incarnation = welcome.incarnation

    def open_slab(self, slot_bytes: int, block_tokens: int) -> tuple[int, Slab, Slab]:
        """The slab for these sizes: its number, its mapping, and the catalog beside it.

        Raises:
            ProtocolError: the store refuses these sizes.
            StoreUnavailable, ArenaError.
        """
        fds: list[int] = []
        request = protocol.OpenSlab(slot_bytes, block_tokens)
        opened = self._call(request, protocol.SlabOpened, fds)
        if len(fds) != 2:
            for fd in fds:
                os.close(fd)
            raise ProtocolError("the store sent no slab")
        slab = Slab.attach(fds[0])
        return opened.slab_id, slab, Slab.attach(fds[1])

    def reserve(self, slab_id: int, keys: Sequence[bytes]) -> protocol.Reserved:
        """Ask for slots to write `keys` into (at most `protocol.MAX_KEYS`)."""
        return self._call(protocol.Reserve(slab_id, list(keys)), protocol.Reserved)

    def commit(self, slab_id: int, entries: Sequence[Entry]) -> None:
        """Seal written slots."""
        wire = [
            protocol.CommitEntry(e.slot, e.key, e.parent, e.tokens, e.checksum) for e in entries
        ]
        self._call(protocol.Commit(slab_id, wire), protocol.Done)

    def abort(self, slab_id: int, slots: Sequence[int]) -> None:
        """Give reserved slots back unwritten."""
        self._call(protocol.Abort(slab_id, list(slots)), protocol.Done)

    def drop(self, keys: Sequence[bytes] | None) -> int:
        """Evict these keys (None: all); how many were held."""
        request = protocol.Drop(None if keys is None else list(keys))
        return self._call(request, protocol.Done).count

    def stats(self) -> dict[str, int]:
        """The store's counts."""
        return self._call(protocol.Stats(), protocol.StatsReply).counts

    def check(self) -> None:
        """Have the store check its integrity.

        Raises:
            ProtocolError: with the invariant that does not hold.
        """
        self._call(protocol.Check(), protocol.Done)

    def expect(self, expect: protocol.Expect) -> None:
        """Say that an agent is expected to need blocks next."""
        self._call(expect, protocol.Done)

    def send(self, request: protocol.Request) -> None:
        """Send what is not answered by one reply; see `receive`.

        Raises:
            OSError: the connection has ended, or the store reads nothing.
        """
        self._socket.send(protocol.encode(request))

    def receive(self) -> protocol.Reply | None:
        """The next message on a connection that is used for fetches; None at its end.

        Raises:
            OSError, msgspec.MsgspecError: the connection is of no more use.
        """
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN)
        except ValueError as error:
            raise OSError(errno.EBADF, "the connection was closed here") from error
        poller.poll()
        packet = self._socket.recv(protocol.MAX_PACKET_BYTES)
        return protocol.decode_reply(packet) if packet else None

    def abandon(self) -> None:
        """Close from another thread than the one that receives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the store to go away, reading nothing; True when it has."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        except ValueError:  # closed, maybe right now and by another thread
            return True
        return bool(poller.poll(timeout_s * 1000)) or self._socket.fileno() < 0

    def close(self) -> None:
        """Close; the store takes back what was reserved and leased."""
        self._socket.close()

    def _call(
        self, request: protocol.Request, expected: type[R], fds: list[int] | None = None
    ) -> R:
        try:
            with self._lock:
                self._socket.send(protocol.encode(request))
                packet, got, _, _ = socket.recv_fds(self._socket, protocol.MAX_PACKET_BYTES, 2)
        except OSError as error:
            # A late answer would be taken for the next one's: this connection is done for.
            self.close()
            raise StoreUnavailable(f"the store did not answer: {error}") from error
        if not packet:
            self.close()
            raise StoreUnavailable("the store closed the connection")
        try:
            reply = protocol.decode_reply(packet)
        except msgspec.MsgspecError as error:
            self.close()
            raise ProtocolError(f"the store's answer does not parse: {error}") from error
        if fds is not None:
            fds += got
        else:
            for fd in got:
                os.close(fd)
        if isinstance(reply, protocol.Failed):
            raise ProtocolError(reply.message)
        if not isinstance(reply, expected):
            self.close()
            raise ProtocolError(f"expected {expected.__name__}, got {type(reply).__name__}")
        return reply


@dataclass(frozen=True, slots=True)
class Attachment:
    """A live connection together with its slab and lease row.

    `catalog` lists what other nodes hold (catalog.py); `address` is the store's.
    """

    client: StoreClient
    slab_id: int
    slab: Slab
    leases: LeaseRow
    catalog: Slab
    address: str


class StoreLink:
    """Keeps an attachment to the node's store; reconnects after the store came back.

    `current` is one attribute read: None while there is no store. Nothing here blocks the
    caller; a thread does the connecting and notices when the store dies.
    """

    def __init__(
        self, address: str, role: str, slot_bytes: int, block_tokens: int, agent: str = ""
    ) -> None:
        """Start connecting; as what, see `protocol.Hello`."""
        self.current: Attachment | None = None
        self._arguments = (address, role, slot_bytes, block_tokens, agent)
        self._stop = threading.Event()
        self._attached = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrelay-link", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first attachment; False if there is none in time."""
        return self._attached.wait(timeout_s)

    def close(self) -> None:
        """Stop reconnecting and let go of the store."""
        self._stop.set()
        current, self.current = self.current, None
        if current is not None:
            current.client.abandon()
        self._thread.join(2 * RETRY_S)

    def _run(self) -> None:
        complained = False
        while not self._stop.is_set():
            try:
                attachment = self._attach()
            except (RelayError, OSError) as error:
                if not complained:
                    logger.warning("no relay for now: %s", error)
                    complained = True
                self._stop.wait(RETRY_S)
                continue
            complained = False
            self.current = attachment
            self._attached.set()
            if attachment.slab_id == protocol.POPULATED_SLAB:
                # Map its pages now, so that no request pays for first touches.
                attachment.slab.populate(0, attachment.slab.geometry.num_slots, write=False)
            while not self._stop.is_set() and not attachment.client.wait_closed(RETRY_S):
                pass
            if self.current is attachment:
                self.current = None
                attachment.slab.close()
                attachment.catalog.close()
                attachment.client.close()
                logger.warning("the node's store has gone; requests recompute until it is back")

    def _attach(self) -> Attachment:
        address, role, slot_bytes, block_tokens, agent = self._arguments
        client = StoreClient(address, role, agent=agent)
        try:
            slab_id, slab, catalog = client.open_slab(slot_bytes, block_tokens)
        except BaseException:
            client.close()
            raise
        leases = LeaseRow(slab, client.client_id)
        return Attachment(client, slab_id, slab, leases, catalog, address)
