"""What is refused before anything is started, and the remedy it names."""

import socket
from pathlib import Path

import pytest

from kvrelay.cluster import preflight
from kvrelay.cluster.config import HttpConfig, load_config
from kvrelay.cluster.errors import LifecycleError

CONFIG = load_config(
    {
        "models": {"demo": {"source": "demo"}},
        "agents": [{"name": n, "model": "demo", "num_cpus": 0.5} for n in ("a", "b", "c")],
    }
)


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LifecycleError, match=rf"port {port} is in use.*--port"):
            preflight.check_port(HttpConfig(port=port))


def test_foreign_host() -> None:
    with pytest.raises(LifecycleError, match=r"http\.host"):
        preflight.check_port(HttpConfig(host="192.0.2.77", port=8000))


def test_free_port() -> None:
    preflight.check_port(HttpConfig(port=preflight.free_port()))


def test_too_little_memory() -> None:
    with pytest.raises(LifecycleError, match=r"needed for 3 agents.*relay\.capacity_bytes"):
        preflight.check_memory(CONFIG, available=4 * 2**30)
    preflight.check_memory(CONFIG, available=64 * 2**30)


def test_relay_off_needs_no_store() -> None:
    without = load_config({**CONFIG.model_dump(), "relay": {"enabled": False}})
    difference = preflight.needed_bytes(CONFIG) - preflight.needed_bytes(without)
    assert difference == CONFIG.relay.capacity_bytes
    more = load_config({**CONFIG.model_dump(), "relay": {"encoded_bytes": "1GiB"}})
    assert preflight.needed_bytes(more) == preflight.needed_bytes(CONFIG) + 2**30


def test_too_little_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(LifecycleError, match="--shm-size"):
        preflight.check_shared_memory(CONFIG, tmp_path / "absent")


def test_ray_cpus_are_enough_for_all_agents() -> None:
    many = [{"name": f"a{i}", "model": "demo", "num_cpus": 100} for i in range(3)]
    config = load_config({"models": {"demo": {"source": "demo"}}, "agents": many})
    assert preflight.local_cpus(config) == 300


def test_nodes_that_are_not_there() -> None:
    agents = [{"name": "a", "model": "demo"}, {"name": "b", "model": "demo", "node": "far"}]
    content = {"models": {"demo": {"source": "demo"}}, "agents": agents, "http": {"node": "near"}}
    config = load_config(content)
    preflight.check_nodes(CONFIG, ())
    preflight.check_nodes(config, {"far", "near", "other"})
    with pytest.raises(LifecycleError) as caught:
        preflight.check_nodes(config, {"near", "other"})
    assert "agents[1].node 'far'" in str(caught.value)
    assert "there are near, other" in str(caught.value)
    assert "ray start --labels kvrelay/node=" in str(caught.value)
    with pytest.raises(LifecycleError, match=r"http\.node 'near': .*no node has one"):
        preflight.check_nodes(config, ())
