"""A store that only those find who are told its address, for benchmarks of a single node."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore


@contextlib.contextmanager
def own_store(capacity_bytes: int) -> Iterator[tuple[StoreServer, str]]:
    """The store and its address; it serves as long as the context lasts."""
    address = f"kvrelay-bench-{secrets.token_hex(8)}"
    server = StoreServer(StoreCore(capacity_bytes, time.monotonic_ns), address)
    try:
        yield server, address
    finally:
        server.close()
