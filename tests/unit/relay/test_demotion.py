"""What goes from the arena to the encoded blocks, and what from there: by value for room."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import nodes
import numpy as np
import pytest
import xxhash

from kvrelay.relay import demotion, index
from kvrelay.relay.catalog import ELSEWHERE, Catalog
from kvrelay.relay.codecs.base import codec, max_encoded_bytes
from kvrelay.relay.directory import Batch, Changes, Cursor
from kvrelay.relay.encoded import PAGE_BYTES
from kvrelay.relay.keys import BlockKey
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.store import Entry, StoreCore

chain = partial(nodes.chain, size=2)
SLOT = 4 * PAGE_BYTES
NUM_SLOTS = 10
ENCODED_BLOCKS = 4  # that fit
Chain = list[tuple[BlockKey, BlockKey, bytes]]


@pytest.fixture
def core(clock: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreCore]:
    monkeypatch.setattr(demotion, "LOW_MARK", 0.8)  # so that a round is of more than one slot
    # An encoding of such blocks takes three pages and a bit.
    core = StoreCore(NUM_SLOTS * SLOT, clock, ENCODED_BLOCKS * 4 * PAGE_BYTES)
    yield core
    core.check_integrity()


def content(key: bytes) -> np.ndarray:
    numbers = np.random.default_rng(list(key)).standard_normal(SLOT // 2).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def save(core: StoreCore, client: int, blocks: Chain) -> int:
    slab_id = core.open_slab(SLOT, 2)
    slab = core.slab(slab_id)
    parts = {key: (parent, tokens) for key, parent, tokens in blocks}
    granted, _ = core.reserve(client, slab_id, list(parts))
    entries = []
    for key, slot in granted:
        slab.data(slot)[:] = content(key).data
        digest = xxhash.xxh3_128_digest(slab.data(slot))
        entries.append(Entry(slot, key, *parts[BlockKey(key)], digest))
    core.commit(client, slab_id, entries)
    return len(granted)


def encode(core: StoreCore, each: demotion.Demotion) -> bool:
    """What the thread does with a block, here in one go; whether it was placed."""
    room = np.empty(max_encoded_bytes(SLOT), np.uint8)
    source = each.shelf.slab.data(each.header.slot)
    encoding = room[: codec(demotion.CODEC).encode_into(source, room)]
    pages = demotion.place(core, each, encoding.size)
    if pages is not None:
        each.memory.write(pages, encoding)
        demotion.finish(core, each, encoding.size)
    demotion.end(core, each, damaged=False)
    return pages is not None


def demote(core: StoreCore) -> int:
    """A whole round; how many blocks were encoded."""
    count = 0
    while (each := demotion.begin(core)) is not None:
        count += encode(core, each)
        core.check_integrity()
    return count


def decoded(core: StoreCore, key: bytes) -> bool:
    block = core.pin_encoded(0, key, core.now_ns())
    assert block is not None
    target, room = np.empty(SLOT, np.uint8), np.empty(max_encoded_bytes(SLOT), np.uint8)
    good = block.decode_to(target.data, room)
    block.unpin()
    return good and target.tobytes() == content(key).tobytes()


def places(core: StoreCore, blocks: Chain) -> str:
    """Of each block: a in the arena, e encoded, - gone."""
    shelf = core.shelves[0]
    return "".join(
        "a" if key in shelf.sealed else "e" if key in shelf.encoded else "-" for key, _, _ in blocks
    )


def test_a_round_goes_from_the_high_to_the_low_mark(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    blocks = chain(1, 9)
    save(core, client, blocks)
    assert not demotion.wanted(core)
    blocks += chain(2, 1)
    save(core, client, blocks[9:])
    assert demotion.wanted(core)
    clock.advance(1)
    core.take_events()
    assert demote(core) == 2
    assert core.used_bytes == 8 * SLOT
    assert core.counters["demoted"] == 2
    assert core.counters["evicted"] == 0
    assert sorted(core.keys()) == sorted(key for key, _, _ in blocks)
    assert core.take_events().removed == ()
    assert len(core.published(core.keys())) == 10
    assert all(decoded(core, key) for key in core.shelves[0].encoded)


def test_a_sequence_is_demoted_from_its_end(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    old, new = chain(1, 5), chain(2, 5)
    save(core, client, old)
    clock.advance(10)
    save(core, client, new)
    clock.advance(10)
    demote(core)
    assert places(core, old) == "aaaee"
    assert places(core, new) == "aaaaa"
    clock.advance(10)
    save(core, client, chain(3, 2))
    demote(core)
    assert places(core, old) == "aeeee"
    clock.advance(10)
    save(core, client, chain(4, 2))
    demote(core)
    assert places(core, old)[0] != "-", "a parent goes for good only after its children"
    assert core.counters["evicted_encoded"] > 0


def test_what_was_used_meanwhile_stays(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    save(core, client, chain(1, 10))
    slab = core.slab(0)
    for spoil in (
        lambda slot: slab.accesses.__setitem__(slot, clock()),
        lambda slot: LeaseRow(slab, client).take(slot, clock() + 10**12),
    ):
        each = demotion.begin(core)
        assert each is not None
        spoil(each.header.slot)
        assert not encode(core, each)
        assert each.header.key in core.shelves[0].sealed
        assert core.stats()["encoded_used_bytes"] == 0


def test_what_is_dropped_meanwhile_is_gone(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    save(core, client, chain(1, 10))
    before, after = demotion.begin(core), None
    assert before is not None
    core.drop([before.header.key])
    save(core, client, chain(2, 1))  # into its slot
    assert not encode(core, before)
    after = demotion.begin(core)
    assert after is not None
    pages = demotion.place(core, after, SLOT)
    core.drop([after.header.key])
    assert pages is not None
    demotion.finish(core, after, SLOT)
    demotion.end(core, after, damaged=False)
    assert core.stats()["encoded_used_bytes"] == 0
    assert not {before.header.key, after.header.key} & set(core.keys())


def test_a_reservation_does_not_wait_for_an_encoding(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    save(core, client, chain(1, 10))
    each = demotion.begin(core)
    assert each is not None
    clock.advance(1)
    assert save(core, client, chain(2, 9)) == 9
    assert core.counters["evicted_at_once"] == 9
    assert each.header.key in core.shelves[0].sealed, "what is being encoded stays"
    assert save(core, client, chain(3, 10)) == 9
    assert core.counters["refused_full"] == 1, "a save for which there is no room is dropped"
    assert encode(core, each)
    assert decoded(core, each.header.key)


def test_what_is_worth_less_than_what_it_would_displace_is_evicted(
    core: StoreCore, clock: Any
) -> None:
    client = core.connect()
    dear = chain(1, 4)
    save(core, client, dear)
    slab = core.slab(0)
    for _ in range(6):  # it is used again and again
        clock.advance(20)
        for depth, (key, _, _) in enumerate(dear):
            found = index.find(slab, key)
            assert found is not None
            slab.accesses[found.slot] = clock() - depth
        core.take_events()
    save(core, client, chain(2, 6))
    row = LeaseRow(slab, client)
    cheap = [core.held(0, key) for key, _, _ in chain(2, 6)]
    for header in cheap:
        assert header is not None
        row.take(header.slot, clock() + 10**12)
    demote(core)  # so the dear ones have to go
    save(core, client, chain(3, 2))
    for header in (core.held(0, key) for key, _, _ in chain(3, 2)):
        assert header is not None
        row.take(header.slot, clock() + 10**12)
    demote(core)
    assert places(core, dear) == "eeee"
    assert core.encoded is not None and core.encoded.num_free < 4
    for header in cheap:
        assert header is not None
        row.release(header.slot)
    clock.advance(200)
    save(core, client, chain(4, 2))
    demote(core)
    assert places(core, dear) == "eeee"
    assert core.counters["not_demoted"] > 0


def test_a_block_that_comes_back_is_held_once(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    blocks = chain(1, 10)
    save(core, client, blocks)
    demote(core)
    assert places(core, blocks) == "aaaaaaaaee"
    used = core.stats()["encoded_used_bytes"]
    assert save(core, client, blocks[8:9]) == 1
    assert places(core, blocks) == "aaaaaaaaae"
    assert core.counters["promoted"] == 1
    assert core.stats()["encoded_used_bytes"] == used // 2


def test_drop_and_clear_take_both(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    blocks = chain(1, 10)
    save(core, client, blocks)
    demote(core)
    core.take_events()
    assert core.drop([blocks[9][0], blocks[0][0]]) == 2
    assert places(core, blocks) == "-aaaaaaae-"
    assert set(core.take_events().removed) == {blocks[9][0], blocks[0][0]}
    core.check_integrity()
    assert core.clear() == 8
    assert core.keys() == []
    assert core.stats()["encoded_used_bytes"] == core.used_bytes == 0


def test_engines_see_it_in_the_catalog_as_encoded_here(core: StoreCore, clock: Any) -> None:
    catalog = Catalog(core.incarnation)
    core.list_encoded_in(catalog)
    client = core.connect()
    blocks = chain(1, 10)
    save(core, client, blocks)
    listed = catalog.slab(2)
    (published,) = core.published([blocks[9][0]])
    batch = Batch("other", b"i", True, (published,), transports=("nixl",))
    catalog.apply(Changes(Cursor("d", 1), True, (batch,)))
    found = index.find(listed, blocks[9][0])
    assert found is not None and found.checksum == ELSEWHERE
    demote(core)
    for key, parent, _ in blocks[8:]:
        found = index.find(listed, key)
        assert found is not None
        assert found.checksum == xxhash.xxh3_128_digest(content(key))
        assert found in index.children(listed, parent)
    core.clear()
    assert index.find(listed, blocks[8][0]) is None
    found = index.find(listed, blocks[9][0])
    assert found is not None and found.checksum == ELSEWHERE, "the other node has it still"
    catalog.clear()
    assert index.find(listed, blocks[9][0]) is None
    catalog.close()


def test_without_room_for_them_nothing_is_demoted(clock: Any) -> None:
    core = StoreCore(NUM_SLOTS * SLOT, clock)
    save(core, core.connect(), chain(1, 10))
    assert not demotion.wanted(core)
    assert demotion.begin(core) is None
    core.check_integrity()
