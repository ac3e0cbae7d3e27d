"""The KV store's core: who may write which slot, what is visible, what is evicted.

Sans I/O: the server feeds it messages, tests feed it histories. Only this class and what it
keeps writes the slabs' tables and headers.

    free --reserve--> reserved --commit--> sealed --evict/drop/demote--> free
                          \\----abort, owner gone-----------------------> free

A reservation has no deadline: its owner may still be writing, so the slot is not given to
anybody else until the owner commits, aborts or is gone. Every slot is free, reserved or
sealed; bytes in use are (reserved + sealed) slots times their slab's distance of slots, and
never exceed the capacity.

A block that is demoted goes on being held, encoded (encoded.py), until it is committed to a slot
again or evicted for good. What is demoted when is the matter of demotion.py: here a reservation
never waits for it, and evicts for good if no slot is free.
"""

import heapq
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvrelay.relay.arena import INCARNATION_BYTES, MAX_CLIENTS, Slab, SlabGeometry, SlotHeader
from kvrelay.relay.directory import Expected, PublishedBlock
from kvrelay.relay.encoded import PAGE_BYTES, EncodedBlock, EncodedMemory
from kvrelay.relay.errors import ArenaError, ProtocolError
from kvrelay.relay.keys import KEY_BYTES, TOKEN_BYTES
from kvrelay.relay.leases import clear_client, leased
from kvrelay.relay.protocol import Expect
from kvrelay.relay.shelf import Listing, Shelf, require

MAX_SLABS = 16
MAX_EXPECTED = 32  # between two calls of `take_events`; the oldest are forgotten


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
        ahead: see `SlotHeader`.
    """

    slot: int
    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes
    ahead: bool = False


class ArenaVictim(NamedTuple):
    """A sealed slot to free, and what it is worth: expected seconds saved per second of keeping."""

    shelf: Shelf
    slot: int
    worth: float


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """What became visible, what went and what is expected, since the last call."""

    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    expected: tuple[Expected, ...]


class StoreCore:
    """All state of one node's store."""

    def __init__(
        self, capacity_bytes: int, now_ns: Callable[[], int], encoded_bytes: int = 0
    ) -> None:
        """An empty store.

        Args:
            capacity_bytes: upper bound of bytes in slots.
            now_ns: the monotonic clock that leases are written with.
            encoded_bytes: upper bound of bytes of encoded blocks; 0 demotes nothing.
        """
        if capacity_bytes < 1:
            raise ArenaError(f"capacity_bytes must be positive, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self.counters: Counter[str] = Counter()
        self.now_ns = now_ns
        self.shelves: list[Shelf] = []
        self.encoded = EncodedMemory(encoded_bytes) if encoded_bytes >= PAGE_BYTES else None
        self._listing: Listing | None = None
        self._clients: dict[int, str] = {}  # whose engine each is a part of
        self._added: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._expected: deque[Expected] = deque(maxlen=MAX_EXPECTED)

    def list_encoded_in(self, listing: Listing) -> None:
        """Show engines there what is held encoded, from now on."""
        self._listing = listing

    # Clients

    def connect(self, agent: str = "") -> int:
        """Admit a client; `agent` says whose engine it is a part of.

        Raises:
            ProtocolError: too many.
        """
        for client_id in range(MAX_CLIENTS):
            if client_id not in self._clients:
                self._clients[client_id] = agent
                return client_id
        raise ProtocolError(f"more than {MAX_CLIENTS} clients on one node")

    def disconnect(self, client_id: int) -> None:
        """Forget a client that has gone: its reservations and its leases."""
        self._clients.pop(client_id, None)
        for shelf in self.shelves:
            mine = [slot for slot, (owner, _) in shelf.reserved.items() if owner == client_id]
            for slot in mine:
                shelf.unreserve(slot)
            clear_client(shelf.slab, client_id)

    def serves(self, agent: str) -> bool:
        """Whether an engine of this agent is connected."""
        return agent in self._clients.values()

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
        if len(self.shelves) == MAX_SLABS:
            raise ProtocolError(f"more than {MAX_SLABS} different block sizes on one node")
        stride = SlabGeometry(slot_bytes, block_tokens, 1).stride_bytes
        num_slots = max(1, self.capacity_bytes // stride)
        geometry = SlabGeometry(slot_bytes, block_tokens, num_slots)
        self.shelves.append(Shelf.create(geometry, self.incarnation, self.encoded))
        return len(self.shelves) - 1

    def find_slab(self, slot_bytes: int, block_tokens: int) -> int | None:
        """The number of the slab for these sizes, if there is one."""
        for slab_id, shelf in enumerate(self.shelves):
            g = shelf.slab.geometry
            if (g.slot_bytes, g.block_tokens) == (slot_bytes, block_tokens):
                return slab_id
        return None

    def slab(self, slab_id: int) -> Slab:
        """A slab by number.

        Raises:
            ProtocolError: there is none.
        """
        return self._shelf(slab_id).slab

    def close(self) -> None:
        """Let go of the slabs' descriptors; their mappings stay readable."""
        for shelf in self.shelves:
            shelf.slab.close()

    # Writing

    def reserve(
        self, client_id: int, slab_id: int, keys: Sequence[bytes]
    ) -> tuple[list[tuple[bytes, int]], Counter[Refusal]]:
        """Grant slots for those keys that nobody holds or writes.

        Returns:
            The granted (key, slot) in the order asked, and how many were refused and why.
        """
        self._check_client(client_id)
        shelf = self._shelf(slab_id)
        granted: list[tuple[bytes, int]] = []
        refused: Counter[Refusal] = Counter()
        wanted = []
        for key in dict.fromkeys(keys):
            if len(key) != KEY_BYTES:
                raise ProtocolError(f"a key of {len(key)} bytes")
            if key in shelf.sealed:
                refused[Refusal.HELD] += 1
            elif key in shelf.pending:
                refused[Refusal.PENDING] += 1
            else:
                wanted.append(key)
        num_slots = self._make_room(shelf, len(wanted))
        refused[Refusal.FULL] += len(wanted) - num_slots
        for key in wanted[:num_slots]:
            slot = shelf.free.pop()
            shelf.reserved[slot] = (client_id, key)
            shelf.pending[key] = slot
            granted.append((key, slot))
        self.counters.update({f"refused_{name}": n for name, n in refused.items()})
        return granted, +refused

    def commit(self, client_id: int, slab_id: int, entries: Sequence[Entry]) -> None:
        """Seal written slots: from here on readers find them.

        Raises:
            ProtocolError: a slot that this client has not reserved for this key.
        """
        shelf = self._shelf(slab_id)
        slab = shelf.slab
        shelf.ledger.observe()
        for entry in entries:
            if shelf.reserved.get(entry.slot) != (client_id, entry.key):
                raise ProtocolError(f"commit of slot {entry.slot}, which is not reserved for it")
            num_tokens, rest = divmod(len(entry.tokens), TOKEN_BYTES)
            fits = 0 < num_tokens <= slab.geometry.block_tokens
            if rest or not fits or len(entry.checksum) != 16:
                raise ProtocolError(f"commit of slot {entry.slot} with a malformed entry")
            del shelf.reserved[entry.slot], shelf.pending[entry.key]
            sealed = slab.state(entry.slot) | 1
            header = SlotHeader(
                entry.slot,
                sealed,
                entry.key,
                entry.parent,
                entry.checksum,
                num_tokens,
                entry.ahead,
            )
            slab.write_header(header, entry.tokens)
            slab.accesses[entry.slot] = now_ns = self.now_ns()
            shelf.ledger.insert(entry.key, entry.slot, entry.parent, num_tokens, now_ns)
            slab.set_state(entry.slot, sealed)
            shelf.sealed[entry.key] = entry.slot
            shelf.index.insert(header)
            self.counters["committed"] += 1
            if entry.key in shelf.encoded:
                # Room is worth more than a second copy: to encode it again takes 0.8 ms.
                self._discard(shelf, entry.key)
                self.counters["promoted"] += 1
            else:
                self._removed.pop(entry.key, None)
                self._added[entry.key] = None

    def abort(self, client_id: int, slab_id: int, slots: Sequence[int]) -> None:
        """Give reserved slots back unwritten; slots that are not the client's are ignored."""
        shelf = self._shelf(slab_id)
        for slot in slots:
            if slot in shelf.reserved and shelf.reserved[slot][0] == client_id:
                shelf.unreserve(slot)
                self.counters["aborted"] += 1

    def disown(self, client_id: int, slab_id: int, slots: Sequence[int]) -> None:
        """Keep reserved slots from use, but let their keys be reserved anew elsewhere.

        For slots that somebody may still write to although nobody waits for them any more.
        """
        shelf = self._shelf(slab_id)
        for slot in slots:
            owner, key = shelf.reserved[slot]
            if owner != client_id:
                raise ProtocolError(f"slot {slot} is reserved for another client")
            nobody = secrets.token_bytes(KEY_BYTES)
            del shelf.pending[key]
            shelf.pending[nobody] = slot
            shelf.reserved[slot] = (owner, nobody)

    # Removing

    def drop(self, keys: Sequence[bytes]) -> int:
        """Evict these keys wherever they are held, leased or not; how many were there."""
        dropped = 0
        for shelf in self.shelves:
            for key in keys:
                if key in shelf.sealed:
                    self.evict(shelf, shelf.sealed[key], needed=False)
                elif key in shelf.encoded:
                    self.evict_encoded(shelf, key, needed=False)
                else:
                    continue
                dropped += 1
        return dropped

    def clear(self) -> int:
        """Drop everything that readers can find; how many blocks that were."""
        # Backwards, so that children go before their parents.
        held = [reversed(part) for shelf in self.shelves for part in (shelf.encoded, shelf.sealed)]
        return self.drop([key for keys in held for key in keys])

    def victims(self, missing_bytes: int) -> list[ArenaVictim]:
        """The unleased slots worth least for their size that hold `missing_bytes` together."""
        if missing_bytes <= 0:
            return []
        now_ns = self.now_ns()
        ranked = []
        for number, shelf in enumerate(self.shelves):
            shelf.ledger.observe()
            most = -(-missing_bytes // shelf.stride_bytes)
            victims = shelf.ledger.victims(most, shelf.blocked(now_ns), now_ns)
            ranked.append([(density, number, slot) for density, slot in victims])
        chosen = []
        for density, number, slot in heapq.merge(*ranked):
            if missing_bytes <= 0:
                break
            shelf = self.shelves[number]
            chosen.append(ArenaVictim(shelf, slot, density * shelf.stride_bytes))
            missing_bytes -= shelf.stride_bytes
        return chosen

    def evict(self, shelf: Shelf, slot: int, needed: bool) -> None:
        """Free a sealed slot, because its room is `needed` or its block is of no use."""
        header = shelf.header(slot)
        shelf.unseal(header)
        shelf.ledger.remove(header.key, needed, self.now_ns())
        self._gone(header.key)

    # Encoded blocks

    def demote(self, shelf: Shelf, header: SlotHeader, block: EncodedBlock) -> None:
        """Hold a sealed block encoded from now on, and free its slot."""
        # First the one, then the other: whoever looks finds one of them at any time.
        published = shelf.published(header.key)
        shelf.encoded[header.key] = block
        if self._listing is not None and published is not None:
            self._listing.show_encoded(published, block.checksum)
        shelf.ledger.demote(header.key)
        shelf.unseal(header)
        if len(self.shelves) > 1:  # the room may become another size's
            shelf.slab.release_pages(header.slot)
        self.counters["demoted"] += 1

    def pin_encoded(self, slab_id: int, key: bytes, now_ns: int) -> EncodedBlock | None:
        """A block that is held encoded, used now; whoever has it unpins it, in this thread."""
        shelf = self._shelf(slab_id)
        block = shelf.encoded.get(key)
        if block is not None:
            block.pins += 1
            shelf.ledger.use(key, now_ns)
        return block

    def evict_encoded(self, shelf: Shelf, key: bytes, needed: bool) -> None:
        """Hold a block no more that is held encoded; why as in `evict`."""
        self._discard(shelf, key)
        shelf.ledger.remove(key, needed, self.now_ns())
        self._gone(key)
        self.counters["evicted_encoded"] += 1

    def _discard(self, shelf: Shelf, key: bytes) -> None:
        shelf.encoded.pop(key).discard()
        if self._listing is not None:
            self._listing.hide_encoded(key)

    def _gone(self, key: bytes) -> None:
        self._added.pop(key, None)
        self._removed[key] = None
        self.counters["evicted"] += 1

    # Looking

    def keys(self) -> list[bytes]:
        """Keys of all blocks that are held, encoded ones too."""
        return [key for shelf in self.shelves for key in (*shelf.sealed, *shelf.encoded)]

    def held(self, slab_id: int, key: bytes) -> SlotHeader | None:
        """The sealed slot of a key in one slab."""
        shelf = self._shelf(slab_id)
        slot = shelf.sealed.get(key)
        return None if slot is None else shelf.slab.read_header(slot)

    def being_written(self, slab_id: int, key: bytes) -> bool:
        """Whether somebody has a slot reserved for a key."""
        return key in self._shelf(slab_id).pending

    def published(self, keys: Sequence[bytes]) -> list[PublishedBlock]:
        """What other nodes must know of those of these blocks that are held."""
        found = []
        for key in keys:
            blocks = (shelf.published(key) for shelf in self.shelves)
            found += [block for block in blocks if block is not None][:1]
        return found

    def expect(self, told: Expect) -> None:
        """Have other nodes told what an agent may need next, unless it has an engine here."""
        if self.serves(told.agent):
            return
        g = self.slab(told.slab_id).geometry
        sizes = (g.slot_bytes, g.block_tokens)
        keys = tuple(told.keys)
        self._expected.append(Expected(told.agent, told.probability, told.prefill_s, *sizes, keys))

    @property
    def has_events(self) -> bool:
        """Whether `take_events` has something to say."""
        return bool(self._added or self._removed or self._expected)

    def take_events(self) -> StoreEvents:
        """Changes since the last call; called at least once a second, so it also looks for uses."""
        for shelf in self.shelves:
            shelf.ledger.observe()
        events = StoreEvents(tuple(self._added), tuple(self._removed), tuple(self._expected))
        self._added, self._removed = {}, {}
        self._expected.clear()
        return events

    @property
    def used_bytes(self) -> int:
        """Bytes of reserved and sealed slots."""
        return sum(shelf.used_bytes for shelf in self.shelves)

    def stats(self) -> dict[str, int]:
        """Counts for status displays and tests."""
        now_ns, memory = self.now_ns(), self.encoded
        return {
            "capacity_bytes": self.capacity_bytes,
            "used_bytes": self.used_bytes,
            "blocks": sum(len(shelf.sealed) for shelf in self.shelves),
            "encoded_capacity_bytes": 0 if memory is None else memory.capacity_bytes,
            "encoded_used_bytes": 0 if memory is None else memory.used_bytes,
            "encoded_blocks": sum(len(shelf.encoded) for shelf in self.shelves),
            "reserved": sum(len(shelf.reserved) for shelf in self.shelves),
            "leases": sum(int(leased(shelf.slab, now_ns).sum()) for shelf in self.shelves),
            "clients": len(self._clients),
            "slabs": len(self.shelves),
            **dict(self.counters),
        }

    def check_integrity(self) -> None:
        """Check every invariant that this module's head states.

        Raises:
            AssertionError: naming the one that does not hold.
        """
        require(self.used_bytes <= self.capacity_bytes, "used bytes exceed the capacity")
        for shelf in self.shelves:
            shelf.check_integrity(self._clients.keys())
        if self.encoded is not None:
            blocks = [block for shelf in self.shelves for block in shelf.encoded.values()]
            self.encoded.check_integrity([block.pages for block in blocks])

    def _shelf(self, slab_id: int) -> Shelf:
        if not 0 <= slab_id < len(self.shelves):
            raise ProtocolError(f"no slab {slab_id}")
        return self.shelves[slab_id]

    def _check_client(self, client_id: int) -> None:
        if client_id not in self._clients:
            raise ProtocolError(f"no client {client_id}")

    def _make_room(self, shelf: Shelf, wanted: int) -> int:
        """Evict until `wanted` more slots fit, if that can be; how many fit."""
        stride = shelf.stride_bytes
        room = self.capacity_bytes - self.used_bytes
        for victim in self.victims(wanted * stride - room):
            self.evict(victim.shelf, victim.slot, needed=True)
            self.counters["evicted_at_once"] += 1
            room += victim.shelf.stride_bytes
            if victim.shelf is not shelf:
                victim.shelf.slab.release_pages(victim.slot)
        return max(0, min(wanted, room // stride, len(shelf.free)))
