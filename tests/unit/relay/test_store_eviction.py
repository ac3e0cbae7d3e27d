"""What the store evicts: what is worth least, children before their parents, leases kept."""

from functools import partial
from typing import Any

import nodes
import xxhash

from kvrelay.relay.index import find
from kvrelay.relay.keys import BlockKey
from kvrelay.relay.leases import LeaseRow
from kvrelay.relay.store import Entry, StoreCore

chain = partial(nodes.chain, size=2)
SLOT_BYTES = 4096
NUM_SLOTS = 8


def save(core: StoreCore, client: int, blocks: list[tuple[BlockKey, BlockKey, bytes]]) -> int:
    """Reserve and commit; how many blocks were granted a slot."""
    slab_id = core.open_slab(SLOT_BYTES, 2)
    parts = {key: (parent, tokens) for key, parent, tokens in blocks}
    granted, _ = core.reserve(client, slab_id, list(parts))
    slab = core.slab(slab_id)
    entries = [
        Entry(slot, key, *parts[BlockKey(key)], xxhash.xxh3_128_digest(slab.data(slot)))
        for key, slot in granted
    ]
    core.commit(client, slab_id, entries)
    return len(granted)


def use(core: StoreCore, clock: Any, blocks: list[tuple[BlockKey, BlockKey, bytes]]) -> None:
    """Read blocks as the connector does, then wait until the store has looked."""
    slab = core.slab(0)
    now_ns = clock()
    for depth, (key, _, _) in enumerate(blocks):
        header = find(slab, key)
        assert header is not None
        slab.accesses[header.slot] = now_ns - depth
    clock.advance(1)
    core.take_events()


def held(core: StoreCore, blocks: list[tuple[BlockKey, BlockKey, bytes]]) -> list[int]:
    """Numbers of the blocks of a sequence that are held."""
    return [i for i, (key, _, _) in enumerate(blocks) if key in set(core.keys())]


def test_a_sequence_is_given_up_from_its_end(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    old, new = chain(1, 5), chain(2, 3)
    save(core, client, old)
    clock.advance(10)
    save(core, client, new)
    clock.advance(10)
    assert save(core, client, chain(3, 2)) == 2
    assert held(core, old) == [0, 1, 2]
    assert held(core, new) == [0, 1, 2]


def test_what_was_used_stays(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    first, second = chain(1, 4), chain(2, 4)
    save(core, client, first)
    clock.advance(1)
    save(core, client, second)
    for _ in range(3):
        clock.advance(20)
        use(core, clock, first)
    assert save(core, client, chain(3, 4)) == 4
    assert held(core, first) == [0, 1, 2, 3]
    assert held(core, second) == []


def test_leased_blocks_stay_and_what_stands_before_them_goes_last(
    core: StoreCore, clock: Any
) -> None:
    client = core.connect()
    leased_chain, other = chain(1, 4), chain(2, 4)
    save(core, client, leased_chain)
    clock.advance(20)
    save(core, client, other)
    slab = core.slab(0)
    header = find(slab, leased_chain[3][0])
    assert header is not None
    LeaseRow(slab, client).take(header.slot, clock() + 10**12)
    assert save(core, client, chain(3, 4)) == 4
    assert held(core, leased_chain) == [0, 1, 2, 3]
    assert save(core, client, chain(4, 8)) == 7, "all but the leased one, if need be"
    assert held(core, leased_chain) == [3]


def test_two_sizes_compete_by_value_for_size(clock: Any) -> None:
    core = StoreCore(capacity_bytes=8 * SLOT_BYTES, now_ns=clock)
    client = core.connect()
    small, large = core.open_slab(SLOT_BYTES, 2), core.open_slab(4 * SLOT_BYTES, 2)
    for slab_id, token in ((large, 1), (small, 2), (small, 3), (small, 4), (small, 5)):
        (key, parent, tokens) = chain(token, 1)[0]
        ((_, slot),), _ = core.reserve(client, slab_id, [key])
        digest = xxhash.xxh3_128_digest(core.slab(slab_id).data(slot))
        core.commit(client, slab_id, [Entry(slot, key, parent, tokens, digest)])
    core.reserve(client, small, [chain(6, 1)[0][0]])
    assert held(core, chain(1, 1)) == [], "four times the room for the same seconds"
    assert all(held(core, chain(token, 1)) for token in (2, 3, 4, 5))
    core.check_integrity()


def test_clear_and_drop_leave_the_policy_in_step(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    blocks = chain(1, 6)
    save(core, client, blocks)
    assert core.drop([blocks[2][0]]) == 1
    core.check_integrity()
    clock.advance(5)
    assert save(core, client, chain(2, 8)) == 8
    core.check_integrity()
    assert core.clear() == 8
    core.check_integrity()
    assert save(core, client, blocks) == 6


def test_a_block_that_names_itself_as_its_parent_harms_nobody(core: StoreCore, clock: Any) -> None:
    client = core.connect()
    (key, _, tokens) = chain(1, 1)[0]
    assert save(core, client, [(key, key, tokens)]) == 1
    clock.advance(10)
    assert save(core, client, chain(2, 8)) == 8
    assert not held(core, [(key, key, tokens)])
