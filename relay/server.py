"""The store's thread: one selector loop that feeds messages to `StoreCore`."""

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from kvrelay.policies import Reason
from kvrelay.relay import demotion, protocol
from kvrelay.relay.calls import Call
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.errors import ArenaError, ProtocolError, RelayError
from kvrelay.relay.store import Entry, StoreCore

logger = logging.getLogger(__name__)
T = TypeVar("T")
_CREDENTIALS = struct.Struct("3i")
_POPULATE_STEP_BYTES = 16 << 20
_ACCEPT_AGAIN_S = 0.01  # the listener stays readable: not at once


class FetchDesk(Protocol):
    """Who brings what the arena lacks. All methods run in the store's thread; none waits."""

    def begin(self, client_id: int, fetch: protocol.Fetch) -> None:
        """Start bringing what a client asks for; answers through `StoreServer.push`."""

    def end(self, client_id: int, number: int) -> None:
        """The client has what it needs."""

    def gone(self, client_id: int) -> None:
        """The client's connection has ended."""


class StoreServer:
    """Serves one `StoreCore` under an abstract socket name.

    Only processes of the same user are admitted. The core is touched by this thread alone,
    except through `call`, which runs a function in it.
    """

    def __init__(
        self,
        core: StoreCore,
        address: str,
        catalog: Catalog | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind and start.

        Args:
            core: the store.
            address: name of the socket.
            catalog: what other nodes hold; its descriptors go to clients.
            on_change: called when blocks have come or gone, in the store's thread.

        Raises:
            ArenaError: somebody else serves this address.
        """
        self._core = core
        self._catalog = catalog or Catalog(core.incarnation)
        core.list_encoded_in(self._catalog)
        self._on_change = on_change
        self._desk: FetchDesk | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind("\0" + address)
        except OSError as error:
            self._listener.close()
            raise ArenaError(f"a store already serves '{address}': {error}") from error
        self._listener.listen(128)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._calls: list[Callable[[], None]] = []
        self._calls_lock = threading.Lock()
        self._closing = False
        self._clients: dict[socket.socket, int | None] = {}
        self._populated = False
        self._demoter = None if core.encoded is None else demotion.Demoter(self)
        self._thread = threading.Thread(target=self._run, name="kvrelay-store", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[StoreCore], T], timeout_s: float = 10.0) -> T:
        """Run `function(core)` in the store's thread and return what it returns.

        Raises:
            TimeoutError: the thread did not get to it in time, and now will not.
        """
        call = Call(lambda: function(self._core))
        with self._calls_lock:
            self._calls.append(call)
        self._wake_writer.send(b"c")
        return call.wait(timeout_s, "the store's thread")

    def attach(self, desk: FetchDesk) -> None:
        """Have fetches brought by `desk`; without one they fail."""
        self._desk = desk

    def push(self, client_id: int, message: protocol.Reply) -> bool:
        """Send a client what it waits for; False if it has gone. Only within `call`."""
        for connection, number in self._clients.items():
            if number == client_id:
                try:
                    connection.send(protocol.encode(message))
                except OSError:  # it has gone, or reads nothing: the fetch ends by its deadline
                    return False
                return True
        return False

    def close(self) -> None:
        """Stop serving; mapped slabs stay readable by whoever has them."""
        if self._demoter is not None:
            self._demoter.close()
        self._closing = True
        self._wake_writer.send(b"x")
        self._thread.join(5)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select():
                    connection = key.fileobj
                    if connection is self._listener:
                        self._accept(selector)
                    elif connection is self._wake_reader:
                        self._wake_reader.recv(4096)
                        self._run_calls()
                    elif isinstance(connection, socket.socket):
                        self._serve(selector, connection)
                if self._core.has_events:
                    self._on_change()
                if self._demoter is not None and demotion.wanted(self._core):
                    self._demoter.wake()
        for connection in [*self._clients, self._listener, self._wake_reader, self._wake_writer]:
            connection.close()
        self._core.close()
        self._catalog.close()

    def _run_calls(self) -> None:
        with self._calls_lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # no descriptors left, or the client has gone again
            logger.warning("a connection could not be accepted: %s", error)
            time.sleep(_ACCEPT_AGAIN_S)
            return
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        if uid != os.getuid():
            logger.warning("refused a connection of user %d", uid)
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection] = None
        selector.register(connection, selectors.EVENT_READ)

    def _drop_client(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        selector.unregister(connection)
        client_id = self._clients.pop(connection)
        connection.close()
        if client_id is not None:
            self._core.disconnect(client_id)
            if self._desk is not None:
                self._desk.gone(client_id)

    def _serve(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        try:
            packet = connection.recv(protocol.MAX_PACKET_BYTES)
            if not packet:
                self._drop_client(selector, connection)
                return
            message = protocol.decode_request(packet)
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("closing a connection to the store: %s", error)
            self._drop_client(selector, connection)
            return
        fds: list[int] = []
        reply: protocol.Reply | None
        try:
            reply = self._answer(connection, message, fds)
        except (RelayError, AssertionError) as error:
            reply = protocol.Failed(str(error))
        except Exception as error:
            logger.exception("the store failed on a message")
            reply = protocol.Failed(f"internal error: {error!r}")
        if reply is None:
            return
        with contextlib.suppress(OSError):  # the client has gone; the next recv says so
            if fds:
                socket.send_fds(connection, [protocol.encode(reply)], fds)
            else:
                connection.send(protocol.encode(reply))

    def _answer(
        self, connection: socket.socket, message: protocol.Request, fds: list[int]
    ) -> protocol.Reply | None:
        core = self._core
        if isinstance(message, protocol.Hello):
            if self._clients[connection] is not None:
                raise ProtocolError("Hello came twice")
            client_id = core.connect(message.agent)
            self._clients[connection] = client_id
            return protocol.Welcome(client_id, core.incarnation)
        client = self._clients[connection]
        if client is None:
            raise ProtocolError("the first message must be Hello")
        match message:
            case protocol.OpenSlab(slot_bytes=slot_bytes, block_tokens=block_tokens):
                slab_id = core.open_slab(slot_bytes, block_tokens)
                fds += [core.slab(slab_id).fd, self._catalog.slab(block_tokens).fd]
                self._populate(slab_id)
                return protocol.SlabOpened(slab_id)
            case protocol.Reserve(slab_id=slab_id, keys=keys):
                granted, refused = core.reserve(client, slab_id, keys)
                return protocol.Reserved(granted, {str(why): n for why, n in refused.items()})
            case protocol.Commit(slab_id=slab_id, entries=entries):
                core.commit(
                    client,
                    slab_id,
                    [Entry(e.slot, e.key, e.parent, e.tokens, e.checksum) for e in entries],
                )
                return protocol.Done(len(entries))
            case protocol.Abort(slab_id=slab_id, slots=slots):
                core.abort(client, slab_id, slots)
                return protocol.Done(len(slots))
            case protocol.Drop(keys=keys):
                return protocol.Done(core.clear() if keys is None else core.drop(keys))
            case protocol.Stats():
                return protocol.StatsReply(core.stats())
            case protocol.Check():
                core.check_integrity()
                return protocol.Done()
            case protocol.Expect():
                core.expect(message)
                return protocol.Done()
            case protocol.Fetch() | protocol.EndFetch():
                return self._fetch(client, message)
        raise ProtocolError(f"{type(message).__name__} is not expected here")

    def _fetch(
        self, client: int, message: protocol.Fetch | protocol.EndFetch
    ) -> protocol.Reply | None:
        desk = self._desk
        if isinstance(message, protocol.EndFetch):
            if desk is not None:
                desk.end(client, message.number)
        elif desk is None or len(message.keys) > protocol.MAX_FETCH_KEYS:
            return protocol.FetchEnded(message.number, str(Reason.NO_SOURCE))
        else:
            desk.begin(client, message)
        return None

    def _populate(self, slab_id: int) -> None:
        """Touch the pages of `protocol.POPULATED_SLAB` in the background, once."""
        if slab_id != protocol.POPULATED_SLAB or self._populated:
            return
        self._populated = True
        slab = self._core.slab(slab_id)
        step = max(1, _POPULATE_STEP_BYTES // slab.geometry.stride_bytes)

        def run() -> None:
            for start in range(0, slab.geometry.num_slots, step):
                if self._closing:
                    return
                slab.populate(start, min(start + step, slab.geometry.num_slots), write=True)
                time.sleep(0)

        threading.Thread(target=run, name="kvrelay-populate", daemon=True).start()
