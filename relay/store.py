"""The KV store's core: who may write which slot, what is visible, what is evicted.

Sans I/O: the server feeds it messages, tests feed it histories. Only this class writes the
slabs' tables and headers.

    free --reserve--> reserved --commit--> sealed --evict/drop--> free
                          \\----abort, owner gone----------------> free

A reservation has no deadline: its owner may still be writing, so the slot is not given to
anybody else until the owner commits, aborts or is gone. Every slot is free, reserved or
sealed; bytes in use are (reserved + sealed) slots times their slab's distance of slots, and
never exceed the capacity.
"""

import heapq
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kvrelay.policies.eviction import NO_SLOT, EvictionPolicy
from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.value_density import ValueDensity
from kvrelay.relay.arena import INCARNATION_BYTES, MAX_CLIENTS, Slab, SlabGeometry, SlotHeader
from kvrelay.relay.directory import PublishedBlock
from kvrelay.relay.errors import ArenaError, ProtocolError
from kvrelay.relay.index import IndexWriter, find
from kvrelay.relay.keys import KEY_BYTES, TOKEN_BYTES, BlockKey
from kvrelay.relay.leases import clear_client, leased

MAX_SLABS = 16


class Refusal(StrEnum):
    """Why a key was not granted a slot."""

    HELD = "held"  # already sealed
    PENDING = "pending"  # another client is writing it
    FULL = "full"  # nothing can be evicted


@dataclass(frozen=True, slots=True)
class Entry:
    """A block as its writer commits it.

    Attributes:
        slot: the reserved slot.
        key: as it was reserved.
        parent: key of the block before, or `NO_KEY` if it must match as a whole.
        tokens: packed ids.
        checksum: XXH3-128 over the slot's bytes.
    """

    slot: int
    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes


@dataclass(slots=True)
class _SlabState:
    slab: Slab
    index: IndexWriter
    free: list[int]
    policy: EvictionPolicy
    sealed: dict[bytes, int] = field(default_factory=dict)
    reserved: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # slot: client, key
    pending: dict[bytes, int] = field(default_factory=dict)  # key: slot

    @property
    def used(self) -> int:
        return len(self.sealed) + len(self.reserved)

    def observe(self) -> None:
        """Let the policy know what readers have used."""
        self.policy.observe(np.frombuffer(self.slab.accesses, np.uint64))


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """What became visible and what went since the last call, for the directory."""

    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class StoreCore:
    """All state of one node's store."""

    def __init__(self, capacity_bytes: int, now_ns: Callable[[], int]) -> None:
        """An empty store.

        Args:
            capacity_bytes: upper bound of bytes in slots.
            now_ns: the monotonic clock that leases are written with.
        """
        if capacity_bytes < 1:
            raise ArenaError(f"capacity_bytes must be positive, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self.counters: Counter[str] = Counter()
        self._now_ns = now_ns
        self._slabs: list[_SlabState] = []
        self._clients: set[int] = set()
        self._added: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    # Clients

    def connect(self) -> int:
        """Admit a client.

        Raises:
            ProtocolError: too many.
        """
        for client_id in range(MAX_CLIENTS):
            if client_id not in self._clients:
                self._clients.add(client_id)
                return client_id
        raise ProtocolError(f"more than {MAX_CLIENTS} clients on one node")

    def disconnect(self, client_id: int) -> None:
        """Forget a client that has gone: its reservations and its leases."""
        self._clients.discard(client_id)
        for state in self._slabs:
            mine = [slot for slot, (owner, _) in state.reserved.items() if owner == client_id]
            for slot in mine:
                self._unreserve(state, slot)
            clear_client(state.slab, client_id)

    # Slabs

    def open_slab(self, slot_bytes: int, block_tokens: int) -> int:
        """The number of the slab for these sizes, made if it is the first time.

        Raises:
            ProtocolError: a slot would not fit the capacity, or there are too many slabs.
        """
        known = self.find_slab(slot_bytes, block_tokens)
        if known is not None:
            return known
        if not 0 < slot_bytes <= self.capacity_bytes or block_tokens < 1:
            raise ProtocolError(
                f"a block of {slot_bytes} bytes does not fit relay.capacity_bytes="
                f"{self.capacity_bytes}; raise it"
            )
        if len(self._slabs) == MAX_SLABS:
            raise ProtocolError(f"more than {MAX_SLABS} different block sizes on one node")
        stride = SlabGeometry(slot_bytes, block_tokens, 1).stride_bytes
        num_slots = max(1, self.capacity_bytes // stride)
        slab = Slab.create(SlabGeometry(slot_bytes, block_tokens, num_slots), self.incarnation)
        free = list(range(num_slots - 1, -1, -1))
        policy = ValueDensity(num_slots, block_tokens, stride, PrefillCost())
        self._slabs.append(_SlabState(slab, IndexWriter(slab), free, policy))
        return len(self._slabs) - 1

    def find_slab(self, slot_bytes: int, block_tokens: int) -> int | None:
        """The number of the slab for these sizes, if there is one."""
        for slab_id, state in enumerate(self._slabs):
            g = state.slab.geometry
            if (g.slot_bytes, g.block_tokens) == (slot_bytes, block_tokens):
                return slab_id
        return None

    def slab(self, slab_id: int) -> Slab:
        """A slab by number.

        Raises:
            ProtocolError: there is none.
        """
        return self._state(slab_id).slab

    def close(self) -> None:
        """Let go of the slabs' descriptors; their mappings stay readable."""
        for state in self._slabs:
            state.slab.close()

    # Writing

    def reserve(
        self, client_id: int, slab_id: int, keys: Sequence[bytes]
    ) -> tuple[list[tuple[bytes, int]], Counter[Refusal]]:
        """Grant slots for those keys that nobody holds or writes.

        Returns:
            The granted (key, slot) in the order asked, and how many were refused and why.
        """
        self._check_client(client_id)
        state = self._state(slab_id)
        granted: list[tuple[bytes, int]] = []
        refused: Counter[Refusal] = Counter()
        wanted = []
        for key in dict.fromkeys(keys):
            if len(key) != KEY_BYTES:
                raise ProtocolError(f"a key of {len(key)} bytes")
            if key in state.sealed:
                refused[Refusal.HELD] += 1
            elif key in state.pending:
                refused[Refusal.PENDING] += 1
            else:
                wanted.append(key)
        num_slots = self._make_room(state, len(wanted))
        refused[Refusal.FULL] += len(wanted) - num_slots
        for key in wanted[:num_slots]:
            slot = state.free.pop()
            state.reserved[slot] = (client_id, key)
            state.pending[key] = slot
            granted.append((key, slot))
        self.counters.update({f"refused_{name}": n for name, n in refused.items()})
        return granted, +refused

    def commit(self, client_id: int, slab_id: int, entries: Sequence[Entry]) -> None:
        """Seal written slots: from here on readers find them.

        Raises:
            ProtocolError: a slot that this client has not reserved for this key.
        """
        state = self._state(slab_id)
        state.observe()
        g = state.slab.geometry
        for entry in entries:
            if state.reserved.get(entry.slot) != (client_id, entry.key):
                raise ProtocolError(f"commit of slot {entry.slot}, which is not reserved for it")
            num_tokens, rest = divmod(len(entry.tokens), TOKEN_BYTES)
            if rest or not 0 < num_tokens <= g.block_tokens or len(entry.checksum) != 16:
                raise ProtocolError(f"commit of slot {entry.slot} with a malformed entry")
            del state.reserved[entry.slot], state.pending[entry.key]
            sealed = state.slab.state(entry.slot) | 1
            header = SlotHeader(
                entry.slot, sealed, entry.key, entry.parent, entry.checksum, num_tokens
            )
            state.slab.write_header(header, entry.tokens)
            state.slab.accesses[entry.slot] = now_ns = self._now_ns()
            parent_slot = state.sealed.get(entry.parent, NO_SLOT)
            state.policy.insert(entry.slot, entry.key, parent_slot, num_tokens, now_ns)
            state.slab.set_state(entry.slot, sealed)
            state.sealed[entry.key] = entry.slot
            state.index.insert(header)
            self._removed.pop(entry.key, None)
            self._added[entry.key] = None
            self.counters["committed"] += 1

    def abort(self, client_id: int, slab_id: int, slots: Sequence[int]) -> None:
        """Give reserved slots back unwritten; slots that are not the client's are ignored."""
        state = self._state(slab_id)
        for slot in slots:
            if slot in state.reserved and state.reserved[slot][0] == client_id:
                self._unreserve(state, slot)
                self.counters["aborted"] += 1

    def disown(self, client_id: int, slab_id: int, slots: Sequence[int]) -> None:
        """Keep reserved slots from use, but let their keys be reserved anew elsewhere.

        For slots that somebody may still write to although nobody waits for them any more.
        """
        state = self._state(slab_id)
        for slot in slots:
            owner, key = state.reserved[slot]
            if owner != client_id:
                raise ProtocolError(f"slot {slot} is reserved for another client")
            nobody = secrets.token_bytes(KEY_BYTES)
            del state.pending[key]
            state.pending[nobody] = slot
            state.reserved[slot] = (owner, nobody)

    # Removing

    def drop(self, keys: Sequence[bytes]) -> int:
        """Evict these keys wherever they are held, leased or not; how many were there."""
        dropped = 0
        for state in self._slabs:
            for key in keys:
                if key in state.sealed:
                    self._evict(state, state.sealed[key], needed=False)
                    dropped += 1
        return dropped

    def clear(self) -> int:
        """Drop everything that is sealed; how many blocks that were."""
        # Backwards, so that children go before their parents.
        return self.drop([key for state in self._slabs for key in reversed(state.sealed)])

    # Looking

    def keys(self) -> list[bytes]:
        """Keys of all sealed blocks."""
        return [key for state in self._slabs for key in state.sealed]

    def held(self, slab_id: int, key: bytes) -> SlotHeader | None:
        """The sealed slot of a key in one slab."""
        state = self._state(slab_id)
        slot = state.sealed.get(key)
        return None if slot is None else state.slab.read_header(slot)

    def being_written(self, slab_id: int, key: bytes) -> bool:
        """Whether somebody has a slot reserved for a key."""
        return key in self._state(slab_id).pending

    def published(self, keys: Sequence[bytes]) -> list[PublishedBlock]:
        """What other nodes must know of those of these blocks that are held."""
        found = []
        for key in keys:
            for state in self._slabs:
                header = state.slab.read_header(state.sealed[key]) if key in state.sealed else None
                if header is not None:
                    size = state.slab.geometry.block_tokens
                    tokens = state.slab.tokens(header)
                    found.append(PublishedBlock(key, header.parent, tokens, size))
                    break
        return found

    @property
    def has_events(self) -> bool:
        """Whether `take_events` has something to say."""
        return bool(self._added or self._removed)

    def take_events(self) -> StoreEvents:
        """Changes since the last call; called at least once a second, so it also looks for uses."""
        for state in self._slabs:
            state.observe()
        events = StoreEvents(tuple(self._added), tuple(self._removed))
        self._added, self._removed = {}, {}
        return events

    @property
    def used_bytes(self) -> int:
        """Bytes of reserved and sealed slots."""
        return sum(state.used * state.slab.geometry.stride_bytes for state in self._slabs)

    def stats(self) -> dict[str, int]:
        """Counts for status displays and tests."""
        now_ns = self._now_ns()
        return {
            "capacity_bytes": self.capacity_bytes,
            "used_bytes": self.used_bytes,
            "blocks": sum(len(state.sealed) for state in self._slabs),
            "reserved": sum(len(state.reserved) for state in self._slabs),
            "leases": sum(int(leased(state.slab, now_ns).sum()) for state in self._slabs),
            "clients": len(self._clients),
            "slabs": len(self._slabs),
            **dict(self.counters),
        }

    def check_integrity(self) -> None:
        """Check every invariant that this module's head states.

        Raises:
            AssertionError: naming the one that does not hold.
        """
        _require(self.used_bytes <= max(self.capacity_bytes, 0), "used bytes exceed the capacity")
        for state in self._slabs:
            sealed, reserved, free = (
                set(state.sealed.values()),
                set(state.reserved),
                set(state.free),
            )
            _require(len(free) == len(state.free), "a slot is free twice")
            _require(len(sealed) == len(state.sealed), "two keys share a slot")
            _require(
                not (sealed & reserved or sealed & free or reserved & free),
                "a slot is in two states",
            )
            _require(
                len(sealed | reserved | free) == state.slab.geometry.num_slots, "a slot is lost"
            )
            _require(
                state.pending == {key: slot for slot, (_, key) in state.reserved.items()},
                "pending keys and reservations differ",
            )
            _require(
                {owner for owner, _ in state.reserved.values()} <= self._clients,
                "a reservation outlived its client",
            )
            for key, slot in state.sealed.items():
                header = find(state.slab, BlockKey(key))
                _require(header is not None and header.slot == slot, "a sealed key is not found")
            _require(state.policy.held() == sealed, "the policy knows of other blocks")
            for slot in reserved | free:
                _require(not state.slab.state(slot) & 1, "a slot that is not committed is visible")
            for table in (state.slab.key_table, state.slab.parent_table):
                _require(
                    sum(1 for entry in table if 0 < entry < 0xFFFFFFFF) <= len(sealed),
                    "a table has more entries than there are sealed slots",
                )

    def _state(self, slab_id: int) -> _SlabState:
        if not 0 <= slab_id < len(self._slabs):
            raise ProtocolError(f"no slab {slab_id}")
        return self._slabs[slab_id]

    def _check_client(self, client_id: int) -> None:
        if client_id not in self._clients:
            raise ProtocolError(f"no client {client_id}")

    def _unreserve(self, state: _SlabState, slot: int) -> None:
        _, key = state.reserved.pop(slot)
        del state.pending[key]
        state.free.append(slot)

    def _make_room(self, state: _SlabState, wanted: int) -> int:
        """Evict until `wanted` more slots fit, if that can be; how many fit."""
        stride = state.slab.geometry.stride_bytes
        room = self.capacity_bytes - self.used_bytes
        for victim_state, slot in self._victims(wanted * stride - room):
            self._evict(victim_state, slot, needed=True)
            room += victim_state.slab.geometry.stride_bytes
            if victim_state is not state:
                victim_state.slab.release_pages(slot)
        return max(0, min(wanted, room // stride, len(state.free)))

    def _victims(self, missing_bytes: int) -> list[tuple[_SlabState, int]]:
        """The unleased slots worth least for their size that hold `missing_bytes` together."""
        if missing_bytes <= 0:
            return []
        now_ns = self._now_ns()
        ranked = []
        for number, state in enumerate(self._slabs):
            state.observe()
            most = -(-missing_bytes // state.slab.geometry.stride_bytes)
            victims = state.policy.victims(most, leased(state.slab, now_ns), now_ns)
            ranked.append([(victim.value, number, victim.slot) for victim in victims])
        chosen = []
        for _, number, slot in heapq.merge(*ranked):
            if missing_bytes <= 0:
                break
            chosen.append((self._slabs[number], slot))
            missing_bytes -= self._slabs[number].slab.geometry.stride_bytes
        return chosen

    def _evict(self, state: _SlabState, slot: int, needed: bool) -> None:
        """Free a sealed slot, because its room is `needed` or its block is of no use."""
        header = state.slab.read_header(slot)
        if header is None:
            raise AssertionError(f"slot {slot} to evict is not sealed")
        # Unseal first: a reader that copies right now finds another generation afterwards.
        state.slab.set_state(slot, ((header.state >> 1) + 1) << 1)
        state.index.remove(header)
        state.policy.remove(slot, needed, self._now_ns())
        del state.sealed[header.key]
        state.free.append(slot)
        self._added.pop(header.key, None)
        self._removed[header.key] = None
        self.counters["evicted"] += 1


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
