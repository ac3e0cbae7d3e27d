import itertools
from collections.abc import Iterator

import pytest

from kvrelay.relay.store import StoreCore


class FakeClock:
    """A monotonic clock that moves only when told to, but never stands still when read."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self._tick = itertools.count()

    def __call__(self) -> int:
        return self.now_ns + next(self._tick)

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def core(clock: FakeClock) -> Iterator[StoreCore]:
    core = StoreCore(capacity_bytes=8 * 4096, now_ns=clock)
    yield core
    core.check_integrity()
