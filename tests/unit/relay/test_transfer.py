"""Store to store on several nodes of one process, with faults at will."""

import time
from dataclasses import replace

import pytest
from nodes import SIZE, SLOT, Node, Reader, Wire, chain, idle, put, share, wait_for

from kvrelay.relay.lending import Lent
from kvrelay.relay.probe import lend_probe, probe

pytestmark = pytest.mark.slow


def stalled(nodes: tuple[Node, Node], per_read: int) -> int:
    """How many of eight blocks come if every read stalls: encoded ones come in two reads."""
    return per_read if nodes[1].transfers.routes.codec == "raw" else 2 * per_read


def test_blocks_come_over_whole_and_stay(nodes: tuple[Node, Node], reader: Reader) -> None:
    keys = share(nodes[0], reader, 1, 40)
    ended = reader.fetch(keys)
    assert (ended.failure, ended.sources, ended.path) == ("", ("n1",), "memory")
    assert ended.num_bytes == 40 * SLOT
    assert ended.codec == nodes[1].transfers.routes.codec
    assert ended.wire_bytes == 40 * SLOT if ended.codec == "raw" else ended.wire_bytes > 0
    assert sorted(reader.good(ended.number)) == sorted(keys)
    reader.fetches.end(ended.number)
    again = reader.fetch(keys)  # by now this node has them itself
    assert (again.failure, again.num_bytes) == ("", 0)
    assert sorted(reader.good(again.number)) == sorted(keys)
    reader.fetches.end(again.number)
    wait_for(lambda: nodes[0].catalog.places(keys[0]) == ["n2"])  # and says so


def test_blocks_land_while_later_ones_are_on_their_way(
    nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 2, 8)
    nodes[0].transport.faults.stall_after = 3
    number = reader.start(keys)
    wait_for(lambda: len(reader.good(number)) == stalled(nodes, 3))
    assert number not in reader.ended
    nodes[0].transport.faults.stall_after = None
    assert reader.wait(number).failure == ""
    assert sorted(reader.good(number)) == sorted(keys)
    reader.fetches.end(number)


def test_a_stalled_source_is_given_up_and_its_late_bytes_harm_nobody(
    nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 3, 8)
    nodes[0].transport.faults.stall_after = 3
    number = reader.start(keys, seconds=2.0)
    wait_for(lambda: len(reader.good(number)) == stalled(nodes, 3))
    ended = reader.wait(number)
    assert ended.failure == "load_deadline"
    landed = reader.good(number)
    assert set(landed) >= set(keys[:3])
    assert len(landed) == stalled(nodes, 3)
    reader.fetches.end(ended.number)
    node = reader.node
    rest = 8 - len(landed)
    wait_for(lambda: node.transfers.run(node.transfers.stats)["quarantined"] == rest)
    # Meanwhile the keys are free: the engine computes and saves the blocks itself.
    put(node, [block for block in chain(3, 8) if block[0] not in landed], SLOT, SIZE)
    nodes[0].transport.faults.stall_after = None
    wait_for(lambda: idle(node), 10.0)
    again = reader.fetch(keys)
    assert sorted(reader.good(again.number)) == sorted(keys)
    reader.fetches.end(again.number)


def test_corrupt_bytes_never_become_visible(nodes: tuple[Node, Node], reader: Reader) -> None:
    keys = share(nodes[0], reader, 4, 6)
    nodes[0].transport.faults.corrupt = {2}
    ended = reader.fetch(keys)
    assert ended.failure == "load_corrupt"
    assert not set(reader.good(ended.number)) & set(keys[2:4])
    held = reader.node.server.call(lambda core: [core.held(0, key) for key in keys[2:4]])
    assert held == [None, None]
    reader.fetches.end(ended.number)


def test_a_source_that_breaks_off_costs_the_rest(nodes: tuple[Node, Node], reader: Reader) -> None:
    keys = share(nodes[0], reader, 5, 6)
    nodes[0].transport.faults.fail_after = 1
    ended = reader.fetch(keys)
    assert ended.failure == "transfer_failed"
    landed = reader.good(ended.number)
    assert keys[0] in landed
    assert not set(landed) & set(keys[1:4])
    reader.fetches.end(ended.number)
    # It is left alone for a while: at once, not after another attempt.
    assert reader.fetch(keys).failure == "source_lost"


def test_the_rest_comes_from_another_place(
    wire: Wire, nodes: tuple[Node, Node], reader: Reader
) -> None:
    third = wire.add("n3")
    keys = share(nodes[0], reader, 6, 6)
    put(third, chain(6, 6), SLOT, SIZE)
    wait_for(lambda: all(len(reader.node.catalog.places(key)) == 2 for key in keys))
    nodes[0].transport.faults.fail_after = third.transport.faults.fail_after = 3
    ended = reader.fetch(keys)
    assert sorted(reader.good(ended.number)) == sorted(keys)
    assert (ended.failure, sorted(ended.sources)) == ("", ["n1", "n3"])
    reader.fetches.end(ended.number)


def test_what_the_source_lost_meanwhile_is_a_miss(
    wire: Wire, nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 7, 6)
    wire.on_ask = lambda ask: nodes[0].server.call(lambda core: core.drop(keys[2:])) and None
    ended = reader.fetch(keys)
    assert ended.failure == "source_lost"
    assert reader.good(ended.number) == keys[:2]
    reader.fetches.end(ended.number)


def test_a_cut_link_costs_the_deadline_and_no_more(
    wire: Wire, nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 8, 6)
    wire.cut = True
    start_s = time.monotonic()
    ended = reader.fetch(keys, seconds=0.3)
    assert ended.failure == "load_deadline"
    assert time.monotonic() - start_s < 5.0
    wire.cut = False
    reader.fetches.end(ended.number)


def test_a_full_store_takes_what_fits(wire: Wire) -> None:
    wire.add("n1")
    small = wire.add("n2", 4 * SLOT)
    reader = Reader(small)
    keys = share(wire.nodes["n1"], reader, 9, 8)
    ended = reader.fetch(keys)
    assert ended.failure == "no_room"
    assert reader.good(ended.number) == keys[:4]
    reader.fetches.end(ended.number)
    reader.close()


def test_two_engines_waiting_for_one_block_read_it_once(
    nodes: tuple[Node, Node], reader: Reader
) -> None:
    other = Reader(reader.node)
    keys = share(nodes[0], reader, 10, 8)
    nodes[0].transport.faults.stall_after = 2
    first, second = reader.start(keys), other.start(keys)
    wait_for(lambda: len(reader.good(first)) == stalled(nodes, 2))
    nodes[0].transport.faults.stall_after = None
    assert reader.wait(first).num_bytes + other.wait(second).num_bytes == 8 * SLOT
    assert sorted(reader.good(first)) == sorted(other.good(second)) == sorted(keys)
    reader.fetches.end(first)
    other.fetches.end(second)
    other.close()


def test_a_reader_that_dies_leaves_nothing(nodes: tuple[Node, Node], reader: Reader) -> None:
    keys = share(nodes[0], reader, 11, 8)
    nodes[0].transport.faults.stall_after = 3
    victim = Reader(reader.node)
    number = victim.start(keys)
    wait_for(lambda: len(victim.good(number)) == stalled(nodes, 3))
    victim.close()
    assert victim.wait(number).failure == "store_unavailable"
    nodes[0].transport.faults.stall_after = None
    wait_for(lambda: idle(reader.node))


def test_nobody_knows_the_block(reader: Reader) -> None:
    assert reader.fetch([bytes(32)]).failure == "source_lost"


def test_a_link_can_be_measured(nodes: tuple[Node, Node]) -> None:
    source, reader = nodes

    def take_back(lent: Lent) -> None:
        assert lent.offer is not None
        source.transfers.take_back("memory", lent.offer.number)

    def ask(count: int, num_bytes: int) -> Lent:
        return lend_probe(source.transfers, "memory", count, num_bytes)

    probed = probe(reader.transfers, "n1", "memory", ask, take_back)
    assert (probed.failure, probed.path) == ("", "memory")
    assert probed.latency_s > 0
    assert probed.gb_per_s > 0
    source.transport.faults.fail_after = 0
    assert "broke off" in probe(reader.transfers, "n1", "memory", ask, take_back).failure


def test_an_unforeseen_fault_ends_the_fetch(
    nodes: tuple[Node, Node], reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = share(nodes[0], reader, 12, 6)
    transfers = reader.node.transfers
    monkeypatch.setattr(transfers.transports["memory"], "read", lambda *_: 1 / 0)
    ended = reader.fetch(keys)
    assert ended.failure == "load_fault"
    assert transfers.counters["faults"] == 1
    transfers.counters.clear()
    reader.fetches.end(ended.number)
    monkeypatch.undo()
    wait_for(lambda: idle(reader.node))
    again = reader.fetch(keys)
    assert sorted(reader.good(again.number)) == sorted(keys)
    reader.fetches.end(again.number)


def test_a_fetch_for_a_slab_that_is_not_there(nodes: tuple[Node, Node], reader: Reader) -> None:
    attachment = replace(reader.attachment, slab_id=99)
    reader.fetches.start(attachment, 1, [bytes(32)], time.monotonic_ns() + 10**9)
    assert reader.wait(1).failure == "load_fault"
    reader.node.transfers.counters.clear()
    reader.fetches.end(1)
