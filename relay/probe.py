"""Measures a link between two stores: reads that carry nothing, by the way that relays go."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from kvrelay.relay.errors import RelayError
from kvrelay.relay.lending import GRACE_S, Lent
from kvrelay.relay.transfer import Transfers
from kvrelay.relay.transports.base import Transfer, TransferError

CELL_BYTES = 4 << 20
SMALL_BYTES, SMALL_READS = 4096, 5
LARGE_CELLS, LARGE_READS = 4, 3
TIMEOUT_S = 30.0
_POLL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Probed:
    """One link in one direction, by one transport.

    Attributes:
        source, reader: nodes.
        transport: by what.
        path: what the bytes went over, as attested; `unknown` if that cannot be told.
        latency_s: median of reading 4 KB, asking the source included.
        gb_per_s: median rate of reading 16 MiB, 1e9 bytes a second, without the asking.
        failure: why there are no figures; empty if there are.
    """

    source: str
    reader: str
    transport: str
    path: str = ""
    latency_s: float = 0.0
    gb_per_s: float = 0.0
    failure: str = ""


def lend_probe(transfers: Transfers, transport: str, count: int, num_bytes: int) -> Lent:
    """The source's part: offer `count` pieces of memory of `num_bytes` that hold no KV."""
    return transfers.lend_memory(transport, CELL_BYTES, count, num_bytes, TIMEOUT_S)


def probe(
    transfers: Transfers,
    source: str,
    transport: str,
    ask: Callable[[int, int], Lent],
    take_back: Callable[[Lent], None],
) -> Probed:
    """The reader's part; waits, so not in the transfer thread.

    Args:
        transfers: of the reader's store.
        source: node to read from.
        transport: by what.
        ask: the source's `lend_probe`, for a count and a size.
        take_back: ends what it lent.
    """
    nothing = Probed(source, transfers.node_id, transport)
    try:
        small = [
            _read(transfers, transport, partial(ask, 1, SMALL_BYTES), take_back)
            for _ in range(SMALL_READS + 1)  # the first one connects
        ][1:]
        large = [
            _read(transfers, transport, partial(ask, LARGE_CELLS, CELL_BYTES), take_back)
            for _ in range(LARGE_READS)
        ]
    except (RelayError, TimeoutError) as error:
        return Probed(source, transfers.node_id, transport, failure=str(error) or repr(error))
    rate = LARGE_CELLS * CELL_BYTES / median(read_s for _, read_s, _ in large) / 1e9
    latency_s = median(ask_s + read_s for ask_s, read_s, _ in small)
    return Probed(nothing.source, nothing.reader, transport, large[-1][2], latency_s, rate)


def _read(
    transfers: Transfers,
    transport: str,
    ask: Callable[[], Lent],
    take_back: Callable[[Lent], None],
) -> tuple[float, float, str]:
    """Seconds of asking and of reading, and the path."""
    start_s = time.perf_counter()
    lent = ask()
    offer = lent.offer
    if offer is None:
        raise TransferError(lent.refusal or "the source offers nothing")
    asked_s = time.perf_counter()
    scratch = transfers.inbox(CELL_BYTES)
    cells = scratch.take(len(offer.spans), GRACE_S)
    if cells is None:
        raise TransferError("no room to read into")
    transfer: Transfer | None = None
    try:
        targets = [
            scratch.span(cell, span.num_bytes)
            for cell, span in zip(cells, offer.spans, strict=True)
        ]

        def begin() -> Transfer:
            transfers.register(scratch.region)
            return transfers.transports[transport].read(offer, targets)

        transfer = transfers.run(begin)
        while transfers.run(transfer.poll) < len(targets):
            if time.perf_counter() - asked_s > TIMEOUT_S:
                raise TransferError(f"not read within {TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
        read_s = time.perf_counter() - asked_s
        path = transfers.run(lambda: transfers.transports[transport].path(offer))
        return asked_s - start_s, read_s, path
    finally:
        transfers.run(
            partial(_let_go, transfers, transfer, len(cells), partial(scratch.give_back, cells))
        )
        take_back(lent)


def _let_go(
    transfers: Transfers, transfer: Transfer | None, count: int, free: Callable[[], None]
) -> None:
    """In the transfer thread."""
    if transfer is None or transfer.quiet:
        free()
    else:
        transfer.cancel()
        transfers.quarantine(transfer, count, free)
