"""The network of a test bed: its rate is what was asked for, and it goes when its owner goes."""

from __future__ import annotations

import signal
import socket
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import goodput, system
from kvrelay.bench.testbed.bed import clear_leftovers, two_nodes
from kvrelay.bench.testbed.link import UNSHAPED, parse_link
from kvrelay.bench.testbed.record import load_records
from kvrelay.cluster.processes import marked_processes

pytestmark = pytest.mark.usefixtures("machine")


def test_the_wire_carries_what_it_is_told_to() -> None:
    with two_nodes(parse_link("200mbit")) as bed:
        for name, bits_per_s in (("200mbit", 200e6), ("50mbit", 50e6)):
            bed.set_link(parse_link(name))
            before = bed.counters()
            measured = bed.goodput(repeats=2)
            first, second = bed.counters()
            # Headers take 4 to 5 % of a full frame; nothing may be faster than the wire.
            assert 0.8 * bits_per_s < measured.median_bits_per_s < bits_per_s
            assert first.rx_bytes - before[0].rx_bytes >= 2 * measured.num_bytes
            assert second.tx_bytes - before[1].tx_bytes >= 2 * measured.num_bytes
        bed.set_link(UNSHAPED)
        assert bed.goodput(repeats=1).median_bits_per_s > 400e6


def test_the_rate_changes_while_traffic_flows() -> None:
    with two_nodes(parse_link("20mbit")) as bed, ThreadPoolExecutor() as pool:
        first, second = bed.network.nodes
        begun = bed.counters()[0].rx_bytes
        reading = pool.submit(goodput.measure, second, first, 8 * 2**20, repeats=1)
        while bed.counters()[0].rx_bytes - begun < 2 * 2**20:
            assert not reading.done()
        bed.set_link(parse_link("1gbit"))
        assert reading.result().median_bits_per_s > 30e6


@pytest.mark.parametrize("name", ["unshaped", "100mbit-1ms"])
def test_a_cut_wire(name: str) -> None:
    with two_nodes(parse_link(name)) as bed:
        bed.set_up(False)
        with system.entered(bed.network.first):
            with socket.socket() as probe, pytest.raises(OSError):
                probe.settimeout(1)
                probe.connect((bed.network.second.address, 9))
        bed.set_up(True)
        assert bed.goodput(repeats=1).num_bytes > 0


def test_a_long_wire_takes_its_time_and_carries_its_rate() -> None:
    with two_nodes(parse_link("100mbit-5ms")) as bed:
        for name, rtt_s in (("100mbit-5ms", 5e-3), ("100mbit", 0.0), ("50mbit-20ms", 20e-3)):
            bed.set_link(parse_link(name))
            # Nothing comes early. The median, since the machine may have other things to do.
            assert rtt_s < statistics.median(bed.round_trips_s()) < rtt_s + 3e-3
            before, bridge_s = bed.counters(), bed.bridge_cpu_s()
            measured = bed.goodput(repeats=2)
            first, second = bed.counters()
            bits_per_s = bed.link.bits_per_s or 0
            assert 0.75 * bits_per_s < measured.median_bits_per_s < bits_per_s
            assert first.rx_bytes - before[0].rx_bytes >= 2 * measured.num_bytes
            assert second.tx_bytes - before[1].tx_bytes >= 2 * measured.num_bytes
            if rtt_s:
                assert bridge_s is not None and (bed.bridge_cpu_s() or 0.0) > bridge_s
            else:
                assert bridge_s is None


def test_a_connection_outlives_a_change_of_length() -> None:
    with two_nodes(parse_link("40mbit")) as bed, ThreadPoolExecutor() as pool:
        first, second = bed.network.nodes
        reading = pool.submit(goodput.measure, second, first, 8 * 2**20, repeats=1)
        for name in ("40mbit-4ms", "40mbit", "40mbit-2ms"):
            bed.set_link(parse_link(name))
            begun = bed.counters()[0].rx_bytes
            while bed.counters()[0].rx_bytes - begun < 2**20:
                assert not reading.done()
        # Every change fills the buckets anew, and what they hold passes unshaped.
        assert reading.result().median_bits_per_s < 44e6


def test_a_bridge_that_ended_is_no_link() -> None:
    with two_nodes(parse_link("100mbit-1ms")) as bed:
        (process,) = marked_processes(bed.id)
        process.kill()
        process.wait(10)
        for measure in (bed.counters, bed.bridge_cpu_s):
            with pytest.raises(BenchError):
                measure()


def test_loopback_and_own_address_only() -> None:
    with two_nodes() as bed, system.entered(bed.network.second):
        for address in ("127.0.0.1", bed.network.second.address):
            with socket.create_server((address, 0)) as server:
                socket.create_connection(server.getsockname(), timeout=5).close()
        with socket.socket() as probe, pytest.raises(OSError, match="unreachable"):
            probe.connect(("192.0.2.1", 9))


def test_several_at_once() -> None:
    with two_nodes(parse_link("50mbit")) as one, two_nodes(parse_link("100mbit")) as other:
        assert len(load_records()) == 2
        assert one.goodput(repeats=1).median_bits_per_s < 50e6
        assert 50e6 < other.goodput(repeats=1).median_bits_per_s < 100e6
    assert load_records() == []


def test_an_exception_leaves_nothing() -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        with two_nodes():
            raise RuntimeError("on purpose")
    assert load_records() == []


def test_a_rate_that_the_kernel_refuses_leaves_nothing() -> None:
    with pytest.raises(BenchError, match="tc -n"):
        with two_nodes(parse_link("99999999999gbit")):
            pytest.fail("it should not have begun")
    assert load_records() == []


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(owner: Any, which: signal.Signals) -> None:
    one = owner("long")
    assert one.namespaces <= system.namespaces()
    assert one.end(which) != 0
    assert not one.namespaces & system.namespaces()
    assert not marked_processes(one.id)
    assert load_records() == []


def test_a_bridge_ends_when_its_owner_is_killed(owner: Any) -> None:
    killed = owner("long")
    (process,) = marked_processes(killed.id)
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    process.wait(10)
    assert clear_leftovers() == 1


def test_what_a_killed_owner_leaves_is_removed_by_the_next(owner: Any) -> None:
    killed, alive = owner("ray"), owner("long")
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    assert killed.namespaces <= system.namespaces()
    assert len(marked_processes(killed.id)) > 4  # two raylets, the GCS, their helpers
    with two_nodes() as bed:
        assert not killed.namespaces & system.namespaces()
        assert not marked_processes(killed.id)
        assert alive.namespaces <= system.namespaces()
        assert {record.id for record in load_records()} == {alive.id, bed.id}
    assert clear_leftovers() == 0
