"""The load state machine with fake block memory and a fake clock; no sleeps decide."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kvrelay.policies import Reason
from kvrelay.relay.connector.blocks import BlockMemory
from kvrelay.relay.connector.loads import FinishedLoad, Loads
from kvrelay.relay.connector.metadata import LoadBlock, LoadJob

INCARNATION = b"i" * 16


class FakeBlocks(BlockMemory):
    """Loads succeed unless told otherwise; `gate` holds copies back."""

    slot_bytes = 10

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.loaded: list[int] = []
        self.wrong: set[int] = set()
        self.broken: set[int] = set()

    def save(self, block_id: int, address: int) -> bytes:
        raise NotImplementedError

    def load(self, block_id: int, address: int) -> bytes:
        self.started.release()
        self.gate.wait(5)
        if block_id in self.broken:
            raise OSError("injected")
        self.loaded.append(block_id)
        return b"wrong" if block_id in self.wrong else b"good"


class FakeSlab:
    incarnation = INCARNATION

    def __init__(self) -> None:
        self.evicted: set[int] = set()

    def state(self, slot: int) -> int:
        return 5 if slot in self.evicted else 3

    def address(self, slot: int) -> int:
        return slot


class Bed:
    def __init__(self) -> None:
        self.now_ns = 0
        self.blocks, self.slab = FakeBlocks(), FakeSlab()
        attachment = SimpleNamespace(slab=self.slab)
        self.loads = Loads(
            self.blocks,
            lambda: attachment if self.slab is not None else None,  # type: ignore[arg-type, return-value]
            lambda: self.now_ns,
        )

    def submit(
        self,
        request_id: str = "r",
        count: int = 4,
        deadline_s: float = 1.0,
        incarnation: bytes = INCARNATION,
        discards: bool = False,
    ) -> None:
        blocks = tuple(LoadBlock(10 + n, n, 3, b"good", bytes([n])) for n in range(count))
        self.loads.submit(LoadJob(request_id, incarnation, deadline_s, blocks, discards))

    def finish(self) -> FinishedLoad:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            self.loads.help(0.05)
            if finished := self.loads.take_finished():
                (load,) = finished
                return load
        raise AssertionError("the load was not reported")


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.blocks.gate.set()
    bed.loads.close()


def test_a_load_copies_every_block_once(bed: Bed) -> None:
    bed.submit()
    load = bed.finish()
    assert sorted(bed.blocks.loaded) == [10, 11, 12, 13]
    assert (load.outcome.num_loaded, load.outcome.failure, load.failed_block_ids) == (4, None, [])
    assert load.outcome.num_bytes == 40
    assert len(bed.loads) == 0


def test_blocks_from_the_first_bad_one_on_are_reported(bed: Bed) -> None:
    bed.blocks.wrong = {12}
    bed.submit()
    load = bed.finish()
    assert load.outcome.failure is Reason.LOAD_CORRUPT
    assert load.outcome.num_loaded == 2
    assert load.failed_block_ids == [12, 13]
    assert load.outcome.corrupt_keys == (bytes([2]),)


@pytest.mark.parametrize("slot", [0, 3])
def test_an_evicted_slot_is_not_taken(bed: Bed, slot: int) -> None:
    bed.slab.evicted = {slot}
    bed.submit()
    load = bed.finish()
    assert (load.outcome.failure, load.outcome.num_loaded) == (Reason.LOAD_EVICTED, slot)


def test_another_incarnation_is_not_read(bed: Bed) -> None:
    bed.submit(incarnation=b"j" * 16)
    assert bed.finish().outcome.failure is Reason.STORE_UNAVAILABLE
    assert bed.blocks.loaded == []


def test_an_error_while_copying_is_a_failed_load(bed: Bed) -> None:
    bed.blocks.broken = {11}
    bed.submit()
    load = bed.finish()
    assert (load.outcome.failure, load.outcome.num_loaded) == (Reason.LOAD_FAULT, 1)


def test_a_load_past_its_deadline_waits_only_for_the_copy_under_way(bed: Bed) -> None:
    bed.blocks.gate.clear()
    bed.submit()
    assert bed.blocks.started.acquire(timeout=5)
    bed.now_ns = 1_000_000_001
    assert bed.loads.take_finished() == []  # somebody still writes to its blocks
    bed.blocks.gate.set()
    load = bed.finish()
    assert load.outcome.failure is Reason.LOAD_DEADLINE
    assert load.outcome.num_loaded <= 1
    assert len(bed.blocks.loaded) <= 1


def test_a_step_that_ran_before_takes_nothing_of_its_time(bed: Bed) -> None:
    bed.now_ns = 3600 * 10**9
    bed.submit()
    assert bed.finish().outcome.failure is None


def test_a_cancelled_load_is_still_reported(bed: Bed) -> None:
    bed.blocks.gate.clear()
    bed.submit("gone")
    assert bed.blocks.started.acquire(timeout=5)
    bed.loads.cancel({"gone", "unknown"})
    bed.blocks.gate.set()
    load = bed.finish()
    assert (load.outcome.request_id, load.outcome.failure) == ("gone", Reason.LOAD_CANCELLED)


def test_loads_do_not_wait_for_one_that_is_over(bed: Bed) -> None:
    bed.submit("late", deadline_s=-1.0)
    bed.submit("good")
    finished: list[FinishedLoad] = []
    end = time.monotonic() + 5
    while len(finished) < 2 and time.monotonic() < end:
        bed.loads.help(0.05)
        finished += bed.loads.take_finished()
    outcomes = {load.outcome.request_id: load.outcome.failure for load in finished}
    assert outcomes == {"late": Reason.LOAD_DEADLINE, "good": None}


def test_what_is_to_be_discarded_is_loaded_whole_and_none_of_it_is_good(bed: Bed) -> None:
    bed.submit(discards=True)
    load = bed.finish()
    assert sorted(bed.blocks.loaded) == [10, 11, 12, 13]
    assert (load.outcome.failure, load.outcome.num_loaded) == (Reason.MODE_DISCARD, 0)
    assert load.outcome.num_bytes == 40
    assert load.failed_block_ids == [10, 11, 12, 13]


def test_a_failure_is_said_also_if_all_is_discarded(bed: Bed) -> None:
    bed.blocks.wrong = {12}
    bed.submit(discards=True)
    load = bed.finish()
    assert (load.outcome.failure, load.outcome.num_loaded) == (Reason.LOAD_CORRUPT, 0)
    assert load.failed_block_ids == [10, 11, 12, 13]
    assert load.outcome.corrupt_keys == (bytes([2]),)
