"""A hypothesis state machine over the store: any history keeps its invariants."""

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvrelay.relay import demotion, index
from kvrelay.relay.arena import NO_KEY
from kvrelay.relay.codecs.base import codec, max_encoded_bytes
from kvrelay.relay.encoded import PAGE_BYTES, EncodedBlock
from kvrelay.relay.errors import ProtocolError
from kvrelay.relay.keys import BlockKey, child_key, pack_tokens, root_key
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.store import Entry, StoreCore

ROOT = root_key(bytes(32))
SIZES = (1024, 4096)


def block(number: int) -> tuple[BlockKey, bytes]:
    tokens = pack_tokens([number, number + 1])
    return child_key(ROOT, tokens), tokens


def raw(key: bytes, num_bytes: int) -> bytes:
    return key * (num_bytes // 32)


class StoreMachine(RuleBasedStateMachine):
    clients = Bundle("clients")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_000
        self.core = StoreCore(6 * 4096, lambda: self.now_ns, 5 * PAGE_BYTES)
        self.slabs = [self.core.open_slab(size, 2) for size in SIZES]
        self.alive: dict[int, object] = {}  # client id: its life, since ids are used again
        self.rows: dict[tuple[int, int], LeaseRow] = {}
        self.leased: dict[tuple[int, int], tuple[int, bytes, int]] = {}
        self.demotion: demotion.Demotion | None = None
        self.encoding = np.empty(0, np.uint8)
        self.pinned: list[EncodedBlock] = []

    @rule(target=clients)
    def connect(self) -> int:
        self.now_ns += 1
        client = self.core.connect()
        self.alive[client] = object()
        for slab_id in self.slabs:
            self.rows[client, slab_id] = LeaseRow(self.core.slab(slab_id), client)
        return client

    @rule(client=consumes(clients))
    def disconnect(self, client: int) -> None:
        self.alive.pop(client, None)
        self.core.disconnect(client)
        self.leased = {at: lease for at, lease in self.leased.items() if lease[2] != client}

    @rule(
        target=reservations,
        client=clients,
        slab=st.sampled_from([0, 1]),
        numbers=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    )
    def reserve(self, client: int, slab: int, numbers: list[int]) -> tuple:
        self.now_ns += 1
        if client not in self.alive:
            with pytest.raises(ProtocolError):
                self.core.reserve(client, slab, [])
            return None, client, slab, []
        tokens = dict(block(number) for number in numbers)
        granted, _ = self.core.reserve(client, slab, list(tokens))
        memory = self.core.slab(slab)
        for key, slot in granted:
            memory.data(slot)[:] = key * (memory.geometry.slot_bytes // 32)
        return self.alive[client], client, slab, [(key, slot, tokens[key]) for key, slot in granted]

    @rule(reservation=consumes(reservations))
    def commit(self, reservation: tuple) -> None:
        self.now_ns += 1
        life, client, slab, granted = reservation
        memory = self.core.slab(slab)
        entries = [
            Entry(slot, key, ROOT, tokens, xxhash.xxh3_128_digest(memory.data(slot)))
            for key, slot, tokens in granted
        ]
        if life is not None and self.alive.get(client) is life:
            self.core.commit(client, slab, entries)

    @rule(reservation=consumes(reservations))
    def abort(self, reservation: tuple) -> None:
        life, client, slab, granted = reservation
        if life is not None and self.alive.get(client) is life:
            self.core.abort(client, slab, [slot for _, slot, _ in granted])

    @rule(client=clients, slab=st.sampled_from([0, 1]), number=st.integers(0, 40))
    def lease(self, client: int, slab: int, number: int) -> None:
        if client not in self.alive:
            return
        header = index.find(self.core.slab(slab), block(number)[0])
        if header is not None:
            self.rows[client, slab].take(header.slot, self.now_ns + 100)
            self.leased[slab, header.slot] = (self.now_ns + 100, header.key, client)

    @rule(share=st.sampled_from([0.0, 0.5, 0.8]))
    def begin_demotion(self, share: float) -> None:
        if self.demotion is not None:
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demotion, "LOW_MARK", share)
            self.demotion = demotion.begin(self.core)
        if self.demotion is not None:
            source = self.demotion.shelf.slab.data(self.demotion.header.slot)
            room = np.empty(max_encoded_bytes(len(source)), np.uint8)
            self.encoding = room[: codec(demotion.CODEC).encode_into(source, room)]

    @rule()
    def place_demotion(self) -> None:
        each = self.demotion
        if each is None or each.pages is not None:
            return
        if demotion.place(self.core, each, self.encoding.size) is None:
            self.end_demotion(damaged=False)

    @rule()
    def finish_demotion(self) -> None:
        each = self.demotion
        if each is not None and each.pages is not None:
            each.memory.write(each.pages, self.encoding)
            demotion.finish(self.core, each, self.encoding.size)
            self.end_demotion(damaged=False)

    @rule(damaged=st.booleans())
    def end_demotion(self, damaged: bool) -> None:
        each, self.demotion = self.demotion, None
        if each is not None:
            demotion.end(self.core, each, damaged)
            key = each.header.key
            self.leased = {at: it for at, it in self.leased.items() if not damaged or it[1] != key}

    @rule(slab=st.sampled_from([0, 1]), number=st.integers(0, 40))
    def pin(self, slab: int, number: int) -> None:
        found = self.core.pin_encoded(slab, block(number)[0], self.now_ns)
        if found is not None:
            self.pinned.append(found)

    @rule()
    def unpin(self) -> None:
        if self.pinned:
            self.pinned.pop().unpin()

    @rule(ns=st.integers(1, 150))
    def wait(self, ns: int) -> None:
        self.now_ns += ns

    @rule(number=st.integers(0, 40))
    def drop(self, number: int) -> None:
        key = block(number)[0]
        self.core.drop([key])
        self.leased = {at: lease for at, lease in self.leased.items() if lease[1] != key}

    @invariant()
    def store_is_consistent(self) -> None:
        self.core.check_integrity()

    @invariant()
    def leased_blocks_stay(self) -> None:
        for (slab, slot), (until_ns, key, _) in self.leased.items():
            if until_ns > self.now_ns:
                header = self.core.slab(slab).read_header(slot)
                assert header is not None and header.key == key

    @invariant()
    def what_is_found_is_what_was_written(self) -> None:
        for slab_id in self.slabs:
            memory = self.core.slab(slab_id)
            for header in index.children(memory, ROOT):
                assert header.parent != NO_KEY
                data = bytes(memory.data(header.slot))
                assert data == header.key * (len(data) // 32)
                assert xxhash.xxh3_128_digest(data) == header.checksum

    @invariant()
    def what_is_encoded_is_what_was_written(self) -> None:
        held = [each for shelf in self.core.shelves for each in shelf.encoded.values()]
        for each in held + self.pinned:
            size = next(
                s for s in SIZES if xxhash.xxh3_128_digest(raw(each.key, s)) == each.checksum
            )
            target = np.empty(size, np.uint8)
            assert each.decode_to(target.data, np.empty(max_encoded_bytes(size), np.uint8))
            assert target.tobytes() == raw(each.key, size)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
