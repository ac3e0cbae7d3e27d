"""Demotion: what is worth least in the arena goes on being held, encoded.

A thread of its own works ahead of need. Once the arena is fuller than its high mark, it encodes
the blocks worth least, one after the other, down to the low mark:

    begin (store's thread) -> encode (this thread) -> place, finish (store's thread)

A save never waits for it: a reservation that finds no free slot evicts for good, at once. So does
this thread with a block that is worth less than the encoded ones that it would displace.
"""

import contextlib
import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import xxhash

from kvrelay.relay.arena import SlotHeader
from kvrelay.relay.codecs.base import Codec, Octets, codec, max_encoded_bytes
from kvrelay.relay.codecs.split import SplitCodec
from kvrelay.relay.encoded import EncodedBlock, EncodedMemory, Pages, num_pages
from kvrelay.relay.leases import leased
from kvrelay.relay.shelf import Shelf
from kvrelay.relay.store import StoreCore

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Shares of the arena. What is free above the high mark has to take the saves that come while
# blocks are encoded: a prompt of 4096 tokens of the demo model in the default arena. As much is
# encoded in a round, so that rounds are rare. More would leave more of the arena empty than a
# small second tier holds.
HIGH_MARK, LOW_MARK = 0.95, 0.9
# Fast enough to keep up, and what other nodes like best to read. See codecs/split.py.
CODEC = SplitCodec.name
# Between two rounds: one that found all that could go leased must not be followed at once.
_PAUSE_S = 0.02
_FAULT_PAUSE_S = 1.0


@dataclass(slots=True)
class Demotion:
    """A block on its way.

    Attributes:
        shelf, header: where it is.
        memory: where it goes.
        accessed_ns: the last access of its slot.
        worth: expected seconds saved per second of keeping it.
        pages: taken for it.
    """

    shelf: Shelf
    header: SlotHeader
    memory: EncodedMemory
    accessed_ns: int
    worth: float
    pages: Pages | None = None

    @property
    def stands(self) -> bool:
        """Whether the slot still holds the block."""
        return self.shelf.slab.state(self.header.slot) == self.header.state

    def unused(self, now_ns: int) -> bool:
        """Whether it stands, and nobody has come to use it meanwhile."""
        slab, slot = self.shelf.slab, self.header.slot
        untouched = slab.accesses[slot] == self.accessed_ns
        return self.stands and untouched and not leased(slab, now_ns)[slot]


def wanted(core: StoreCore) -> bool:
    """Whether the arena is fuller than its high mark, and there is somewhere to go."""
    return core.encoded is not None and core.used_bytes > HIGH_MARK * core.capacity_bytes


def begin(core: StoreCore) -> Demotion | None:
    """The block to encode next; None once the arena is down at its low mark."""
    memory = core.encoded
    while memory is not None and core.used_bytes > LOW_MARK * core.capacity_bytes:
        victims = core.victims(1)
        if not victims:
            break
        shelf, slot, worth = victims[0]
        # How long its encoding will be is not known yet; the last one's is near.
        size = shelf.slab.geometry.slot_bytes
        last = next(reversed(shelf.encoded.values()), None)
        count = num_pages(size, size) if last is None else len(last.pages)
        if _displaced(core, memory, worth, count) is None:
            _evict(core, shelf, slot)
            continue
        shelf.demoting.add(slot)
        return Demotion(shelf, shelf.header(slot), memory, shelf.slab.accesses[slot], worth)
    return None


def place(core: StoreCore, demotion: Demotion, num_bytes: int) -> Pages | None:
    """Pages for an encoding, cleared of what is worth less; None if there are none."""
    shelf, slot = demotion.shelf, demotion.header.slot
    if not demotion.unused(core.now_ns()):
        return None
    count = num_pages(num_bytes, shelf.slab.geometry.slot_bytes)
    displaced = _displaced(core, demotion.memory, demotion.worth, count)
    if displaced is None:
        _evict(core, shelf, slot)
        return None
    for other, key in displaced:
        core.evict_encoded(other, key, needed=True)
    demotion.pages = demotion.memory.take(count)
    return demotion.pages


def finish(core: StoreCore, demotion: Demotion, num_bytes: int) -> None:
    """The encoding has been written: hold that in place of the slot, unless it was used again."""
    shelf, header, pages = demotion.shelf, demotion.header, demotion.pages
    if not demotion.unused(core.now_ns()):
        return
    if pages is None:
        raise AssertionError("an encoding that has no pages")
    key, parent, checksum = header.key, header.parent, header.checksum
    tokens = shelf.slab.tokens(header)
    block = EncodedBlock(key, parent, tokens, checksum, CODEC, num_bytes, pages, demotion.memory)
    demotion.pages = None
    core.demote(shelf, header, block)


def end(core: StoreCore, demotion: Demotion, damaged: bool) -> None:
    """Whatever came of it, it is over; what turned out to be `damaged` is of use to nobody."""
    demotion.shelf.demoting.discard(demotion.header.slot)
    if demotion.pages is not None:
        demotion.memory.give_back(demotion.pages)
    if damaged and demotion.stands:
        core.evict(demotion.shelf, demotion.header.slot, needed=False)
        core.counters["damaged"] += 1


def _evict(core: StoreCore, shelf: Shelf, slot: int) -> None:
    core.evict(shelf, slot, needed=True)
    core.counters["not_demoted"] += 1


def _displaced(
    core: StoreCore, memory: EncodedMemory, worth: float, count: int
) -> list[tuple[Shelf, bytes]] | None:
    """Encoded blocks to evict so that `count` pages are free; None if they are worth more."""
    missing = count - memory.num_free
    if missing <= 0:
        return []
    chosen: list[tuple[Shelf, bytes]] = []
    ranked = [_ranked(core, number, missing) for number in range(len(core.shelves))]
    # By worth for the room that each takes; the order within a size is kept, see eviction.py.
    for _, number, theirs, key in heapq.merge(*ranked, key=lambda each: each[0]):
        worth -= theirs
        if worth <= 0:
            break
        shelf = core.shelves[number]
        chosen.append((shelf, key))
        missing -= len(shelf.encoded[key].pages)
        if missing <= 0:
            return chosen
    return None


def _ranked(
    core: StoreCore, number: int, missing: int
) -> Iterator[tuple[float, int, float, bytes]]:
    """Encoded blocks of a size, those worth least first: (density, number, worth, key)."""
    shelf = core.shelves[number]
    most = -(-missing // num_pages(0, shelf.slab.geometry.slot_bytes))
    pinned = [key for key, block in shelf.encoded.items() if block.pins]
    for worth, key in shelf.ledger.encoded_victims(most, pinned, core.now_ns()):
        yield worth / len(shelf.encoded[key].pages), number, worth, key


class Store(Protocol):
    """What the thread needs of the store's server."""

    def call(self, function: Callable[[StoreCore], T], timeout_s: float = ...) -> T:
        """Run something in the store's thread."""


class Demoter:
    """The thread; it sleeps until `wake`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rooms: dict[int, Octets] = {}  # by slot size: memory to encode into
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrelay-demote", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """The arena is fuller than its high mark. Any thread."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the block under way."""
        self._closing.set()
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        # A batch thread does not preempt whoever wakes it.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
        coder = codec(CODEC)  # takes seconds where it has to be compiled
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                while not self._closing.is_set() and (next_one := self._store.call(begin)):
                    self._demote(coder, next_one)
                self._closing.wait(_PAUSE_S)
            except Exception:
                logger.exception("demotion fault")
                self._closing.wait(_FAULT_PAUSE_S)

    def _demote(self, coder: Codec, demotion: Demotion) -> None:
        call, slab, slot = self._store.call, demotion.shelf.slab, demotion.header.slot
        damaged = False
        try:
            source = slab.data(slot)
            room = self._room(slab.geometry.slot_bytes)
            encoding = room[: coder.encode_into(source, room)]
            # The check costs a fifth of the encoding, and damage is not handed on.
            damaged = xxhash.xxh3_128_digest(source) != demotion.header.checksum
            if damaged:
                return
            pages = call(lambda core: place(core, demotion, encoding.size))
            if pages is not None:
                demotion.memory.write(pages, encoding)
                call(lambda core: finish(core, demotion, encoding.size))
        finally:
            call(lambda core: end(core, demotion, damaged))

    def _room(self, slot_bytes: int) -> Octets:
        if slot_bytes not in self._rooms:
            self._rooms[slot_bytes] = np.empty(max_encoded_bytes(slot_bytes), np.uint8)
        return self._rooms[slot_bytes]
