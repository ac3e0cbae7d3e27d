"""Other nodes' stores by Ray: small control messages only, bytes go by a transport."""

from typing import Any

import ray

from kvrelay.relay.lending import Ask, Lent
from kvrelay.relay.names import NAMESPACE, store_name
from kvrelay.relay.transports.base import Offer, TransferError


class Peers:
    """Gives the peer of a node; their actor handles are kept until they fail."""

    def __init__(self) -> None:
        self._known: dict[str, RayPeer] = {}

    def __call__(self, node_id: str) -> "RayPeer":
        """The store of a node.

        Raises:
            TransferError: there is none.
        """
        peer = self._known.get(node_id)
        if peer is None or peer.failed:
            try:
                peer = RayPeer(ray.get_actor(store_name(node_id), namespace=NAMESPACE))
            except ValueError as error:
                raise TransferError(f"no store on node {node_id}") from error
            self._known[node_id] = peer
        return peer


class RayPeer:
    """One store's actor."""

    def __init__(self, actor: Any) -> None:
        self.failed = False
        self._actor = actor

    def ask(self, ask: Ask) -> "RayAnswer":
        """See `Peer.ask`."""
        return RayAnswer(self, self._actor.lend.remote(ask))

    def take_back(self, offer: Offer) -> None:
        """See `Peer.take_back`."""
        self._actor.take_back.remote(offer.transport, offer.number)


class RayAnswer:
    """The answer that an actor call will bring."""

    def __init__(self, peer: RayPeer, ref: Any) -> None:
        self._peer, self._ref = peer, ref

    def poll(self) -> Lent | None:
        """See `Answer.poll`."""
        ready, _ = ray.wait([self._ref], timeout=0)
        if not ready:
            return None
        try:
            lent: Lent = ray.get(self._ref)
        except ray.exceptions.RayError as error:
            self._peer.failed = True
            raise TransferError(f"the source did not answer: {error}") from error
        return lent
