"""Server and client over a real socket; a second process where death matters."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
import xxhash

from kvrelay.relay import index
from kvrelay.relay.arena import MAX_CLIENTS
from kvrelay.relay.client import StoreClient, StoreLink
from kvrelay.relay.errors import ArenaError, ProtocolError, StoreUnavailable
from kvrelay.relay.keys import child_key, pack_tokens, root_key
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import Entry, StoreCore

Connect = Callable[[str], StoreClient]
ROOT = root_key(bytes(32))
TOKENS = pack_tokens([1, 2])
KEY = child_key(ROOT, TOKENS)


@pytest.fixture
def address() -> str:
    return f"kvrelay-test-{uuid.uuid4().hex}"


@pytest.fixture
def connect(address: str) -> Iterator[Callable[[str], StoreClient]]:
    clients = []

    def connect(role: str) -> StoreClient:
        clients.append(StoreClient(address, role))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def server(address: str) -> Iterator[StoreServer]:
    server = StoreServer(StoreCore(1 << 20, time.monotonic_ns), address)
    yield server
    server.call(StoreCore.check_integrity)
    server.close()


def write(client: StoreClient, payload: bytes) -> None:
    slab_id, slab, _ = client.open_slab(len(payload), 2)
    ((key, slot),) = client.reserve(slab_id, [KEY]).granted
    slab.data(slot)[:] = payload
    client.commit(slab_id, [Entry(slot, key, ROOT, TOKENS, xxhash.xxh3_128_digest(payload))])


def wait_for(condition, timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.01)


def test_what_one_client_commits_another_reads(server: StoreServer, connect: Connect) -> None:
    writer, reader = connect("w"), connect("r")
    write(writer, b"k" * 4096)
    _, slab, _ = reader.open_slab(4096, 2)
    header = index.find(slab, KEY)
    assert header is not None
    assert bytes(slab.data(header.slot)) == b"k" * 4096
    assert writer.reserve(0, [KEY]).refused == {"held": 1}


def test_a_refused_message_leaves_the_connection_usable(
    server: StoreServer, connect: Connect
) -> None:
    client = connect("t")
    with pytest.raises(ProtocolError, match="capacity"):
        client.open_slab(2 << 20, 2)
    with pytest.raises(ProtocolError, match="no slab"):
        client.reserve(7, [KEY])
    assert client.stats()["clients"] == 1


def test_garbage_closes_only_its_own_connection(server: StoreServer, connect: Connect) -> None:
    good, bad = connect("good"), connect("bad")
    bad._socket.send(b"\xc1garbage")
    wait_for(lambda: good.stats()["clients"] == 1)
    with pytest.raises(StoreUnavailable):
        bad.stats()


def test_one_address_has_one_store(server: StoreServer, address: str) -> None:
    with pytest.raises(ArenaError, match="already serves"):
        StoreServer(StoreCore(1 << 20, time.monotonic_ns), address)


def test_one_client_too_many_is_refused_until_another_leaves(
    server: StoreServer, connect: Connect
) -> None:
    clients = [connect("t") for _ in range(MAX_CLIENTS)]
    write(clients[0], b"k" * 4096)
    with pytest.raises(ProtocolError, match=f"more than {MAX_CLIENTS} clients"):
        connect("t")
    assert clients[-1].stats()["blocks"] == 1
    clients.pop().close()
    wait_for(lambda: clients[0].stats()["clients"] == MAX_CLIENTS - 1)
    assert connect("t").stats()["clients"] == MAX_CLIENTS


def test_a_connection_that_another_thread_has_closed(server: StoreServer, connect: Connect) -> None:
    client = connect("t")
    assert not client.wait_closed(0.0)
    client.abandon()
    assert client.wait_closed(5.0)
    with pytest.raises(OSError):
        client.receive()


def test_a_killed_client_leaves_no_reservation_and_no_lease(
    server: StoreServer, address: str, connect: Connect
) -> None:
    watcher = connect("watcher")
    write(watcher, b"k" * 4096)
    script = f"""
import time
from kvrelay.relay.client import StoreClient
from kvrelay.relay.leases import LeaseRow
client = StoreClient({address!r}, "victim")
slab_id, slab, _ = client.open_slab(4096, 2)
client.reserve(slab_id, [bytes(32)])
LeaseRow(slab, client.client_id).take(0, time.monotonic_ns() + 10**12)
print("ready", flush=True)
time.sleep(60)
"""
    victim = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd="/")
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready\n"
    assert (watcher.stats()["reserved"], watcher.stats()["leases"]) == (1, 1)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    wait_for(lambda: (watcher.stats()["reserved"], watcher.stats()["leases"]) == (0, 0))


def test_a_mapping_outlives_its_store_and_the_link_comes_back(address: str) -> None:
    server = StoreServer(StoreCore(1 << 20, time.monotonic_ns), address)
    link = StoreLink(address, "t", 4096, 2)
    assert link.wait(5)
    attachment = link.current
    assert attachment is not None
    write(attachment.client, b"k" * 4096)
    slab = attachment.slab
    server.close()
    wait_for(lambda: link.current is None)
    header = index.find(slab, KEY)
    assert header is not None
    assert bytes(slab.data(header.slot)) == b"k" * 4096
    server = StoreServer(StoreCore(1 << 20, time.monotonic_ns), address)
    wait_for(lambda: link.current is not None)
    assert link.current is not None and link.current.slab.incarnation != slab.incarnation
    link.close()
    server.close()


def test_no_store_is_an_absent_link_not_an_error(address: str) -> None:
    link = StoreLink(address, "t", 4096, 2)
    assert not link.wait(0.1)
    assert link.current is None
    link.close()
