"""Blocks that were demoted come back, to engines of their node and to other nodes."""

import threading
from collections.abc import Iterator

import pytest
import xxhash
from nodes import SIZE, SLOT, Node, Reader, Wire, chain, idle, put, wait_for

from kvrelay.relay import demotion
from kvrelay.relay.encoded import PAGE_BYTES, EncodedBlock
from kvrelay.relay.lending import ENCODED_BLOCKS
from kvrelay.relay.store import Entry, StoreCore

pytestmark = pytest.mark.slow
NUM_SLOTS = 20
ENCODED_BYTES = 1 << 20


@pytest.fixture
def wire(wire: Wire) -> Iterator[Wire]:
    """Neither do encoded blocks that nobody finds any more take room afterwards."""
    yield wire
    wait_for(lambda: all(idle(node) for node in wire.nodes.values()), 15.0)
    for node in wire.nodes.values():
        wait_for(lambda node=node: taken(node) == held(node))  # type: ignore[misc]


@pytest.fixture
def node(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(demotion, "LOW_MARK", 0.8)  # so that a round is of more than one slot
    return wire.add("n1", NUM_SLOTS * SLOT, encoded_bytes=ENCODED_BYTES)


@pytest.fixture
def reader(node: Node) -> Iterator[Reader]:
    reader = Reader(node)
    yield reader
    reader.close()


def taken(node: Node) -> int:
    return node.server.call(StoreCore.stats)["encoded_used_bytes"]


def held(node: Node) -> int:
    return PAGE_BYTES * sum(len(block.pages) for block in encoded(node))


def encoded(node: Node) -> list[EncodedBlock]:
    return node.server.call(
        lambda core: [*core.shelves[0].encoded.values()] if core.shelves else []
    )


def fill(node: Node, seed: int, count: int = NUM_SLOTS) -> list[bytes]:
    """Put so many blocks that some are demoted; the keys of those, from the first on."""
    blocks = chain(seed, count)
    put(node, blocks, SLOT, SIZE)
    low = int(demotion.LOW_MARK * NUM_SLOTS)
    wait_for(lambda: node.server.call(StoreCore.stats)["blocks"] <= low)
    there = {block.key for block in encoded(node)}
    keys = [key for key, _, _ in blocks if key in there]
    assert len(keys) == count - low, "a chain is demoted from its end"
    return keys


def test_an_engine_of_the_node_gets_them_back(node: Node, reader: Reader) -> None:
    keys = fill(node, 1)
    ended = reader.fetch(keys)
    assert (ended.failure, ended.decoded_bytes) == ("", len(keys) * SLOT)
    assert (ended.codec, ended.sources, ended.num_bytes) == ("split", (), 0)
    assert ended.transfer_s > 0
    assert reader.good(ended.number) == keys
    stats = node.server.call(StoreCore.stats)
    assert stats["promoted"] == len(keys)
    assert stats.get("evicted", 0) == 0
    reader.fetches.end(ended.number)


def test_a_chain_over_both_comes_whole(node: Node, reader: Reader) -> None:
    fill(node, 2)
    keys = [key for key, _, _ in chain(2, NUM_SLOTS)]
    ended = reader.fetch(keys)
    assert (ended.failure, ended.decoded_bytes) == ("", 4 * SLOT)
    assert sorted(reader.good(ended.number)) == sorted(keys)
    reader.fetches.end(ended.number)


@pytest.mark.parametrize("codec", ["raw", "split", "lz4"])
def test_other_nodes_read_them(wire: Wire, node: Node, codec: str) -> None:
    other = wire.add("n2", codec=codec)
    reader = Reader(other)
    blocks = chain(3, NUM_SLOTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demotion, "LOW_MARK", 0.4)  # so that one loan cannot bring them all
        put(node, blocks, SLOT, SIZE)
        wait_for(lambda: len(encoded(node)) == NUM_SLOTS * 0.6)
    keys = [key for key, _, _ in blocks]
    assert len(encoded(node)) > 2 * ENCODED_BLOCKS
    wait_for(lambda: all(other.catalog.places(key) == ["n1"] for key in keys))
    ended = reader.fetch(keys)
    assert (ended.failure, ended.sources, ended.codec) == ("", ("n1",), codec)
    assert ended.num_bytes == NUM_SLOTS * SLOT
    assert ended.decoded_bytes == 0, "that says what the reader's own node held encoded"
    assert sorted(reader.good(ended.number)) == sorted(keys)
    assert len(encoded(node)) == NUM_SLOTS * 0.6, "to be read by others brings nothing back"
    reader.fetches.end(ended.number)
    reader.close()


def damage(node: Node, key: bytes) -> None:
    block = next(block for block in encoded(node) if block.key == key)
    block.memory._pages[block.pages[1], 7] ^= 1


def test_a_damaged_encoding_is_a_miss_and_dropped(node: Node, reader: Reader) -> None:
    keys = fill(node, 4)
    damage(node, keys[2])
    ended = reader.fetch(keys)
    assert ended.failure == "load_corrupt"
    assert reader.good(ended.number) == keys[:2]
    assert node.transfers.counters["failed_load_corrupt"] == 1
    assert keys[2] not in node.server.call(lambda core: set(core.keys()))
    reader.fetches.end(ended.number)
    again = reader.fetch(keys)
    assert again.failure == "source_lost"
    assert sorted(reader.good(again.number)) == sorted(keys[:2])
    reader.fetches.end(again.number)


def test_what_is_damaged_here_comes_from_another_node(
    wire: Wire, node: Node, reader: Reader
) -> None:
    keys = fill(node, 5)
    other = wire.add("n2")
    put(other, chain(5, NUM_SLOTS), SLOT, SIZE)
    wait_for(lambda: all(node.catalog.places(key) == ["n2"] for key in keys))
    damage(node, keys[1])
    ended = reader.fetch(keys)
    assert (ended.failure, ended.sources) == ("", ("n2",))
    assert (ended.num_bytes, ended.decoded_bytes) == (SLOT, (len(keys) - 1) * SLOT)
    assert sorted(reader.good(ended.number)) == sorted(keys)
    reader.fetches.end(ended.number)


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_damage_is_not_lent(wire: Wire, node: Node, codec: str) -> None:
    reader = Reader(wire.add("n2", codec=codec))
    keys = fill(node, 6)
    wait_for(lambda: all(reader.node.catalog.places(key) for key in keys))
    damage(node, keys[1])
    ended = reader.fetch(keys)
    assert ended.failure == "source_lost"
    assert keys[0] in reader.good(ended.number)
    assert keys[1] not in reader.good(ended.number)
    assert keys[1] not in node.server.call(lambda core: set(core.keys()))
    reader.fetches.end(ended.number)
    reader.close()


def test_a_reader_that_dies_leaves_nothing_pinned(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(node, 7)
    gate, decode = threading.Event(), EncodedBlock.decode_to
    monkeypatch.setattr(
        EncodedBlock, "decode_to", lambda *arguments: gate.wait(10) and decode(*arguments)
    )
    victim = Reader(node)
    number = victim.start(keys)
    wait_for(lambda: any(block.pins for block in encoded(node)))
    victim.close()
    assert victim.wait(number).failure == "store_unavailable"
    gate.set()
    wait_for(lambda: idle(node))
    assert not any(block.pins for block in encoded(node))
    assert set(keys) <= node.server.call(lambda core: set(core.keys()))


def test_saves_go_on_while_the_thread_encodes(node: Node, reader: Reader) -> None:
    """Several writers and a reader; whatever is found has the right bytes."""
    faults: list[BaseException] = []

    def write(seed: int) -> None:
        try:
            for number in range(30):
                put_what_fits(node, seed * 1000 + number)
        except BaseException as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(1, 4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        keys = [block.key for block in encoded(node)][-6:]
        ended = reader.fetch(keys)
        assert ended.failure in ("", "source_lost", "no_room")
        reader.good(ended.number)
        reader.fetches.end(ended.number)
        node.check()
    for writer in writers:
        writer.join()
    assert not faults
    stats = node.server.call(StoreCore.stats)
    assert stats["demoted"] > 0
    assert stats["encoded_used_bytes"] <= ENCODED_BYTES


def put_what_fits(node: Node, seed: int) -> None:
    """As `put`, of blocks of which some may find no room."""
    client = node.client()
    slab_id, slab, catalog = client.open_slab(SLOT, SIZE)
    parts = {key: (parent, tokens) for key, parent, tokens in chain(seed, 3)}
    entries = []
    for key, slot in client.reserve(slab_id, list(parts)).granted:
        slab.data(slot)[:] = (key * SLOT)[:SLOT]
        entries.append(Entry(slot, key, *parts[key], xxhash.xxh3_128_digest(slab.data(slot))))
    client.commit(slab_id, entries)
    client.close()
    slab.close()
    catalog.close()


def test_a_store_that_ends_while_it_encodes_leaves_nothing(wire: Wire) -> None:
    before = set(threading.enumerate())  # engines' stores of other tests may be among them
    node = wire.add("n1", NUM_SLOTS * SLOT, encoded_bytes=ENCODED_BYTES)

    def encoders() -> list[threading.Thread]:
        ours = set(threading.enumerate()) - before
        return [thread for thread in ours if thread.name == "kvrelay-demote"]

    put(node, chain(8, NUM_SLOTS), SLOT, SIZE)
    assert len(encoders()) == 1
    node.close()
    del wire.nodes["n1"]
    wait_for(lambda: encoders() == [], 30.0)
