"""The test bed's commands, names and records; making one is tests/topology's business."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrelay.bench.errors import BenchError
from kvrelay.bench.testbed import bridge, delay, goodput, nodes, stream, system
from kvrelay.bench.testbed.link import UNSHAPED, Link, parse_link
from kvrelay.bench.testbed.network import ADDRESSES, NUM_SUBNETS, Network
from kvrelay.bench.testbed.record import BedRecord, load_records, records_dir
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.processes import MARKER

NETWORK = Network.of("abc123", 5)


@pytest.fixture(autouse=True)
def _own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("1gbit", 10**9), ("2.5gbit", 2_500_000_000), ("40mbit", 40 * 10**6), ("64kbit", 64_000)],
)
def test_rates(text: str, bits_per_s: int) -> None:
    assert parse_link(text) == Link(text, bits_per_s)


@pytest.mark.parametrize(
    ("text", "bits_per_s", "rtt_s"),
    [
        ("100mbit-1ms", 10**8, 0.001),
        ("2.5gbit-0.25ms", 2_500_000_000, 0.00025),
        ("unshaped-5ms", None, 0.005),
    ],
)
def test_round_trip_times(text: str, bits_per_s: int | None, rtt_s: float) -> None:
    assert parse_link(text) == Link(text, bits_per_s, rtt_s)
    assert parse_link("unshaped") == UNSHAPED


@pytest.mark.parametrize("text", ["", "fast", "1", "1gb", "-1mbit", "0mbit", "1e9mbit", "1 gbit"])
def test_rates_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="1gbit"):
        parse_link(text)


@pytest.mark.parametrize("text", ["5ms", "-5ms", "1gbit-", "1gbit-5", "1gbit--5ms", "1gbit-501ms"])
def test_round_trip_times_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="100mbit-5ms"):
        parse_link(text)


def test_shaping() -> None:
    assert UNSHAPED.shape_command("ns", "dev")[-2:] == ["root", "noqueue"]
    words = parse_link("1gbit").shape_command("ns", "dev")
    assert words[:8] == ["tc", "-n", "ns", "qdisc", "replace", "dev", "dev", "root"]
    options = dict(zip(words[9::2], words[10::2], strict=True))
    assert options["rate"] == "1000000000bit"
    # A 64 KiB segment fits, and what is let through unshaped is little.
    assert 2**16 <= int(options["burst"]) <= 10**9 / 8 * 0.005
    assert int(options["limit"]) >= int(options["burst"])


@pytest.mark.parametrize("rate", ["64kbit", "500kbit", "4mbit"])
def test_a_slow_wire_does_not_take_seconds(rate: str) -> None:
    link = parse_link(rate)
    words = link.shape_command("ns", "dev")
    options = dict(zip(words[9::2], words[10::2], strict=True))
    held_bits = 8 * (int(options["burst"]) + int(options["limit"]))
    assert link.bits_per_s is not None
    assert held_bits <= max(0.5 * link.bits_per_s, 8 * 2 * 2**12)
    assert int(options["burst"]) >= 2**11  # more than a packet


@pytest.mark.parametrize("subnet", [0, 1, NUM_SUBNETS - 1])
def test_names_and_addresses(subnet: int) -> None:
    network = Network.of("abc123", subnet)
    first, second = network.nodes
    for node in network.nodes:
        for device in (node.device, node.tunnel):
            assert len(device) <= 15, "the kernel's limit"
        assert node.namespace.startswith("kvrelay-")
        assert ipaddress.ip_address(node.address) in ADDRESSES
    wire = ipaddress.ip_network(f"{first.address}/30", strict=False)
    assert ipaddress.ip_address(second.address) in wire.hosts()
    assert len({node.label for node in network.nodes}) == 2


def test_beds_have_nothing_in_common() -> None:
    other = Network.of("abc124", 6)
    for field in ("namespace", "device", "tunnel", "address"):
        names = [getattr(node, field) for n in (NETWORK, other) for node in n.nodes]
        assert len(set(names)) == 4, field


def test_each_node_reaches_the_other_by_one_way() -> None:
    first, second = NETWORK.nodes
    for bridged, device in ((False, first.device), (True, first.tunnel)):
        shown, there, *back = NETWORK.route_commands(bridged)
        assert there[:3] == ["ip", "-n", first.namespace]
        assert {command[2] for command in back} == {second.namespace}
        rest = ["dev", device, "src", first.address, "table", "100"]
        assert there[3:] == ["route", "replace", NETWORK.subnet, *rest]
        # What UCX goes by.
        rest = ["dev", first.device, "src", first.address]
        assert shown[3:] == ["route", "replace", f"{second.address}/32", *rest]
    subnet = ipaddress.ip_network(NETWORK.subnet)
    assert {ipaddress.ip_address(node.address) for node in NETWORK.nodes} == set(subnet.hosts())


def test_only_what_exists_is_removed() -> None:
    assert NETWORK.remove_commands(()) == []
    only = NETWORK.remove_commands({NETWORK.second.namespace, "kvrelay-other-1"})
    assert all(NETWORK.second.namespace in command for command in only)
    assert only[-1] == ["ip", "netns", "delete", NETWORK.second.namespace]


def test_head_and_worker() -> None:
    head, worker = (nodes.start_command(NETWORK, node, "/tmp/x", 2) for node in NETWORK.nodes)
    assert head[:4] == ["ip", "netns", "exec", NETWORK.first.namespace]
    assert "--head" in head and "--head" not in worker
    assert f"--address={NETWORK.first.address}:{nodes.GCS_PORT}" in worker
    assert f"--labels=kvrelay/node={NETWORK.second.label}" in worker


def test_nodes_are_held_to_the_wire() -> None:
    base = {"RAY_ADDRESS": "elsewhere", "PATH": "/bin"}
    node = NETWORK.second
    told = nodes.node_environment(node, "id", "token", "/tmp/x", base)
    assert (told["UCX_TLS"], told["UCX_NET_DEVICES"]) == ("tcp", node.device)
    assert told["TMPDIR"] == "/tmp/x" and "/tmp/x" not in told["TORCHINDUCTOR_CACHE_DIR"]
    assert told[MARKER] == "id" and told["PATH"] == "/bin" and "RAY_ADDRESS" not in told
    client = nodes.client_environment(NETWORK, "id", "token", base)
    assert client["RAY_ADDRESS"] == f"{NETWORK.first.address}:{nodes.GCS_PORT}"
    assert client["RAY_AUTH_TOKEN"] == told["RAY_AUTH_TOKEN"] == "token"


def test_a_record_is_found_again_and_knows_its_owner() -> None:
    record = BedRecord.new()
    try:
        record.save()
        assert load_records() == [record]
        assert not record.abandoned
        assert records_dir().stat().st_mode & 0o077 == 0
        (records_dir() / "old.json").write_text('{"id": "x"}')
        (records_dir() / "broken.json").write_text("{")
        assert load_records() == [record]
        assert BedRecord.new().subnet != record.subnet
        record.remove()
        record.remove()
        assert load_records() == []
    finally:
        Path(record.temp_dir).rmdir()


def test_a_record_whose_owner_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    values = {"id": "x", "name": "abc123", "subnet": 1, "temp_dir": ""}
    assert BedRecord(pid=child.pid, pid_created_s=1.0, **values).abandoned  # type: ignore[arg-type]
    # The same pid, another process.
    assert BedRecord(pid=os.getpid(), pid_created_s=1.0, **values).abandoned  # type: ignore[arg-type]


def test_why_there_can_be_no_test_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in (system.unavailable() or "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    status.write_text("Name:\tx\nCapEff:\t0000000000001000\n")
    assert "CAP_SYS_ADMIN" in (system.unavailable(status) or "")
    status.write_text("CapEff:\t000001ffffffffff\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install iproute2" in (system.unavailable(status) or "")


def test_why_there_can_be_no_long_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "TUN", tmp_path / "tun")
    with pytest.raises(BenchError, match="modprobe tun"):
        bridge.Bridge(NETWORK, "id")


def test_a_command_that_fails_is_one_line() -> None:
    with pytest.raises(BenchError, match="`sh -c echo no >&2; exit 3` failed: no"):
        system.run(["sh", "-c", "echo no >&2; exit 3"])
    with pytest.raises(BenchError, match="exit status 3"):
        system.run(["sh", "-c", "exit 3"])
    with pytest.raises(BenchError, match="No such file"):
        system.run(["/no/such/command"])


def test_a_namespace_that_is_not_there() -> None:
    with pytest.raises(BenchError, match=f"cannot enter {NETWORK.first.namespace}"):
        with system.entered(NETWORK.first):
            pytest.fail("it should not have begun")


def test_plain_tcp_by_itself() -> None:
    command = [sys.executable, stream.__file__, "send", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        port = int(sender.stdout.readline())
        times_s = stream.receive("127.0.0.1", port, 3 * stream.CHUNK_BYTES + 7, repeats=3)
        assert sender.wait(10) == 0
    assert len(times_s) == 3 and all(0 < each < 10 for each in times_s)


@contextlib.contextmanager
def delay_program() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, socket.socket]]:
    """The program between two sockets that keep packets apart, as TUN devices do."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (near, first), (far, second) = pairs
    with near, far, first, second:
        for end in (first, second):
            end.setblocking(False)
        for end in (near, far):
            end.settimeout(10)
        ends = (first.fileno(), second.fileno())
        command = [sys.executable, "-I", "-S", delay.__file__, *map(str, ends)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ends) as process:
            try:
                yield process, near, far
            finally:
                process.kill()


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode())
    process.stdin.flush()


def test_packets_are_held_back_both_ways_in_order() -> None:
    with delay_program() as (process, near, far):
        near.send(b"at once")
        assert far.recv(100) == b"at once"
        tell(process, "0.5\n0.15\n")  # of several lines the last one counts
        for source, target in ((near, far), (far, near)):
            start_s = time.monotonic()
            packets = [bytes([number]) * (delay.PACKET_BYTES - number) for number in range(3)]
            for packet in packets:
                source.send(packet)
            assert [target.recv(2**18) for _ in packets] == packets
            assert time.monotonic() - start_s >= 0.15


def test_a_packet_that_cannot_be_delivered_is_lost_and_the_rest_goes_on() -> None:
    with delay_program() as (process, near, far):
        near.send(b"first")
        assert far.recv(100) == b"first"
        far.shutdown(socket.SHUT_RD)  # what is written there fails from now on
        near.send(b"lost")
        far.send(b"the other way")
        assert near.recv(100) == b"the other way"
        assert process.poll() is None


def test_the_program_ends_with_its_input() -> None:
    with delay_program() as (process, near, far):
        near.send(b"it runs")
        assert far.recv(100) == b"it runs"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_how_much_is_read() -> None:
    assert goodput.read_bytes(UNSHAPED) == goodput.MAX_BYTES >= 94 * 10**6
    assert goodput.read_bytes(parse_link("1gbit")) == 10**8
    assert goodput.read_bytes(parse_link("100mbit")) == 10**7
    assert goodput.read_bytes(parse_link("1mbit")) == goodput.MIN_BYTES
