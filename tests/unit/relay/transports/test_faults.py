"""What goes wrong on the way: the bytes of a read that was given up strike nobody."""

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
from transfer_ways import ISOLATED_TCP, PROCESS_WAYS, Way

from kvrelay.relay.transports.base import Offer, Span, Transfer, TransferError
from kvrelay.relay.transports.memory import MemoryTransport

SPANS = [(n << 20, 1 << 20) for n in range(16)]
ERASED = 0xEE
HostMaker = Callable[..., Any]

over_processes = pytest.mark.parametrize("way", PROCESS_WAYS)


# The fake itself


class Party:
    def __init__(self, content: bytes) -> None:
        self.transport = MemoryTransport()
        self.buffer = ctypes.create_string_buffer(content, len(content))
        base = ctypes.addressof(self.buffer)
        self.spans = [Span(base + at, 10) for at in range(0, len(content), 10)]
        self.transport.register(Span(base, len(content)))

    @property
    def memory(self) -> bytes:
        return self.buffer.raw


@pytest.fixture
def parties() -> Iterator[tuple[Party, Party]]:
    pair = Party(bytes(range(40))), Party(bytes([ERASED]) * 40)
    yield pair
    for party in pair:
        party.transport.close()


@pytest.fixture
def started(parties: tuple[Party, Party]) -> tuple[Party, Party, Offer, Transfer]:
    source, reader = parties
    offer = source.transport.offer(source.spans)
    return source, reader, offer, reader.transport.read(offer, reader.spans)


Started = tuple[Party, Party, Offer, Transfer]


def test_delay(started: Started) -> None:
    source, reader, _, read = started
    source.transport.faults.steps_per_span = 3
    counts = []
    for _ in range(12):
        source.transport.progress()
        counts.append(read.poll())
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert read.quiet
    assert reader.memory == source.memory


def test_nothing_moves_without_the_sources_progress(started: Started) -> None:
    _, reader, _, read = started
    assert [read.poll() for _ in range(5)] == [0] * 5
    assert reader.memory == bytes([ERASED]) * 40


def test_stall_then_resume(started: Started) -> None:
    source, _, _, read = started
    source.transport.faults.stall_after = 2
    for _ in range(9):
        source.transport.progress()
    assert (read.poll(), read.quiet) == (2, False)
    source.transport.faults.stall_after = None
    for _ in range(2):
        source.transport.progress()
    assert (read.poll(), read.quiet) == (4, True)


def test_a_late_write_after_cancel(started: Started) -> None:
    source, reader, _, read = started
    source.transport.faults.stall_after = 2
    for _ in range(4):
        source.transport.progress()
    assert read.poll() == 2
    read.cancel()
    with pytest.raises(TransferError, match="cancelled"):
        read.poll()
    assert not read.quiet
    reader.buffer.raw = bytes([ERASED]) * 40  # too early
    source.transport.faults.stall_after = None
    for _ in range(4):
        source.transport.progress()
    with pytest.raises(TransferError):
        read.poll()
    assert read.quiet
    # What was on its way has struck; no more than that.
    assert reader.memory == bytes([ERASED]) * 20 + source.memory[20:30] + bytes([ERASED]) * 10


def test_a_broken_read_keeps_what_has_landed(started: Started) -> None:
    source, reader, _, read = started
    source.transport.faults.fail_after = 2
    for _ in range(4):
        source.transport.progress()
    assert read.poll() == 2
    with pytest.raises(TransferError, match="broke off"):
        read.poll()
    assert read.quiet
    assert reader.memory == source.memory[:25] + bytes([ERASED]) * 15  # torn within a span


def test_wrong_bytes(started: Started) -> None:
    source, reader, _, read = started
    source.transport.faults.corrupt = {1}
    for _ in range(4):
        source.transport.progress()
    assert read.poll() == 4
    wrong = [n for n in range(40) if reader.memory[n] != source.memory[n]]
    assert wrong == [10]


def test_death_and_withdrawal_of_the_source(started: Started) -> None:
    source, reader, offer, read = started
    source.transport.progress()
    source.transport.close()
    assert read.poll() == 1
    with pytest.raises(TransferError, match="died"):
        read.poll()
    assert read.quiet
    with pytest.raises(TransferError, match="gone"):
        reader.transport.read(offer, reader.spans)
    again = Party(bytes(40))
    offer = again.transport.offer(again.spans)
    again.transport.withdraw(offer)
    with pytest.raises(TransferError, match="ended"):
        reader.transport.read(offer, reader.spans)
    again.transport.close()


# Real processes


def begin(source: Any, reader: Any) -> tuple[Offer, int]:
    """A read that has begun and cannot end: the source is stopped."""
    source.call("fill", SPANS, 1)
    reader.call("erase", ERASED)
    offer = source.call("offer", SPANS)
    reader.call("fetch", offer, SPANS)  # connected, and the same memory
    reader.call("erase", ERASED)
    source.stop()
    read = reader.call("read", offer, SPANS)
    assert reader.call("wait", read, len(SPANS), 0.5)[1] == "timeout"
    return offer, read


def again(work: Callable[[], object]) -> None:
    """Until it works: a mover that has gone is being replaced."""
    end = time.monotonic() + 20
    while True:
        try:
            work()
            return
        except TransferError:
            assert time.monotonic() < end
            time.sleep(0.05)


@over_processes
def test_source_stopped_past_the_deadline(way: Way, hosts: HostMaker) -> None:
    source, reader = hosts(way), hosts(way)
    offer, read = begin(source, reader)
    reader.call("cancel", read)
    assert not reader.call("wait_quiet", read, 0.5)
    reader.call("erase", ERASED)  # as if the targets had been given to somebody else
    source.go_on()
    assert reader.call("wait_quiet", read, 20.0)
    assert reader.call("differing", ERASED) > 0, "nothing came late: this test shows nothing"
    # From now on the targets are free.
    reader.call("erase", ERASED)
    other = source.call("offer", SPANS[:1])
    reader.call("fetch", other, SPANS[:1])
    reader.call("execute", f"peer.memory[: {SPANS[0][1]}] = {ERASED}")
    time.sleep(0.3)
    assert reader.call("differing", ERASED) == 0
    reader.call("drop", read)
    # And the source is as good as before.
    reader.call("fetch", offer, SPANS)
    assert reader.call("digests", SPANS) == source.call("digests", SPANS)


@pytest.mark.slow
def test_patience_with_a_stopped_source_ends(hosts: HostMaker) -> None:
    source, reader = hosts(ISOLATED_TCP), hosts(ISOLATED_TCP)
    reader.call("execute", "import kvrelay.relay.transports.isolated as m; m.PATIENCE_S = 1.0")
    _, read = begin(source, reader)
    reader.call("cancel", read)
    assert reader.call("wait_quiet", read, 10.0)  # while the source stands still
    reader.call("erase", ERASED)
    source.go_on()
    time.sleep(0.5)
    assert reader.call("differing", ERASED) == 0
    # A new mover reads.
    again(lambda: reader.call("fetch", source.call("offer", SPANS), SPANS))
    assert reader.call("digests", SPANS) == source.call("digests", SPANS)


@over_processes
def test_source_killed_and_started_again(way: Way, hosts: HostMaker) -> None:
    reader = hosts(way)
    fds = []
    for incarnation in range(6):
        source = hosts(way)
        source.call("fill", SPANS, incarnation)
        wanted = source.call("digests", SPANS)
        offer = source.call("offer", SPANS)
        reader.call("fetch", offer, SPANS)
        assert reader.call("digests", SPANS) == wanted
        fds.append(settled_fds(reader))
        source.stop()  # so that it dies in the middle
        reader.call("erase", ERASED)
        read = reader.call("read", offer, SPANS)
        source.kill()
        counts, error = reader.call("wait", read, len(SPANS))
        assert error is not None
        assert error != "timeout"
        landed = counts[-1] if counts else 0
        assert reader.call("digests", SPANS[:landed]) == wanted[:landed]
        assert reader.call("wait_quiet", read, 5.0)
        reader.call("drop", read)
        for _ in range(10):
            with pytest.raises(TransferError):
                reader.call("fetch", offer, SPANS)
    # UCX leaks a socket where a connection fails that was begun: one in each round, now and then a
    # second one. The ten fetches that fail afterwards leak none.
    more = [after - before for before, after in itertools.pairwise(fds)]
    assert statistics.median(more) <= 1, fds
    assert max(more) <= 2, fds


def settled_fds(host: Any) -> float:
    """Descriptors that stay: a connection that is being made has one more for a moment."""
    looks = []
    for _ in range(10):
        looks.append(host.call("usage")["fds"])
        time.sleep(0.05)
    return min(looks)


@pytest.mark.slow
def test_readers_that_die_do_not_take_the_source_with_them(hosts: HostMaker) -> None:
    """A source that cannot answer is ended by UCX: its mover may go, the source must not."""
    source = hosts(ISOLATED_TCP)
    pid = source.process.pid
    for _ in range(3):
        reader = hosts(ISOLATED_TCP)
        again(lambda: source.call("withdraw", source.call("offer", SPANS)))
        begin(source, reader)
        reader.kill()
        source.go_on()
        time.sleep(0.3)
    reader = hosts(ISOLATED_TCP)
    again(lambda: reader.call("fetch", source.call("offer", SPANS), SPANS))
    assert reader.call("digests", SPANS) == source.call("digests", SPANS)
    assert source.process.poll() is None
    assert source.process.pid == pid


@pytest.mark.slow
def test_a_mover_that_dies_is_replaced(hosts: HostMaker) -> None:
    source, reader = hosts(ISOLATED_TCP), hosts(ISOLATED_TCP)
    source.call("fill", SPANS, 2)
    old = source.call("offer", SPANS)
    reader.call("fetch", old, SPANS)
    for host in (source, reader):
        host.call("execute", "peer.transport._process.kill(); peer.transport._process.wait()")
    with pytest.raises(TransferError):
        reader.call("fetch", old, SPANS)
    reader.call("erase", ERASED)
    again(lambda: reader.call("fetch", source.call("offer", SPANS), SPANS))
    assert reader.call("digests", SPANS) == source.call("digests", SPANS)


@pytest.mark.slow
def test_a_mover_ends_with_its_store(hosts: HostMaker) -> None:
    source = hosts(ISOLATED_TCP)
    mover = source.call("execute", "peer.warm_up(); result = peer.transport._process.pid")
    source.process.kill()  # it alone
    source.process.wait()
    end = time.monotonic() + 10
    while _alive(mover):
        assert time.monotonic() < end, "an orphan"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_plasma_source_killed(hosts: HostMaker) -> None:
    source, reader = hosts(Way("plasma")), hosts(Way("plasma"))
    source.call("fill", SPANS, 3)
    wanted = source.call("digests", SPANS)
    offer = source.call("offer", SPANS)
    reader.call("fetch", offer, SPANS)
    read = reader.call("read", offer, SPANS)
    source.kill()
    end = time.monotonic() + 20
    landed = 0
    # On one node they may be all here; with its owner gone Ray gives them out or says so.
    while not isinstance(told := reader.call("poll", read), str) and told < len(SPANS):
        assert time.monotonic() < end
        landed = told
    assert reader.call("wait_quiet", read, 5.0)
    assert reader.call("digests", SPANS[:landed]) == wanted[:landed]


@pytest.mark.slow
def test_plasma_objects_that_hold_less_than_was_offered(hosts: HostMaker) -> None:
    import ray

    source, reader = hosts(Way("plasma")), hosts(Way("plasma"))
    source.call("fill", SPANS, 4)
    reader.call("erase", ERASED)
    offer = source.call("offer", SPANS)
    *whole, (ref, count) = offer.ticket.batches
    arrays = ray.get(ref)
    for kept in ([*arrays[:-1], arrays[-1][:-1]], arrays[:-1]):
        ticket = replace(offer.ticket, batches=(*whole, (ray.put(kept), count)))
        read = reader.call("read", replace(offer, ticket=ticket), SPANS)
        counts, error = reader.call("wait", read, len(SPANS))
        assert error == "the source's objects do not hold what it offers"
        landed = len(SPANS) - count
        assert (counts[-1] if counts else 0) == landed
        assert reader.call("digests", SPANS[:landed]) == source.call("digests", SPANS[:landed])
        assert reader.call("quiet", read)
        assert reader.call("differing", ERASED) <= sum(size for _, size in SPANS[:landed])


@pytest.mark.slow
def test_plasma_is_bounded(hosts: HostMaker) -> None:
    source = hosts(Way("plasma"))
    offers = [source.call("offer", SPANS) for _ in range(4)]  # of a store of 160 MB
    with pytest.raises(TransferError, match="offered by plasma already"):
        source.call("offer", SPANS)
    source.call("withdraw", offers.pop())
    source.call("offer", SPANS)
