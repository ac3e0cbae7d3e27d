"""The directory, and the catalog that follows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay import index
from kvrelay.relay.arena import NO_KEY
from kvrelay.relay.catalog import Catalog
from kvrelay.relay.directory import Batch, DirectoryCore, Expected, PublishedBlock
from kvrelay.relay.keys import BlockKey, pack_tokens

SIZE = 4
KEYS = [bytes([n]) * 32 for n in range(6)]
BLOCKS = [PublishedBlock(key, NO_KEY, pack_tokens([n]), SIZE) for n, key in enumerate(KEYS)]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def listed(catalog: Catalog) -> set[bytes]:
    slab = catalog.slab(SIZE)
    return {key for key in KEYS if index.find(slab, BlockKey(key)) is not None}


def test_a_store_that_came_back_replaces_what_was_known() -> None:
    directory = DirectoryCore(Clock())
    assert directory.publish(Batch("n1", b"1", True, (BLOCKS[0], BLOCKS[1])))
    assert directory.publish(Batch("n2", b"2", True, (BLOCKS[1],)))
    assert directory.lookup(KEYS[:2]) == [["n1"], ["n1", "n2"]]
    assert not directory.publish(Batch("n1", b"new", False, (BLOCKS[2],)))
    assert directory.publish(Batch("n1", b"new", True, (BLOCKS[2],)))
    assert directory.lookup(KEYS[:3]) == [[], ["n2"], ["n1"]]


def test_a_directory_that_came_back_asks_for_everything() -> None:
    assert not DirectoryCore(Clock()).publish(Batch("n1", b"1", False, (BLOCKS[0],)))


def test_a_silent_store_is_gone_until_it_speaks() -> None:
    clock = Clock()
    directory = DirectoryCore(clock, silence_s=3.0)
    catalog = Catalog(bytes(16))
    directory.publish(Batch("n1", b"1", True, (BLOCKS[0],), transports=("nixl",)))
    changes = directory.changes(None, "me")
    catalog.apply(changes)
    assert listed(catalog) == {KEYS[0]}
    clock.now_s = 2.9
    assert directory.publish(Batch("n1", b"1", False))  # a heartbeat
    clock.now_s = 5.8
    assert not directory.expire()
    clock.now_s = 6.0
    assert directory.expire() == ["n1"]
    changes = directory.changes(changes.cursor, "me")
    assert not changes.everything
    catalog.apply(changes)
    assert listed(catalog) == set()
    assert not catalog.nodes()
    assert not directory.publish(Batch("n1", b"1", False))
    catalog.close()


def test_what_is_expected_is_told_to_those_who_watch_now() -> None:
    directory = DirectoryCore(Clock())
    directory.publish(Batch("n1", b"1", True, (BLOCKS[0],)))
    cursor = directory.changes(None, "me").cursor
    expected = Expected("b", 1.0, None, 64, SIZE, (KEYS[0],))
    directory.publish(Batch("n1", b"1", False, expected=(expected,)))
    changes = directory.changes(cursor, "me")
    assert [each for batch in changes.batches for each in batch.expected] == [expected]
    late = directory.changes(None, "me")
    assert not [each for batch in late.batches for each in batch.expected]


def test_blocks_of_a_node_that_cannot_be_read_from_are_not_shown() -> None:
    directory, catalog = DirectoryCore(Clock()), Catalog(bytes(16))
    catalog.slab(SIZE)
    directory.publish(Batch("n1", b"1", True, (BLOCKS[0],)))
    changes = directory.changes(None, "me")
    catalog.apply(changes)
    assert listed(catalog) == set()
    assert catalog.places(KEYS[0]) == []
    directory.publish(Batch("n1", b"1", False, transports=("plasma",)))
    catalog.apply(directory.changes(changes.cursor, "me"))
    assert listed(catalog) == {KEYS[0]}
    assert catalog.places(KEYS[0]) == ["n1"]
    catalog.close()


def test_a_full_catalog_lists_no_more_and_says_so() -> None:
    catalog = Catalog(bytes(16), max_blocks=2)
    directory = DirectoryCore(Clock())
    directory.publish(Batch("n1", b"1", True, tuple(BLOCKS), transports=("nixl",)))
    catalog.apply(directory.changes(None, "me"))
    assert len(listed(catalog)) == 2
    assert catalog.stats()["remote_not_listed"] == 4
    catalog.clear()
    assert listed(catalog) == set()
    catalog.close()


@pytest.mark.parametrize("log_blocks", [4, 1000])
@given(
    history=st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "me"]),
            st.booleans(),
            st.sets(st.sampled_from(BLOCKS)),
            st.sets(st.sampled_from(BLOCKS)),
            st.booleans(),  # whether the watcher looks now
            st.sampled_from([(), ("nixl",)]),
        )
    )
)
def test_any_history_keeps_it_consistent_and_watchers_right(log_blocks: int, history: list) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvrelay.relay.directory._LOG_BLOCKS", log_blocks)
        directory, catalog = DirectoryCore(Clock()), Catalog(bytes(16), max_blocks=16)
        model: dict[str, set[PublishedBlock]] = {}
        ways: dict[str, tuple[str, ...]] = {}
        cursor = None
        for node, whole, added, removed, looks, transports in history:
            gone = tuple(block.key for block in removed - added)
            batch = Batch(node, b"i", whole, tuple(added), gone, transports)
            if directory.publish(batch):
                before = set() if whole else model[node]
                model[node] = (before - removed) | added
                ways[node] = transports
            directory.check_integrity()
            if looks:
                changes = directory.changes(cursor, "me")
                catalog.apply(changes)
                cursor = changes.cursor
        catalog.apply(directory.changes(cursor, "me"))
        places = directory.lookup(KEYS)
        for block, nodes in zip(BLOCKS, places, strict=True):
            assert nodes == sorted(node for node, blocks in model.items() if block in blocks)
            readable = [node for node in nodes if node != "me" and ways[node]]
            assert sorted(catalog.places(block.key)) == readable
            assert (block.key in listed(catalog)) == bool(readable)
        catalog.close()
