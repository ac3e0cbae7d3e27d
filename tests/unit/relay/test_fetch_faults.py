"""Fetches whose neighbours fail: other clients, other sources, sources that came back as others."""

import time
from collections.abc import Iterator

import pytest
from nodes import SIZE, SLOT, Node, Reader, Wire, chain, idle, put, share, wait_for

from kvrelay.relay import lending, protocol, routes
from kvrelay.relay.lending import Ask
from kvrelay.relay.transports.memory import MemoryTransport

pytestmark = pytest.mark.slow
LONG_S = 30.0  # a deadline that no test here may wait for


class OtherTransport(MemoryTransport):
    """A second way."""

    name = "other"


@pytest.fixture
def other(nodes: tuple[Node, Node]) -> Iterator[Reader]:
    """Another engine of the reader's node."""
    other = Reader(nodes[1])
    yield other
    other.close()


def ask(keys: list[bytes], codec: str = "raw") -> Ask:
    return Ask("n9", tuple(keys), SLOT, SIZE, "memory", codec, LONG_S)


def loans(node: Node) -> int:
    return node.transfers.run(node.transfers.stats)["loans"]


# Several clients


def test_what_another_client_gave_up_is_read(
    nodes: tuple[Node, Node], reader: Reader, other: Reader
) -> None:
    """Two engines wait for the same blocks; the request for which they are read is aborted."""
    keys = share(nodes[0], reader, 1, 8)
    nodes[0].transport.faults.stall_after = 2
    first = reader.start(keys, LONG_S)
    wait_for(lambda: len(reader.good(first)) >= 2)
    second = other.start(keys, LONG_S)
    wait_for(lambda: len(other.good(second)) >= 2)
    reader.fetches.end(first)
    transfers = nodes[1].transfers
    wait_for(lambda: transfers.run(transfers.stats)["quarantined"] > 0)
    nodes[0].transport.faults.stall_after = None
    assert other.wait(second).failure == ""
    assert sorted(other.good(second)) == sorted(keys)
    other.fetches.end(second)


def test_nobody_waits_for_a_client_whose_source_failed(
    nodes: tuple[Node, Node], reader: Reader, other: Reader
) -> None:
    keys = share(nodes[0], reader, 2, 8)
    faults = nodes[0].transport.faults
    faults.stall_after, faults.fail_after = 2, 2
    first = reader.start(keys, LONG_S)
    wait_for(lambda: len(reader.good(first)) >= 2)
    second = other.start(keys, LONG_S)
    wait_for(lambda: len(other.good(second)) >= 2)
    faults.stall_after = None
    assert reader.wait(first).failure == "transfer_failed"
    assert other.wait(second).failure == "source_lost"  # it is left alone for a while
    reader.fetches.end(first)
    other.fetches.end(second)


def test_a_block_whose_writer_died_is_read_instead(
    nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 3, 6)
    writer = nodes[1].client()
    slab_id, _, _ = writer.open_slab(SLOT, SIZE)
    assert len(writer.reserve(slab_id, keys[2:4]).granted) == 2
    number = reader.start(keys, LONG_S)
    wait_for(lambda: len(reader.good(number)) == 4)
    assert number not in reader.ended
    writer.close()
    assert reader.wait(number).failure == ""
    assert sorted(reader.good(number)) == sorted(keys)
    reader.fetches.end(number)


def test_a_full_store_keeps_nobody_waiting_for_what_was_given_up(wire: Wire) -> None:
    wire.add("n1")
    small = wire.add("n2", 6 * SLOT)
    reader = Reader(small)
    keys = share(wire.nodes["n1"], reader, 4, 4)
    writer, hoarder = small.client(), small.client()
    slab_id, _, _ = writer.open_slab(SLOT, SIZE)
    assert len(writer.reserve(slab_id, keys[2:]).granted) == 2
    number = reader.start(keys, LONG_S)
    wait_for(lambda: len(reader.good(number)) == 2)
    # The writer's slots go to somebody else, and at once.
    taken = small.server.call(
        lambda core: (
            core.abort(writer.client_id, slab_id, range(6)),
            core.reserve(hoarder.client_id, slab_id, [key for key, _, _ in chain(5, 4)]),
        )
    )
    assert len(taken[1][0]) == 4
    ended = reader.wait(number)
    assert (ended.failure, reader.good(number)) == ("no_room", keys[:2])
    reader.fetches.end(number)
    for client in (writer, hoarder, reader):
        client.close()


# Several sources, several transports


def test_the_rest_comes_from_another_place_as_far_as_it_goes(wire: Wire) -> None:
    first, second, third = (wire.add(name) for name in ("n1", "n2", "n3"))
    reader = Reader(second)
    keys = share(first, reader, 6, 6)
    put(third, chain(6, 5), SLOT, SIZE)
    wait_for(lambda: all(len(second.catalog.places(key)) == 2 for key in keys[:5]))
    first.transport.faults.fail_after = 3
    ended = reader.fetch(keys)
    assert (ended.failure, ended.sources) == ("transfer_failed", ("n1", "n3"))
    assert sorted(reader.good(ended.number)) == sorted(keys[:5])
    reader.fetches.end(ended.number)
    reader.close()


def test_a_transport_that_does_not_work_gives_way_to_another(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SUSPECT_TRANSPORT_S", 60.0)
    first, second = (wire.add(name, more={"other": OtherTransport()}) for name in ("n1", "n2"))
    reader = Reader(second)
    keys = share(first, reader, 7, 4)
    first.transport.faults.stall_after = 0
    ended = reader.fetch(keys, seconds=1.5)
    assert ended.failure == "load_deadline"
    reader.fetches.end(ended.number)
    first.transport.faults.stall_after = None  # which nobody knows
    wait_for(lambda: not second.transfers.routes.is_suspect("n1"))
    ended = reader.fetch(keys, LONG_S)
    assert (ended.failure, ended.transport) == ("", "other")
    assert sorted(reader.good(ended.number)) == sorted(keys)
    reader.fetches.end(ended.number)
    reader.close()


def test_a_source_that_cannot_be_addressed_costs_nothing(
    wire: Wire, nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 8, 4)
    gone = wire.nodes.pop("n1")  # the catalog does not know yet
    assert reader.fetch(keys, LONG_S).failure == "source_lost"
    wire.nodes["n1"] = gone


# Sources that were started again


def test_a_source_that_came_back_empty_is_a_miss_and_then_as_good_as_before(
    wire: Wire, nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 9, 6)
    nodes[0].transport.faults.stall_after = 2
    number = reader.start(keys, LONG_S)
    raw = nodes[1].transfers.routes.codec == "raw"  # encoded ones come in two reads
    wait_for(lambda: len(reader.good(number)) == (2 if raw else 4))
    nodes[0].close()  # with a read under way
    assert reader.wait(number).failure == "transfer_failed"
    landed = reader.good(number)
    reader.fetches.end(number)
    node = wire.nodes["n1"] = Node(wire, "n1", 64 << 20, "raw", None, 0)
    wait_for(lambda: not nodes[1].transfers.routes.is_suspect("n1"))
    # It has not published yet: the others still believe in what the old one held.
    assert nodes[1].catalog.places(keys[-1]) == ["n1"]
    ended = reader.fetch(keys, LONG_S)
    assert (ended.failure, sorted(reader.good(ended.number))) == ("source_lost", sorted(landed))
    reader.fetches.end(ended.number)
    node.publish()
    assert nodes[1].catalog.places(keys[-1]) == []
    again = share(node, reader, 10, 6)
    wait_for(lambda: not nodes[1].transfers.routes.is_suspect("n1"))
    ended = reader.fetch(again, LONG_S)
    assert (ended.failure, sorted(reader.good(ended.number))) == ("", sorted(again))
    reader.fetches.end(ended.number)


def test_a_farewell_to_the_source_of_before_ends_no_new_loan(wire: Wire) -> None:
    before, reader = wire.add("n1"), Reader(wire.add("n2"))
    keys = share(before, reader, 11, 2)
    old = before.transfers.lend(ask(keys))
    before.close()
    after = wire.add("n1")
    put(after, chain(11, 2), SLOT, SIZE)
    new = after.transfers.lend(ask(keys))
    assert old.offer is not None and new.offer is not None
    after.transfers.take_back(old.offer.transport, old.offer.number)
    assert loans(after) == 1
    after.transfers.take_back(new.offer.transport, new.offer.number)
    assert loans(after) == 0
    reader.close()


# The source's side


def test_a_refused_loan_gives_its_leases_back_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same blocks are lent already: those leases are not the refused loan's to give back."""
    monkeypatch.setattr(lending, "OUTBOX_WAIT_S", 0.0)
    node, reader = wire.add("n1"), Reader(wire.add("n2"))
    keys = share(node, reader, 12, 3)
    lent = node.transfers.lend(ask(keys))
    assert lent.offer is not None
    outbox = node.transfers.outbox(SLOT)
    cells = outbox.take(outbox.num_free)
    assert cells is not None
    refused = node.transfers.lend(ask(keys, "split"))
    assert (refused.offer, refused.refusal) == (None, "no room for encoded blocks")
    assert node.server.call(lambda core: core.stats()["leases"]) == 3
    outbox.give_back(cells)
    node.transfers.take_back(lent.offer.transport, lent.offer.number)
    wait_for(lambda: idle(node))
    reader.close()


# Size


def test_as_many_blocks_as_one_fetch_may_ask_for(nodes: tuple[Node, Node], reader: Reader) -> None:
    """The longest message that there is, over the real socket."""
    unknown = [key for key, _, _ in chain(13, protocol.MAX_FETCH_KEYS)]
    assert reader.fetch(unknown, LONG_S).failure == "source_lost"
    keys = share(nodes[0], reader, 14, 3)
    ended = reader.fetch([*keys, *unknown[3:]], LONG_S)
    assert (ended.failure, sorted(reader.good(ended.number))) == ("source_lost", sorted(keys))
    reader.fetches.end(ended.number)


def test_a_deadline_that_has_passed_already(nodes: tuple[Node, Node], reader: Reader) -> None:
    keys = share(nodes[0], reader, 15, 3)
    start_s = time.monotonic()
    assert reader.fetch(keys, seconds=-1.0).failure == "load_deadline"
    assert time.monotonic() - start_s < LONG_S / 2
    assert not nodes[1].transfers.routes.is_suspect("n1")  # it was not even asked
    ended = reader.fetch(keys, LONG_S)
    assert ended.failure == ""
    reader.fetches.end(ended.number)
