"""The worker's side of fetches: what its loads need from other nodes, asked of the node's store."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from kvrelay.policies import Reason
from kvrelay.relay import protocol
from kvrelay.relay.client import Attachment, StoreClient
from kvrelay.relay.errors import RelayError

logger = logging.getLogger(__name__)
OnLanded = Callable[[int, Sequence[protocol.LandedBlock]], None]
OnEnded = Callable[[int, protocol.FetchEnded], None]


@dataclass(frozen=True, slots=True)
class _Start:
    attachment: Attachment
    request: protocol.Fetch


class Fetches:
    """One connection to the store for fetches, made when the first is needed.

    Nothing here waits: a thread connects and sends, another one receives and calls back.
    However the connection ends, every fetch under way is told that it has.
    """

    def __init__(self, on_landed: OnLanded, on_ended: OnEnded) -> None:
        self._on_landed, self._on_ended = on_landed, on_ended
        self._work: queue.SimpleQueue[_Start | int | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._client: StoreClient | None = None
        self._under_way: set[int] = set()
        self._sender: threading.Thread | None = None

    def start(
        self, attachment: Attachment, number: int, keys: Sequence[bytes], deadline_ns: int
    ) -> None:
        """Ask for blocks; all that follows comes by the callbacks."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._send, name="kvrelay-ask", daemon=True)
            self._sender.start()
        request = protocol.Fetch(number, attachment.slab_id, list(keys), deadline_ns)
        self._work.put(_Start(attachment, request))

    def end(self, number: int) -> None:
        """What has landed of a fetch is not needed any more, nor what has not."""
        self._work.put(number)

    def close(self) -> None:
        """End the connection, and with it all fetches."""
        self._work.put(None)

    def _send(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, _Start):
                number = work.request.number
                with self._lock:
                    self._under_way.add(number)
                try:
                    self._connected(work.attachment).send(work.request)
                except (RelayError, OSError) as error:
                    logger.warning("nothing can be fetched from other nodes: %s", error)
                    self._lost([number])
            else:
                with self._lock:
                    self._under_way.discard(work)
                    client = self._client
                try:
                    if client is not None:
                        client.send(protocol.EndFetch(work))
                except OSError as error:
                    logger.debug("a fetch was not ended: %s", error)
        if self._client is not None:
            self._client.abandon()

    def _connected(self, attachment: Attachment) -> StoreClient:
        incarnation = attachment.slab.incarnation
        client = self._client
        if client is not None and client.incarnation == incarnation:
            return client
        if client is not None:
            client.abandon()
        client = StoreClient(attachment.address, "fetch")
        if client.incarnation != incarnation:
            client.close()
            raise RelayError("the store has been replaced")
        self._client = client
        threading.Thread(
            target=self._listen, args=(client,), name="kvrelay-fetch", daemon=True
        ).start()
        return client

    def _listen(self, client: StoreClient) -> None:
        try:
            while (reply := client.receive()) is not None:
                if isinstance(reply, protocol.Landed):
                    self._on_landed(reply.number, reply.blocks)
                elif isinstance(reply, protocol.FetchEnded):
                    with self._lock:
                        self._under_way.discard(reply.number)
                    self._on_ended(reply.number, reply)
                elif isinstance(reply, protocol.Failed):
                    logger.warning("a fetch failed: %s", reply.message)
                    break
        except (OSError, msgspec.MsgspecError) as error:
            logger.debug("the fetch connection ended: %s", error)
        with self._lock:
            if self._client is client:
                self._client = None
            lost = list(self._under_way)
        client.abandon()
        self._lost(lost)

    def _lost(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with self._lock:
                self._under_way.discard(number)
            failure = str(Reason.STORE_UNAVAILABLE)
            self._on_ended(number, protocol.FetchEnded(number, failure))
