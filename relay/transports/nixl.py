"""One-sided reads with NIXL over UCX: RDMA, shared memory or TCP, whatever UCX finds.

A read is posted in growing batches, one after the other. Posted together they would not come
sooner, but all at the very end: UCX serves them in turns (94 MB in 8 batches over TCP: the first
span lands after 5 ms instead of 85). A batch that was posted cannot be taken back: NIXL lets a
released handle go on writing (ai-dynamo/nixl#2044, and tried). So a cancelled read is quiet once
its posted batch has ended, which for a stopped source is when it goes on or dies.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvrelay.relay.transports.base import (
    Offer,
    Span,
    Transfer,
    TransferError,
    Transport,
    offer_numbers,
    require_same_sizes,
)
from kvrelay.relay.transports.batches import growing_batches
from kvrelay.relay.transports.nixl_agent import NixlAgent, State, load_bindings
from kvrelay.relay.transports.ucx import UNKNOWN

_BATCH_BYTES = 16 << 20
_MAX_PEERS = 256
# UCX leaks a socket whenever it fails to connect (1.21, tried).
_RECONNECT_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a reader needs to read an offer.

    Attributes:
        agent: name of the source's agent; another one after each start of its process.
        metadata: how to connect to it, and the memory that it has registered.
        device: number of the source's device; 0 for host memory.
    """

    agent: str
    metadata: bytes
    device: int


@dataclass(slots=True)
class _Peer:
    name: str
    metadata: bytes
    reads: set["_Read"] = field(default_factory=set)  # that are not quiet
    broken: bool = False


class _Read(Transfer):
    """One read: batches that wait, the one that is posted, the spans that have landed."""

    def __init__(
        self,
        agent: NixlAgent,
        peer: _Peer,
        devices: tuple[int, int],
        spans: Sequence[Span],
        targets: Sequence[Span],
    ) -> None:
        self._agent = agent
        self._peer = peer
        self._devices = devices
        self._waiting: deque[tuple[Sequence[Span], Sequence[Span]]] = deque()
        self._posted: tuple[int, int] | None = None  # handle, how many spans
        self._landed = 0
        self._told = 0
        self._failure: str | None = None
        at = 0
        for count in growing_batches([span.num_bytes for span in spans], _BATCH_BYTES):
            self._waiting.append((spans[at : at + count], targets[at : at + count]))
            at += count
        self._post()

    @property
    def failure(self) -> str | None:
        """Why no more will land."""
        return self._failure

    def poll(self) -> int:
        self._advance()
        if self._failure is not None and self._told == self._landed:
            raise TransferError(self._failure)
        self._told = self._landed
        return self._landed

    def cancel(self) -> None:
        if self._posted is not None:
            self._fail("cancelled")

    @property
    def quiet(self) -> bool:
        return self._posted is None

    def drop(self) -> None:
        """The agent is gone, and with it what was posted."""
        if self._posted is not None:
            self._fail("the transport was closed")
        self._posted = None

    def _advance(self) -> None:
        """See whether the posted batch has ended, and post the next."""
        if self._posted is None:
            return
        handle, count = self._posted
        state = self._agent.state(handle)
        if state is State.MOVING:
            return
        self._agent.release(handle)
        self._posted = None
        self._peer.reads.discard(self)
        if state is State.FAILED:
            self._peer.broken = True
            self._fail("the connection to the source broke")
        elif self._failure is None:
            self._landed += count
        self._post()

    def _post(self) -> None:
        """Post the next batch, unless there is none."""
        if self._waiting:
            spans, targets = self._waiting.popleft()
            try:
                handle = self._agent.post_read(self._peer.name, spans, targets, self._devices)
            except TransferError as error:
                self._peer.broken = True
                self._fail(str(error))
            else:
                self._posted = handle, len(spans)
                self._peer.reads.add(self)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._waiting.clear()


class NixlTransport(Transport):
    """A node's NIXL agent, made when it is first needed; one thread only.

    Over TCP a reader that dies in the middle can take the source's process with it: UCX 1.21
    ends the process when it cannot answer a read (`ucp_request.inl: Fatal: unexpected error:
    Endpoint timeout`, tried). A process that must live runs this in `IsolatedTransport`.
    """

    name = "nixl"

    def __init__(self, memory: str = "DRAM", device: int = 0) -> None:
        """Nothing is started yet.

        Args:
            memory: NIXL's name of the kind of memory: DRAM or VRAM.
            device: number of the device that VRAM is on.

        Raises:
            TransferError: NIXL is not installed.
        """
        load_bindings()
        self._memory = memory
        self._device = device
        self._regions: list[Span] = []
        self._agent: NixlAgent | None = None
        self._peers: OrderedDict[str, _Peer] = OrderedDict()  # last used last
        self._refused: OrderedDict[str, float] = OrderedDict()  # agents, and until when
        self._numbers = offer_numbers()

    def warm_up(self) -> None:
        self._started()

    def register(self, region: Span) -> None:
        if self._agent is not None:
            self._agent.register(region, self._device)
        self._regions.append(region)

    def offer(self, spans: Sequence[Span]) -> Offer:
        agent = self._started()
        ticket = Ticket(agent.name, agent.metadata, self._device)
        return Offer(self.name, next(self._numbers), tuple(spans), ticket)

    def withdraw(self, offer: Offer) -> None:
        """Nothing to do: what reads an offer is known to the reader alone."""

    def read(self, offer: Offer, targets: Sequence[Span]) -> Transfer:
        require_same_sizes(offer, targets)
        agent = self._started()
        devices = (self._device, offer.ticket.device)
        read = _Read(agent, self._connected(agent, offer.ticket), devices, offer.spans, targets)
        if read.failure is not None:  # the connection may have broken while it was idle
            read = _Read(agent, self._connected(agent, offer.ticket), devices, offer.spans, targets)
        if read.failure is not None:
            raise TransferError(read.failure)
        return read

    def progress(self) -> None:
        if self._agent is not None:
            self._agent.progress()

    def path(self, offer: Offer) -> str:
        if self._agent is None or not offer.spans:
            return UNKNOWN
        return self._agent.path(offer.ticket.agent, max(span.num_bytes for span in offer.spans))

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        for peer in self._peers.values():
            for read in peer.reads:
                read.drop()
        self._peers.clear()

    def _started(self) -> NixlAgent:
        if self._agent is None:
            agent = NixlAgent(self._memory)
            for region in self._regions:
                agent.register(region, self._device)
            self._agent = agent
        return self._agent

    def _connected(self, agent: NixlAgent, ticket: Ticket) -> _Peer:
        """The peer of a ticket, met now or before."""
        peer = self._peers.get(ticket.agent)
        if peer is not None and peer.broken:
            if peer.reads:
                raise TransferError("reads over the broken connection are still ending")
            self._forget(agent, peer)
            peer = None
        if peer is None:
            peer = self._peers[ticket.agent] = self._met(agent, ticket)
        elif peer.metadata != ticket.metadata:  # it has registered more memory
            agent.connect(ticket.metadata)
            peer.metadata = ticket.metadata
        self._peers.move_to_end(ticket.agent)
        return peer

    def _met(self, agent: NixlAgent, ticket: Ticket) -> _Peer:
        """A new peer; those not used for longest, which most likely went, are forgotten."""
        if time.monotonic() < self._refused.get(ticket.agent, 0.0):
            raise TransferError("the source could not be reached a moment ago")
        for peer in list(self._peers.values()):
            if len(self._peers) < _MAX_PEERS:
                break
            if not peer.reads:
                self._forget(agent, peer)
        try:
            return _Peer(agent.connect(ticket.metadata), ticket.metadata)
        except TransferError:
            self._refused[ticket.agent] = time.monotonic() + _RECONNECT_AFTER_S
            if len(self._refused) > _MAX_PEERS:
                self._refused.popitem(last=False)
            raise

    def _forget(self, agent: NixlAgent, peer: _Peer) -> None:
        agent.forget(peer.name)
        del self._peers[peer.name]
