"""Agents on chosen nodes of a Ray cluster that `kvrelay serve` joins, for real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.bed import Bed, two_nodes
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.testbed.network import Node
from kvrelay.cluster.processes import marked_processes
from kvrelay.cluster.session import load_sessions

PORT = 8000
URL = f"http://127.0.0.1:{PORT}/v1"
START_S = 420
ENGINE = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "kv_cache_memory_bytes": "64MiB",
}
CONFIG = {
    "models": {"demo": {"source": "demo", "engine_kwargs": ENGINE}},
    "agents": [
        {"name": "a", "model": "demo", "num_cpus": 0.5, "node": "node-2"},
        {"name": "b", "model": "demo", "num_cpus": 0.5, "node": "node-1"},
    ],
    "relay": {"policy": "always", "capacity_bytes": "128MiB"},
    "http": {"port": PORT, "node": "node-1"},
}


@pytest.fixture(scope="module")
def bed(machine_of_module: None) -> Iterator[Bed]:
    """Two Ray nodes, for one `kvrelay serve` after the other."""
    with two_nodes() as bed:
        bed.start_ray()
        yield bed


def serve(bed: Bed, config: Path, stderr: Path) -> subprocess.Popen[bytes]:
    """`kvrelay serve` at the first node, joining the test bed's Ray."""
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "serve", str(config)]
    with system.entered(bed.network.first), stderr.open("wb") as sink:
        return subprocess.Popen(
            command,
            env=bed.environment(),
            stdout=subprocess.DEVNULL,
            stderr=sink,
            cwd=config.parent,
        )


def wait_until_it_serves(process: subprocess.Popen[bytes], stderr: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while "Ctrl-C ends it" not in stderr.read_text():
        if process.poll() is not None or time.monotonic() > deadline_s:
            pytest.fail(f"kvrelay serve did not start:\n{stderr.read_text()}")
        time.sleep(0.5)


def titles(bed: Bed) -> dict[str, int]:
    """What the bed's processes call themselves, and one pid of each."""
    found = {}
    for process in marked_processes(bed.id):
        with_arguments = process.cmdline()
        if with_arguments:
            found[with_arguments[0]] = process.pid
    return found


def in_network(pid: int, node: Node) -> bool:
    """Whether a process is in a node's network."""
    there = (system.NETNS_DIR / node.namespace).stat().st_ino
    return Path(f"/proc/{pid}/ns/net").stat().st_ino == there


def ask(client: OpenAI, agent: str) -> Any:
    prompt = [int.from_bytes(agent.encode()) + 1000 + i for i in range(200)]
    extra = {"return_token_ids": True}
    return client.completions.create(
        model=agent, prompt=prompt, max_tokens=4, temperature=0, extra_body=extra
    )


def check_answers(bed: Bed) -> None:
    """Each agent answers at the first node's endpoint; what `a` says comes over the wire."""
    with (
        system.entered(bed.network.first),
        OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60) as client,
    ):
        for agent in ("a", "b"):
            before = bed.counters()[0]
            answer = ask(client, agent)
            assert len(answer.choices[0].token_ids) == 4
            assert answer.kv_transfer_params["kvrelay"]["agent"] == agent
            received = bed.counters()[0].rx_bytes - before.rx_bytes
            assert agent == "b" or received > 0


def check_placement(bed: Bed) -> None:
    """`a` is at the second node with a store of its own, the rest at the first."""
    first, second = bed.network.nodes
    running = titles(bed)
    for title, node in (
        ("ray::ServeReplica:kvrelay:agent:a", second),
        ("ray::ServeReplica:kvrelay:agent:b", first),
        ("ray::ServeReplica:kvrelay:ingress", first),
    ):
        (pid,) = [pid for name, pid in running.items() if name.startswith(title)]
        assert in_network(pid, node), title
    stores = [p for p in marked_processes(bed.id) if p.cmdline()[:1] == ["ray::KVStore"]]
    assert {in_network(store.pid, second) for store in stores} == {False, True}


def check_doctor(bed: Bed) -> None:
    """Each node reads from the other by both transports, over the wire, and finds nothing wrong."""
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "doctor", "--json"]
    with system.entered(bed.network.first):
        done = subprocess.run(command, env=bed.environment(), capture_output=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    links = json.loads(done.stdout)["links"]
    assert len({(link["reader"], link["transport"]) for link in links}) == len(links) == 4
    for link in links:
        assert "tcp" in link["path"] and link["gb_per_s"] > 0 and not link["failure"], link


def test_a_node_that_is_not_there_is_one_line(bed: Bed, tmp_path: Path) -> None:
    config, stderr = tmp_path / "config.yaml", tmp_path / "stderr"
    agents = [{"name": "a", "model": "demo", "num_cpus": 0.5, "node": "elsewhere"}]
    config.write_text(yaml.safe_dump({**CONFIG, "agents": agents}))
    process = serve(bed, config, stderr)
    assert process.wait(120) == 1
    text = stderr.read_text()
    assert "agents[0].node 'elsewhere': no Ray node carries this label" in text
    assert "there are node-1, node-2" in text
    assert "Traceback" not in text


def test_agents_on_two_nodes(bed: Bed, tmp_path: Path) -> None:
    config, stderr = tmp_path / "config.yaml", tmp_path / "stderr"
    config.write_text(yaml.safe_dump(CONFIG))
    process = serve(bed, config, stderr)
    try:
        wait_until_it_serves(process, stderr)
        check_placement(bed)
        check_answers(bed)
        check_doctor(bed)
        for rate, bits_per_s in (("200mbit", 200e6), ("100mbit", 100e6)):
            bed.set_link(parse_link(rate))
            goodput = bed.goodput(repeats=2).median_bits_per_s
            assert 0.7 * bits_per_s < goodput < bits_per_s
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(120)
    assert status == 0
    # The Ray that was joined goes on, without anything of ours.
    left = " ".join(titles(bed))
    assert "raylet" in left
    for ours in ("ServeReplica", "ServeController", "ProxyActor", "KVStore", "VLLM"):
        assert ours not in left
    assert load_sessions() == []
