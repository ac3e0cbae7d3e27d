"""Keys, chains and matching, tails included."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay.arena import SlotHeader
from kvrelay.relay.blocks import BlockChain, Match, match
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.directory import Batch, Changes, Cursor, PublishedBlock
from kvrelay.relay.keys import (
    child_key,
    common_prefix_tokens,
    digest_fields,
    pack_tokens,
    root_key,
)
from kvrelay.relay.store import Entry, StoreCore

FINGERPRINT = bytes(range(32))
ROOT = root_key(FINGERPRINT)
SIZE = 4
SLOT = 1024
A_PROMPT = list(range(100, 118))  # 4 full blocks and a tail of 2


def publish(core: StoreCore, tokens: list[int]) -> None:
    """Publish all blocks of a sequence, its tail included."""
    client, slab_id = core.connect(), core.open_slab(SLOT, SIZE)
    chain = BlockChain(ROOT, SIZE)
    full, rest = divmod(len(tokens), SIZE)
    chain.extend(tokens, full)
    blocks = [(chain.key(n), chain.parent(n), chain.tokens(n)) for n in range(full)]
    if rest:
        packed = pack_tokens(tokens[full * SIZE :])
        blocks.append((child_key(chain.parent(full), packed), chain.parent(full), packed))
    granted = dict(core.reserve(client, slab_id, [key for key, _, _ in blocks])[0])
    slab = core.slab(slab_id)
    entries = [
        Entry(granted[key], key, parent, packed, xxhash.xxh3_128_digest(slab.data(granted[key])))
        for key, parent, packed in blocks
        if key in granted
    ]
    core.commit(client, slab_id, entries)
    core.disconnect(client)


def matched(core: StoreCore, tokens: list[int], num_local: int = 0) -> tuple[int, int, int]:
    slab = core.slab(core.open_slab(SLOT, SIZE))
    nothing = Catalog(core.incarnation).slab(SIZE)
    found = match((slab, nothing), BlockChain(ROOT, SIZE), tokens, num_local, len(tokens) - 1)
    return (found.num_tokens, found.tail_tokens, len(found.headers)) if found else (0, 0, 0)


@pytest.mark.parametrize(
    ("tokens", "num_local", "expected"),
    [
        ([*A_PROMPT, 1, 2, 3], 0, (18, 2, 5)),  # all of A, tail included
        (A_PROMPT, 0, (17, 1, 5)),  # the same prompt: all but its last token
        ([*A_PROMPT[:16], 1, 2], 0, (16, 0, 4)),  # diverges at a block border
        ([*A_PROMPT[:14], 1, 2, 3], 0, (14, 2, 4)),  # inside a full block: its head counts
        ([*A_PROMPT, 1], 8, (18, 2, 3)),  # beyond what the engine has
        (A_PROMPT[:9], 8, (0, 0, 0)),  # one token must be computed
        ([7] * 10, 0, (0, 0, 0)),
        ([A_PROMPT[0], 7, 7], 0, (1, 1, 1)),
        (A_PROMPT[:1], 0, (0, 0, 0)),
    ],
)
def test_match(core: StoreCore, tokens: list[int], num_local: int, expected: tuple) -> None:
    publish(core, A_PROMPT)
    assert matched(core, tokens, num_local) == expected


def test_the_longest_of_several_tails_is_taken(core: StoreCore) -> None:
    for length in (17, 18, 19):
        publish(core, ([*A_PROMPT, 5])[:length])
    assert matched(core, [*A_PROMPT, 5, 6]) == (19, 3, 5)


def test_a_hole_ends_the_match(core: StoreCore) -> None:
    publish(core, A_PROMPT)
    chain = BlockChain(ROOT, SIZE)
    chain.extend(A_PROMPT, 4)
    core.drop([chain.key(1)])
    assert matched(core, [*A_PROMPT, 1]) == (4, 0, 1)


def elsewhere(blocks: list[tuple[bytes, bytes, bytes]]) -> Catalog:
    """A catalog that lists blocks (key, parent, packed tokens) of another node."""
    catalog = Catalog(bytes(16), max_blocks=16)
    catalog.slab(SIZE)
    added = tuple(PublishedBlock(*block, SIZE) for block in blocks)
    batch = Batch("n1", b"i", True, added, transports=("memory",))
    catalog.apply(Changes(Cursor("d", 1), True, (batch,)))
    return catalog


def test_a_tail_whose_catalog_slot_was_given_away_meanwhile_is_not_taken(
    core: StoreCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store works while an engine looks: what is compared must be the block's own tokens."""
    slab = core.slab(core.open_slab(SLOT, SIZE))
    old, new = pack_tokens([1, 2, 8, 8]), pack_tokens([1, 2, 3, 4])
    old_block, new_block = (child_key(ROOT, old), ROOT, old), (child_key(ROOT, new), ROOT, new)
    catalog = elsewhere([old_block])
    place = catalog.slab(SIZE)
    read_tokens = place.tokens

    def tokens_after_a_change(header: SlotHeader) -> bytes:
        added = (PublishedBlock(*new_block, SIZE),)
        batch = Batch("n1", b"i", False, added, (old_block[0],), ("memory",))
        catalog.apply(Changes(Cursor("d", 2), False, (batch,)))
        assert place.read_header(header.slot) != header  # the slot is another block's now
        return read_tokens(header)

    def look() -> Match | None:
        return match((slab, place), BlockChain(ROOT, SIZE), [1, 2, 3, 4, 5], 0, 4)

    monkeypatch.setattr(place, "tokens", tokens_after_a_change)
    assert look() is None
    monkeypatch.undo()
    found = look()
    assert found is not None
    assert [header.key for header in found.headers] == [new_block[0]]
    assert found.num_tokens == 4
    catalog.close()


@pytest.mark.parametrize(("limit", "num_tokens"), [(1, 4), (2, 8), (4, 16), (5, 18), (9, 18)])
def test_no_more_comes_from_other_nodes_than_one_fetch_may_ask_for(
    core: StoreCore, monkeypatch: pytest.MonkeyPatch, limit: int, num_tokens: int
) -> None:
    monkeypatch.setattr("kvrelay.relay.blocks.MAX_FETCH_KEYS", limit)
    slab = core.slab(core.open_slab(SLOT, SIZE))
    chain = BlockChain(ROOT, SIZE)
    chain.extend(A_PROMPT, 4)
    tail = pack_tokens(A_PROMPT[16:])
    blocks = [(chain.key(n), chain.parent(n), chain.tokens(n)) for n in range(4)]
    catalog = elsewhere([*blocks, (child_key(chain.key(3), tail), chain.key(3), tail)])
    places = slab, catalog.slab(SIZE)
    found = match(places, BlockChain(ROOT, SIZE), [*A_PROMPT, 1], 0, 18)
    assert found is not None
    assert (found.num_tokens, len(found.headers)) == (num_tokens, min(limit, 5))
    assert found.local == []
    # What this node holds does not count.
    publish(core, A_PROMPT)
    found = match(places, BlockChain(ROOT, SIZE), [*A_PROMPT, 1], 0, 18)
    assert found is not None
    assert (found.num_tokens, len(found.local)) == (18, 5)
    catalog.close()


@given(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), max_size=9))
def test_common_prefix_equals_the_naive_count(left: list[int], right: list[int]) -> None:
    naive = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        naive += 1
    assert common_prefix_tokens(pack_tokens(left), pack_tokens(right)) == naive


def test_every_part_of_the_identity_changes_the_key() -> None:
    keys = {
        root_key(FINGERPRINT),
        root_key(bytes(32)),
        root_key(FINGERPRINT, salt=""),
        root_key(FINGERPRINT, salt="a"),
        root_key(FINGERPRINT, lora=b"a"),
        child_key(ROOT, pack_tokens([1])),
        child_key(ROOT, pack_tokens([1, 0])),
        child_key(ROOT, pack_tokens([1]), extra=b"image"),
    }
    assert len(keys) == 8


def test_fields_cannot_run_into_one_another() -> None:
    assert digest_fields((b"ab", b"c"), b"x") != digest_fields((b"a", b"bc"), b"x")


def test_keys_do_not_depend_on_the_process() -> None:
    assert child_key(ROOT, pack_tokens([1, 2])).hex() == (
        "84cd74174a15ddd800d4dd41df28e3dfcc65fa57d0c05fe21f26aa17a705a634"
    )


def test_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack_tokens([-1])
    with pytest.raises(OverflowError):
        pack_tokens([1 << 32])
