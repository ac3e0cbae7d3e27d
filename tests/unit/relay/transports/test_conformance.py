"""What every transport does, over all of them."""

import importlib
import inspect
import pickle
import pkgutil
import random

import pytest
from transfer_peer import KINDS
from transfer_ways import ALL_WAYS, REGION_BYTES, Pair

from kvrelay.relay import transports
from kvrelay.relay.transports.base import TransferError, Transport

SIZES = [1, 7, 64, 511, 4095, 4096, 4097, 65_536, 100_003, 1 << 20, 3 << 20]
BACKGROUND = 0xEE

over_all = pytest.mark.parametrize("pair", ALL_WAYS, indirect=True)
# Plasma copies, so that it knows no registration; and its references travel through Ray only.
over_direct = pytest.mark.parametrize(
    "pair", [way for way in ALL_WAYS if way.id != "plasma"], indirect=True
)


def layout(sizes: list[int], rng: random.Random) -> list[tuple[int, int]]:
    """Places for spans of these sizes, in an order of their own, with gaps, not aligned."""
    order = list(range(len(sizes)))
    rng.shuffle(order)
    at, places = rng.randrange(100), {}
    for index in order:
        places[index] = (at, sizes[index])
        at += sizes[index] + rng.randrange(1, 3000)
    assert at < REGION_BYTES
    return [places[index] for index in range(len(sizes))]


def test_every_transport_is_covered() -> None:
    covered = {
        getattr(importlib.import_module(module), name)
        for module, name in (KINDS[param.values[0].kind] for param in ALL_WAYS)
    }
    found = {
        value
        for info in pkgutil.iter_modules(transports.__path__, f"{transports.__name__}.")
        for value in vars(importlib.import_module(info.name)).values()
        if inspect.isclass(value) and issubclass(value, Transport) and value is not Transport
    }
    assert found == covered


@over_all
@pytest.mark.parametrize("seed", range(4))
def test_bytes_arrive_exactly_and_nowhere_else(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.sample(SIZES, len(SIZES)) + [rng.randrange(1, 9000) for _ in range(20)]
    spans, targets = layout(sizes, rng), layout(sizes, rng)
    pair.source.call("fill", spans, seed)
    pair.reader.call("erase", BACKGROUND)
    offer = pair.source.call("offer", spans)
    assert len(offer.spans) == len(spans)
    pair.reader.call("fetch", offer, targets)
    pair.source.call("withdraw", offer)
    assert pair.reader.call("digests", targets) == pair.source.call("digests", spans)
    for offset, size in targets:
        pair.reader.call("execute", f"peer.memory[{offset}:{offset + size}] = {BACKGROUND}")
    assert pair.reader.call("differing", BACKGROUND) == 0


@over_all
def test_what_is_counted_has_landed(pair: Pair) -> None:
    spans = [(n * 300_000, 300_000) for n in range(40)]
    pair.source.call("fill", spans, 5)
    wanted = pair.source.call("digests", spans)
    pair.reader.call("erase", BACKGROUND)
    offer = pair.source.call("offer", spans)
    read = pair.reader.call("read", offer, spans)
    told = 0
    while told < len(spans):
        pair.reader.call("step")
        now = pair.reader.call("poll", read)
        assert told <= now <= len(spans)
        assert pair.reader.call("digests", spans[told:now]) == wanted[told:now]
        told = now
    assert pair.reader.call("quiet", read)
    assert pair.reader.call("poll", read) == len(spans)
    pair.reader.call("drop", read)
    pair.source.call("withdraw", offer)


@over_all
def test_several_reads_at_once(pair: Pair) -> None:
    spans = [(n * 100_000, 100_000) for n in range(24)]
    pair.source.call("fill", spans, 6)
    wanted = pair.source.call("digests", spans)
    offers = [pair.source.call("offer", spans[start::2]) for start in (0, 1)]
    targets = [[(part * 4_000_000 + n * 100_001, 100_000) for n in range(12)] for part in range(3)]
    reads = [
        pair.reader.call("read", offers[0], targets[0]),
        pair.reader.call("read", offers[1], targets[1]),
        pair.reader.call("read", offers[0], targets[2]),
    ]
    for read in reversed(reads):
        counts, error = pair.reader.call("wait", read, 12)
        assert (counts[-1], error) == (12, None)
        pair.reader.call("drop", read)
    for target, first in zip(targets, (0, 1, 0), strict=True):
        assert pair.reader.call("digests", target) == wanted[first::2]
    for offer in offers:
        pair.source.call("withdraw", offer)


@over_all
def test_two_processes_number_their_offers_differently(pair: Pair) -> None:
    """One may be what the other has become: an old number must not mean a new offer."""
    offers = [(host, host.call("offer", [(0, 64)])) for host in (pair.source, pair.reader)]
    first, second = (offer.number for _, offer in offers)
    for host, offer in offers:
        host.call("withdraw", offer)
    assert abs(first - second) > 1000


@over_all
def test_an_empty_offer_is_read_at_once(pair: Pair) -> None:
    offer = pair.source.call("offer", [])
    read = pair.reader.call("read", offer, [])
    assert pair.reader.call("wait", read, 0) == ([0], None)
    assert pair.reader.call("wait_quiet", read, 5.0)
    pair.reader.call("drop", read)
    pair.source.call("withdraw", offer)


@over_all
def test_targets_must_fit(pair: Pair) -> None:
    offer = pair.source.call("offer", [(0, 10), (10, 20)])
    for targets in ([(0, 10)], [(0, 10), (10, 19)], [(0, 20), (20, 10)]):
        with pytest.raises(TransferError, match="sizes"):
            pair.reader.call("read", offer, targets)
    pair.source.call("withdraw", offer)


@over_all
def test_a_cancelled_read_becomes_quiet_and_writes_no_more(pair: Pair) -> None:
    spans = [(n * 1_000_000, 1_000_000) for n in range(16)]
    pair.source.call("fill", spans, 7)
    offer = pair.source.call("offer", spans)
    for _ in range(20):
        read = pair.reader.call("read", offer, spans)
        pair.reader.call("cancel", read)
        pair.reader.call("cancel", read)
        assert pair.reader.call("wait_quiet", read, 10.0)
        state = pair.reader.call("poll", read)
        if state != len(spans):
            break
        pair.reader.call("drop", read)  # it was there before anybody could cancel it
    assert "cancelled" in str(state)
    pair.reader.call("erase", BACKGROUND)
    other = pair.source.call("offer", spans[:1])
    pair.reader.call("fetch", other, spans[:1])  # moves whatever may still move
    assert pair.reader.call("digests", spans[:1]) == pair.source.call("digests", spans[:1])
    pair.reader.call("execute", f"peer.memory[:{spans[0][1]}] = {BACKGROUND}")
    assert pair.reader.call("differing", BACKGROUND) == 0
    pair.reader.call("drop", read)
    pair.source.call("withdraw", other)
    pair.source.call("withdraw", offer)
    pair.source.call("withdraw", offer)  # harmless


@over_all
def test_the_path_is_known_after_a_read(pair: Pair) -> None:
    offer = pair.source.call("offer", [(0, 1_000_000)])
    pair.reader.call("fetch", offer, [(0, 1_000_000)])
    path = pair.reader.call("path", offer)
    pair.source.call("withdraw", offer)
    if pair.way.tls == "tcp":
        assert path.split("/")[0] == "tcp"
    elif pair.way.kind in ("memory", "plasma"):
        assert path == {"memory": "memory", "plasma": "plasma/shm"}[pair.way.kind]
    else:  # what UCX finds best between processes of this machine
        assert path.split("/")[0] in ("cma", "knem", "xpmem", "sysv", "posix", "tcp")


@over_direct
def test_an_offer_survives_pickling(pair: Pair) -> None:
    pair.source.call("fill", [(5, 5000)], 8)
    offer = pair.source.call("offer", [(5, 5000)])
    assert len(pickle.dumps(offer)) < 4096
    pair.reader.call("fetch", pickle.loads(pickle.dumps(offer)), [(7, 5000)])
    assert pair.reader.call("digests", [(7, 5000)]) == pair.source.call("digests", [(5, 5000)])
    pair.source.call("withdraw", offer)


@over_direct
def test_only_registered_memory_is_written(pair: Pair) -> None:
    offer = pair.source.call("offer", [(0, 4096)])
    with pytest.raises(TransferError):
        pair.reader.call("read", offer, [(REGION_BYTES, 4096)])
    pair.reader.call("fetch", offer, [(0, 4096)])  # and goes on
    pair.source.call("withdraw", offer)


@over_direct
def test_memory_registered_later_is_read_too(pair: Pair) -> None:
    code = """
from kvrelay.relay.transports.base import Span
import mmap, os, numpy as np
fd = os.memfd_create("more")
os.ftruncate(fd, 1 << 20)
more = np.frombuffer(mmap.mmap(fd, 1 << 20), np.uint8)
more[:] = byte
peer.more = more, fd
peer.transport.register(Span(int(more.ctypes.data), 1 << 20))
result = int(more.ctypes.data) - peer.base
"""
    for byte in (3, 4):
        where = pair.source.call("execute", code, byte=byte)
        offer = pair.source.call("offer", [(where, 1 << 20)])
        pair.reader.call("fetch", offer, [(0, 1 << 20)])
        assert pair.reader.call("execute", f"result = bool((peer.memory[:1<<20] == {byte}).all())")
        pair.source.call("withdraw", offer)
