"""Blocks that come before they are asked for, on several nodes of one process."""

import time
from collections.abc import Iterator

import pytest
from nodes import SIZE, SLOT, Node, Reader, Wire, chain, put, share, wait_for

from kvrelay.policies.prediction import Pull
from kvrelay.relay import ahead, index, protocol
from kvrelay.relay.ahead import Ahead
from kvrelay.relay.client import StoreClient
from kvrelay.relay.directory import Expected
from kvrelay.relay.keys import BlockKey
from kvrelay.relay.store import StoreCore

pytestmark = pytest.mark.slow
# What tiny blocks take to compute is next to nothing: an engine says so itself.
PREFILL_S = 10.0


@pytest.fixture
def engine(nodes: tuple[Node, Node]) -> Iterator[StoreClient]:
    """Says that the second node has an engine of agent `b`."""
    client = StoreClient(nodes[1].address, "scheduler", agent="b")
    client.open_slab(SLOT, SIZE)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def priced(monkeypatch: pytest.MonkeyPatch) -> list[Pull]:
    """What was priced; how fast reads have been on a loaded machine decides nothing here."""
    pulls: list[Pull] = []

    def pays(pull: Pull) -> bool:
        pulls.append(pull)
        return pull.probability > 0.2

    monkeypatch.setattr(Pull, "pays", property(pays))
    return pulls


def expect(node: Node, keys: list[bytes], agent: str = "b", probability: float = 1.0) -> None:
    """What an engine of this node says once a request is over."""
    client = node.client()
    slab_id, _, _ = client.open_slab(SLOT, SIZE)
    client.expect(protocol.Expect(slab_id, agent, probability, PREFILL_S, keys))
    client.close()


def counts(node: Node) -> dict[str, int]:
    stats = node.transfers.run(node.transfers.stats)
    return {name: n for name, n in stats.items() if name.startswith("ahead_")}


def held(node: Node, keys: list[bytes]) -> list[bytes]:
    headers = node.server.call(lambda core: [core.held(0, key) for key in keys])
    return [header.key for header in headers if header is not None]


def wait_held(node: Node, keys: list[bytes]) -> None:
    wait_for(lambda: held(node, keys) == keys, 10.0)
    wait_for(lambda: node.transfers.run(node.transfers.stats)["fetches"] == 0)


def test_what_is_expected_comes_and_is_used(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient, priced: list[Pull]
) -> None:
    keys = share(nodes[0], reader, 1, 12)
    expect(nodes[0], keys)
    wait_held(nodes[1], keys)
    (pull,) = priced
    assert (pull.probability, pull.prefill_s, pull.displaced_per_s) == (1.0, PREFILL_S, 0.0)
    assert pull.transfer_s > 0
    assert counts(nodes[1]) == {
        "ahead_pulls": 1,
        "ahead_blocks": 12,
        "ahead_used_blocks": 0,
        "ahead_wasted_blocks": 0,
    }
    fetched = reader.fetch(keys)  # it is here by now
    assert (fetched.failure, fetched.num_bytes) == ("", 0)
    assert sorted(reader.good(fetched.number)) == sorted(keys)
    reader.fetches.end(fetched.number)
    for key in keys[:5]:  # as engines do that load them
        header = index.find(reader.slab, BlockKey(key))
        assert header is not None and header.ahead
        reader.slab.accesses[header.slot] = time.monotonic_ns()
    assert counts(nodes[1])["ahead_used_blocks"] == 5
    assert counts(nodes[0]) == {}


def test_what_was_asked_for_is_not_said_to_have_come_ahead(
    nodes: tuple[Node, Node], reader: Reader
) -> None:
    keys = share(nodes[0], reader, 2, 4)
    ended = reader.fetch(keys)
    reader.fetches.end(ended.number)
    headers = [index.find(reader.slab, BlockKey(key)) for key in keys]
    assert [header is not None and header.ahead for header in headers] == [False] * 4


def test_what_nobody_uses_is_wasted_and_lessens_belief(
    nodes: tuple[Node, Node],
    reader: Reader,
    engine: StoreClient,
    priced: list[Pull],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "SETTLE_S", 0.0)
    for seed in range(40):
        keys = share(nodes[0], reader, 100 + seed, 2)
        priced.clear()
        expect(nodes[0], keys, probability=0.9)
        wait_for(lambda: len(priced) == 1)
        if counts(nodes[1]).get("ahead_passed"):
            break
        wait_held(nodes[1], keys)
    told = counts(nodes[1])
    assert told["ahead_passed"] == 1
    assert told["ahead_wasted_blocks"] == told["ahead_blocks"] == 2 * told["ahead_pulls"]
    assert held(nodes[1], keys) == []


@pytest.mark.parametrize(("agent", "probability"), [("other", 1.0), ("b", 0.1)])
def test_what_is_not_for_this_node_or_does_not_pay_stays_away(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient, agent: str, probability: float
) -> None:
    keys = share(nodes[0], reader, 4, 4)
    expect(nodes[0], keys, agent, probability)
    there = share(nodes[0], reader, 5, 4)
    expect(nodes[0], there)  # told later, so the other one has been heard
    wait_held(nodes[1], there)
    assert held(nodes[1], keys) == []
    assert counts(nodes[1]).get("ahead_passed", 0) == (agent == "b")


def test_an_agent_of_the_same_node_needs_nothing(core: StoreCore) -> None:
    core.connect("b")
    slab_id = core.open_slab(4096, SIZE)
    core.expect(protocol.Expect(slab_id, "b", 1.0, None, [bytes(32)]))
    assert not core.has_events
    core.expect(protocol.Expect(slab_id, "c", 0.5, 2.0, [bytes(32)]))
    assert core.has_events
    assert core.take_events().expected == (Expected("c", 0.5, 2.0, 4096, SIZE, (bytes(32),)),)
    assert not core.has_events


def test_it_ends_at_the_first_block_that_nobody_has(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient
) -> None:
    keys = share(nodes[0], reader, 7, 6)
    unknown = bytes(range(32))
    expect(nodes[0], [*keys[:3], unknown, *keys[3:]])
    wait_held(nodes[1], keys[:3])
    assert held(nodes[1], keys[3:]) == []


def test_it_gives_way_to_what_an_engine_waits_for(
    nodes: tuple[Node, Node],
    reader: Reader,
    engine: StoreClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "PART_BYTES", 2 * SLOT)
    mine, others = share(nodes[0], reader, 8, 4), share(nodes[0], reader, 9, 8)
    nodes[0].transport.faults.stall_after = 0
    number = reader.start(mine, seconds=30.0)
    wait_for(lambda: nodes[1].transfers.run(lambda: nodes[1].transfers.fetching))
    expect(nodes[0], others)
    wait_for(lambda: counts(nodes[1]).get("ahead_pulls") == 1)
    assert counts(nodes[1]).get("ahead_blocks", 0) == 0
    assert nodes[1].transfers.run(nodes[1].transfers.stats)["fetches"] == 1
    nodes[0].transport.faults.stall_after = None
    assert reader.wait(number).failure == ""
    reader.fetches.end(number)
    wait_held(nodes[1], others)
    assert counts(nodes[1])["ahead_blocks"] == 8


def test_an_engine_that_comes_meanwhile_waits_for_the_same_bytes(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient
) -> None:
    keys = share(nodes[0], reader, 10, 4)
    nodes[0].transport.faults.stall_after = 0
    expect(nodes[0], keys)
    wait_for(lambda: nodes[1].transfers.run(lambda: nodes[1].transfers.fetching))
    number = reader.start(keys, seconds=30.0)
    nodes[0].transport.faults.stall_after = None
    ended = reader.wait(number)
    assert (ended.failure, ended.num_bytes) == ("", 0)
    assert sorted(reader.good(number)) == sorted(keys)
    reader.fetches.end(number)
    wait_held(nodes[1], keys)


def test_a_source_that_breaks_off_ends_it(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient
) -> None:
    keys = share(nodes[0], reader, 11, 4)
    nodes[0].transport.faults.fail_after = 0
    expect(nodes[0], keys)
    wait_for(lambda: counts(nodes[1]).get("ahead_dropped") == 1)
    assert held(nodes[1], keys) == []


def test_corrupt_bytes_do_not_come_ahead_either(
    nodes: tuple[Node, Node], reader: Reader, engine: StoreClient
) -> None:
    keys = share(nodes[0], reader, 12, 4)
    nodes[0].transport.faults.corrupt = {0}
    expect(nodes[0], keys)
    wait_for(lambda: counts(nodes[1]).get("ahead_dropped") == 1)
    assert keys[0] not in held(nodes[1], keys)


def test_a_full_store_takes_what_fits(wire: Wire) -> None:
    wire.add("n1")
    small = wire.add("n2", 4 * SLOT)
    reader = Reader(small)
    engine = StoreClient(small.address, "scheduler", agent="b")
    engine.open_slab(SLOT, SIZE)
    keys = share(wire.nodes["n1"], reader, 13, 4)
    kept = [block[0] for block in chain(14, 2)]
    put(small, chain(14, 2))
    for key in kept:
        header = index.find(reader.slab, BlockKey(key))
        assert header is not None
        reader.attachment.leases.take(header.slot, time.monotonic_ns() + 60 * 10**9)
    expect(wire.nodes["n1"], keys)
    wait_for(lambda: len(held(small, keys)) == 2, 10.0)
    assert held(small, kept) == kept
    reader.close()
    engine.close()


def test_a_fault_costs_what_was_under_way_and_no_more(
    nodes: tuple[Node, Node],
    reader: Reader,
    engine: StoreClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = share(nodes[0], reader, 15, 4)

    def fault(*_: object) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Ahead, "_begin_part", fault)
        expect(nodes[0], keys)
        wait_for(lambda: nodes[1].transfers.counters["faults"] == 1)
    nodes[1].transfers.counters["faults"] = 0
    again = share(nodes[0], reader, 16, 4)
    expect(nodes[0], again)
    wait_held(nodes[1], again)
    assert held(nodes[1], keys) == []
