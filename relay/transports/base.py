"""Moving bytes from another node's store to this one: what every transport can do.

The source offers spans of its memory; the reader reads them into spans of its own:

    source: offer(spans) -> Offer --control call--> reader: read(offer, targets) -> Transfer
    reader: Transfer.poll() until it has landed           source: progress() meanwhile
    source: withdraw(offer)

All methods of one transport and its transfers are called from one thread, and none waits, but
for what `warm_up` does where that was not called before.
"""

import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from kvrelay.relay.errors import RelayError


class TransferError(RelayError):
    """A transfer ended without its bytes; what landed before is good."""


class Span(NamedTuple):
    """Bytes in this process's registered memory."""

    address: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source lets a reader read.

    Attributes:
        transport: its `Transport.name`.
        number: the source's own number of the offer, see `offer_numbers`.
        spans: as they were offered, addresses in the source's process.
        ticket: what the transport's reading side needs besides; travels through Ray.
    """

    transport: str
    number: int
    spans: tuple[Span, ...]
    ticket: Any


class Transfer(ABC):
    """One read under way."""

    @abstractmethod
    def poll(self) -> int:
        """How many spans, from the first on, have landed whole.

        Raises:
            TransferError: no more will land than the last call has told.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Ask for an early end; idempotent. Until `quiet`, targets may still be written."""

    @property
    @abstractmethod
    def quiet(self) -> bool:
        """Whether nothing will write any target from now on; learnt in `poll`.

        A read that timed out still writes when its source comes back: its targets must not be
        reused before this is True.
        """


class Transport(ABC):
    """One way of reading memory of another node's store."""

    name: ClassVar[str]

    def warm_up(self) -> None:  # noqa: B027  not every transport has something to do
        """Do now what the first offer or read would have to wait for; may take a second.

        Raises:
            TransferError: this transport does not work here.
        """

    @abstractmethod
    def register(self, region: Span) -> None:
        """Make memory known, once, before spans of it are offered or read into."""

    @abstractmethod
    def offer(self, spans: Sequence[Span]) -> Offer:
        """Let a reader read these spans until `withdraw` (source).

        Raises:
            TransferError: not now, or not from here.
        """

    @abstractmethod
    def withdraw(self, offer: Offer) -> None:
        """End an offer; harmless if it has ended (source)."""

    @abstractmethod
    def read(self, offer: Offer, targets: Sequence[Span]) -> Transfer:
        """Start reading an offer into targets of the same sizes (reader).

        Raises:
            TransferError: the offer cannot be read from here.
        """

    @abstractmethod
    def progress(self) -> None:
        """Do what reading of open offers needs; called often while there are any (source)."""

    @abstractmethod
    def path(self, offer: Offer) -> str:
        """The path that bytes of this offer take, such as `tcp`, `rc_mlx5` or `cma`.

        `unknown` if that cannot be told.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


def offer_numbers() -> Iterator[int]:
    """Numbers for a source's offers, unlike those of before its process was restarted.

    Else a reader's farewell to an old offer would end somebody else's new one.
    """
    return itertools.count(secrets.randbits(62))


def require_same_sizes(offer: Offer, targets: Sequence[Span]) -> None:
    """Refuse targets that are not as many and as large as what is offered.

    Raises:
        TransferError: they are not.
    """
    if [span.num_bytes for span in offer.spans] != [span.num_bytes for span in targets]:
        raise TransferError("targets have other sizes than what is offered")
