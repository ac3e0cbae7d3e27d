"""Brings blocks here that an agent of this node is expected to need, before it asks for them.

    engine whose request is over --Expect--> its store --> directory --> stores of other nodes:
    is the agent here? what is missing? does it pay? --> a few blocks at a time --> used, or wasted

What comes is committed like any fetched block: verified, found by every engine of this node, and
the first to go if it is worth least. Only its header says that it came ahead. Pulls give way: one
is under way at a time, and no part of it begins while an engine waits for a fetch of its own.

Lives in the transfer thread (transfer.py). What becomes of a block is told by its slot: it was used
if somebody has set the access word since, to load it, to lend it on, or having computed it all the
same; it was wasted if the slot was given away before, or after a while.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvrelay.policies.prediction import Accuracy, Pull
from kvrelay.policies.prefill import PrefillCost
from kvrelay.relay import protocol
from kvrelay.relay.arena import Slab, SlotHeader
from kvrelay.relay.directory import Expected
from kvrelay.relay.fetch import Fetch
from kvrelay.relay.store import StoreCore

if TYPE_CHECKING:
    from kvrelay.relay.transfer import Transfers

MAX_WAITING = 8
MAX_UNSETTLED = 256
# What another fetch may have to share a link with; at least one block.
PART_BYTES = 4 << 20
PART_S = 10.0
# Whoever was expected has mostly come by then; what is still missing is not brought any more.
PATIENCE_S = 10.0
# Blocks that nobody has used by then are counted as wasted.
SETTLE_S = 60.0
LOOK_S = 1.0
# Seconds per byte of a link that nothing has been read over yet; as `costs` assumes to begin with.
UNKNOWN_LINK_S = 1e-8


class _Place(NamedTuple):
    """What the store says of what is expected.

    Attributes:
        slab_id, slab: where the blocks belong.
        missing: those that can be read, up to the first one that cannot be had.
        displaced_per_s: worth of what would have to go for them.
    """

    slab_id: int
    slab: Slab
    missing: list[bytes]
    displaced_per_s: float


@dataclass(slots=True, eq=False)
class _Begun:
    """A pull that is worth it, and what has come of it.

    Attributes:
        until_ns: no part begins later.
        next: place in the keys from which on nothing has been asked for yet.
        num_came: blocks so far.
        num_used: of those, blocks that somebody has used.
        unjudged: blocks of which neither is known: header and access word.
        settled_ns: when those count as wasted.
    """

    expected: Expected
    slab_id: int
    slab: Slab
    until_ns: int
    next: int = 0
    num_came: int = 0
    num_used: int = 0
    unjudged: list[tuple[SlotHeader, int]] = field(default_factory=list)
    settled_ns: int = 0


class Ahead:
    """See the module's head. All methods run in the transfer thread."""

    def __init__(self, transfers: Transfers) -> None:
        self._t = transfers
        self._prefill = PrefillCost()
        self._waiting: deque[_Begun] = deque()
        self._fetch: Fetch | None = None
        self._num_asked = 0  # by that fetch
        self._number = 0
        self._unsettled: list[_Begun] = []
        self._looked_ns = 0
        self._accuracy: defaultdict[str, Accuracy] = defaultdict(Accuracy)

    def hear(self, told: Sequence[Expected]) -> None:
        """Agents, of this node or not, are expected to need blocks."""
        for expected in told:
            self._consider(expected)

    def advance(self) -> None:
        """Go on with pulls, if nothing else is to be fetched."""
        if self._unsettled and time.monotonic_ns() - self._looked_ns > LOOK_S * 1e9:
            self.settle()
        if self._fetch is not None:
            if not self._fetch.ended:
                return
            self._take_in(self._fetch)
        while self._waiting and self._fetch is None and not self._t.fetching:
            self._begin_part(self._waiting[0])

    def settle(self) -> None:
        """Count what has been used, and what has not and will not be."""
        self._looked_ns = now_ns = time.monotonic_ns()
        for begun in list(self._unsettled):
            used, wasted = self._judge(begun, now_ns)
            begun.num_used += used
            self._t.counters["ahead_used_blocks"] += used
            self._t.counters["ahead_wasted_blocks"] += wasted
            if not begun.unjudged:
                self._unsettled.remove(begun)
                share = begun.num_used / begun.num_came
                accuracy = self._accuracy[begun.expected.agent]
                accuracy.settled(begun.expected.probability, share)

    @property
    def wait_s(self) -> float | None:
        """After how long to call `advance` if nothing happens before; None: not at all."""
        return LOOK_S if self._unsettled else None

    # Whether

    def _consider(self, expected: Expected) -> None:
        place = self._t.server.call(lambda core: self._look(core, expected))
        if place is None or not place.missing:
            return
        if len(self._waiting) == MAX_WAITING:
            self._t.counters["ahead_dropped"] += 1
            return
        accuracy = self._accuracy[expected.agent]
        if not self._pull(expected, place, accuracy.corrected(expected.probability)).pays:
            accuracy.passed()
            self._t.counters["ahead_passed"] += 1
            return
        self._t.counters["ahead_pulls"] += 1
        until_ns = time.monotonic_ns() + int(PATIENCE_S * 1e9)
        self._waiting.append(_Begun(expected, place.slab_id, place.slab, until_ns))

    def _look(self, core: StoreCore, expected: Expected) -> _Place | None:
        """In the store's thread: what there is to do; None if it is not for this node."""
        slab_id = core.find_slab(expected.slot_bytes, expected.block_tokens)
        if slab_id is None or not core.serves(expected.agent):
            return None
        missing = self._missing(core, slab_id, expected.keys)
        needed = len(missing) * core.slab(slab_id).geometry.stride_bytes
        victims = core.victims(needed - (core.capacity_bytes - core.used_bytes))
        worth = sum(victim.worth for victim in victims)
        return _Place(slab_id, core.slab(slab_id), missing, worth)

    def _missing(self, core: StoreCore, slab_id: int, keys: Sequence[bytes]) -> list[bytes]:
        """In the store's thread: which of these blocks are to be read, in order."""
        shelf, missing = core.shelves[slab_id], []
        for key in keys:
            if key in shelf.sealed or key in shelf.pending or key in shelf.encoded:
                continue
            if not self._t.catalog.places(key):
                break
            missing.append(key)
        return missing

    def _pull(self, expected: Expected, place: _Place, probability: float) -> Pull:
        num_tokens = len(expected.keys) * expected.block_tokens
        prefill_s = expected.prefill_s
        if prefill_s is None:
            prefill_s = float(self._prefill.added_s(0, num_tokens))
        costs = self._t.routes.costs()
        nodes = self._t.catalog.places(place.missing[0])
        per_byte_s = [cost for (node_id, _), cost in costs.items() if node_id in nodes]
        num_bytes = len(place.missing) * expected.slot_bytes
        return Pull(
            probability,
            transfer_s=num_bytes * min(per_byte_s, default=UNKNOWN_LINK_S),
            prefill_s=prefill_s * len(place.missing) / len(expected.keys),
            displaced_per_s=place.displaced_per_s,
        )

    # How

    def _begin_part(self, begun: _Begun) -> None:
        """Fetch the next few blocks; without any, or too late, the pull is over."""
        expected, now_ns = begun.expected, time.monotonic_ns()
        keys = expected.keys[begun.next :]
        missing = self._t.server.call(lambda core: self._missing(core, begun.slab_id, keys))
        if not missing or now_ns > begun.until_ns:
            self._end(is_whole=not missing)
            return
        part = missing[: max(1, PART_BYTES // expected.slot_bytes)]
        # Only ever onwards: in a small arena one part may cost another one its room.
        begun.next = expected.keys.index(part[-1]) + 1
        self._number += 1
        deadline_ns = now_ns + int(PART_S * 1e9)
        message = protocol.Fetch(self._number, begun.slab_id, part, deadline_ns)
        self._num_asked = len(part)
        self._fetch = self._t.open_ahead(message)

    def _take_in(self, fetch: Fetch) -> None:
        """A part is over."""
        begun, self._fetch = self._waiting[0], None
        self._t.close_fetch(fetch)
        begun.num_came += len(fetch.came)
        begun.unjudged += fetch.came
        self._t.counters["ahead_blocks"] += len(fetch.came)
        if len(fetch.came) < self._num_asked:  # no room, or nobody to read from: so it would go on
            self._end(is_whole=False)

    def _end(self, is_whole: bool) -> None:
        begun = self._waiting.popleft()
        if not is_whole:
            self._t.counters["ahead_dropped"] += 1
        if begun.num_came:
            for oldest in self._unsettled[: 1 - MAX_UNSETTLED]:
                oldest.settled_ns = 0  # it is judged as it stands
            begun.settled_ns = time.monotonic_ns() + int(SETTLE_S * 1e9)
            self._unsettled.append(begun)

    @staticmethod
    def _judge(begun: _Begun, now_ns: int) -> tuple[int, int]:
        """How many blocks have turned out to be used since, and how many to be wasted."""
        used = wasted = 0
        unjudged = []
        for header, access in begun.unjudged:
            if begun.slab.state(header.slot) != header.state:
                wasted += 1
            elif begun.slab.accesses[header.slot] != access:
                used += 1
            elif now_ns > begun.settled_ns:
                wasted += 1
            else:
                unjudged.append((header, access))
        begun.unjudged = unjudged
        return used, wasted
