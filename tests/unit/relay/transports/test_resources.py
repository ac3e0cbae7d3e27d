"""What transports cost: nothing while idle, and no more after thousands of reads."""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transfer_ways import PROCESS_WAYS, Way

SPANS = [(n << 16, 1 << 16) for n in range(64)]
HostMaker = Callable[..., Any]

over_processes = pytest.mark.parametrize("way", PROCESS_WAYS)


@over_processes
def test_idle_costs_nothing(way: Way, hosts: HostMaker) -> None:
    source, reader = hosts(way), hosts(way)
    offer = source.call("offer", SPANS)
    reader.call("fetch", offer, SPANS)
    source.call("withdraw", offer)
    time.sleep(0.5)
    before = [host.call("usage")["cpu_s"] for host in (source, reader)]
    start = time.monotonic()
    time.sleep(3.0)
    after = [host.call("usage")["cpu_s"] for host in (source, reader)]
    seconds = time.monotonic() - start
    # Two answers to this test are in it; the clock of CPU time ticks in 10 ms.
    assert max(b - a for a, b in zip(before, after, strict=True)) / seconds < 0.01


@over_processes
def test_thousands_of_reads_leave_nothing(way: Way, hosts: HostMaker) -> None:
    source, reader = hosts(way), hosts(way)
    source.call("fill", SPANS, 1)
    offer = source.call("offer", SPANS)
    reader.call("fetch", offer, SPANS)

    def reads(count: int) -> list[dict[str, float]]:
        for n in range(count // 100):
            one = source.call("offer", SPANS[n % 64 : n % 64 + 1])
            reader.call("fetch", one, SPANS[n % 64 : n % 64 + 1], 100)
            source.call("withdraw", one)
        return [host.call("usage") for host in (source, reader)]

    warm = reads(1000)
    used = reads(5000)
    for before, after in zip(warm, used, strict=True):
        assert after["fds"] == before["fds"]
        assert after["rss_bytes"] - before["rss_bytes"] < 2 << 20
    assert reader.call("digests", SPANS) == source.call("digests", SPANS)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip and unshare")
    tag = uuid.uuid4().hex[:6]
    names, ends = (f"kv{tag}a", f"kv{tag}b"), (f"v{tag}a", f"v{tag}b")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        pair = [f"name {end} netns {name}".split() for end, name in zip(ends, names, strict=True)]
        ip("link", "add", *pair[0], "type", "veth", "peer", *pair[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("-n", name, "addr", "add", f"10.79.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        for name, end in zip(names, ends, strict=True):
            wait_up(name, end)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def wait_up(namespace: str, device: str) -> None:
    """UCX takes only devices that are up when it starts."""
    command = ["ip", "-n", namespace, "link", "show", device]
    end = time.monotonic() + 10
    while "state UP" not in subprocess.run(command, capture_output=True, text=True).stdout:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nixl", "isolated"])
def test_the_path_is_each_peers_own(
    kind: str, hosts: HostMaker, namespaces: tuple[str, str]
) -> None:
    """UCX sees one machine behind two network namespaces, and goes past the wire."""
    here, there = (("ip", "netns", "exec", name) for name in namespaces)
    apart = "unshare", "--pid", "--fork", "--kill-child"
    reader = hosts(Way(kind, True), here)
    near, far = hosts(Way(kind, True), there), hosts(Way(kind, True), (*there, *apart))
    paths = []
    for source in (near, far, near):
        offer = source.call("offer", SPANS)
        assert reader.call("path", offer) in {"unknown", *paths}
        reader.call("fetch", offer, SPANS)
        paths.append(reader.call("path", offer))
    assert paths[1].startswith("tcp/v")
    assert paths[0] == paths[2]
    assert paths[0] in ("cma/memory", paths[1])  # cma may be forbidden here


@pytest.mark.parametrize("kind", ["nixl", "isolated"])
def test_two_that_read_from_each_other_both_know_the_path(kind: str, hosts: HostMaker) -> None:
    """UCX gives the second one the endpoint that it made when the first one connected."""
    first, second = hosts(Way(kind, True)), hosts(Way(kind, True))
    for reader, source in ((first, second), (second, first)):
        offer = source.call("offer", SPANS)
        reader.call("fetch", offer, SPANS)
        assert reader.call("path", offer) != "unknown"
