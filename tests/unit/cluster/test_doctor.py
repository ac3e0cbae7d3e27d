"""What `kvrelay doctor` makes of facts and measurements."""

from dataclasses import replace
from typing import Any

import pytest

from kvrelay.cluster.doctor import diagnose
from kvrelay.relay.health import look
from kvrelay.relay.probe import Probed

GIB = 1 << 30
FACTS: dict[str, Any] = {
    "host": "m1",
    "shm_bytes": GIB,
    "shm_free_bytes": GIB,
    "memory_bytes": 8 * GIB,
    "memlock_bytes": -1,
    "rdma": "",
    "pid_namespace": "pid:[1]",
    "capacity_bytes": 2 * GIB,
}
NODES = {"n1": FACTS, "n2": {**FACTS, "host": "m2", "pid_namespace": "pid:[2]"}}
LINK = Probed("n1", "n2", "nixl", "tcp/eth0", 1e-3, 0.5)
BACK = replace(LINK, source="n2", reader="n1")


def problems(nodes: dict[str, Any], *probes: Probed) -> str:
    findings = diagnose(nodes, probes)
    assert all(finding.fix for finding in findings)
    return "; ".join(finding.problem for finding in findings)


def test_a_sound_cluster_has_no_findings() -> None:
    assert problems(NODES, LINK, BACK) == ""
    assert problems({"n1": FACTS}) == ""


def test_no_store_at_all() -> None:
    assert problems({}) == "no store runs in this cluster"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shm_free_bytes": 64 << 20}, "/dev/shm has 64 MiB free"),
        ({"rdma": "mlx5_0", "memlock_bytes": 64 << 10}, "0 MiB may be pinned"),
    ],
)
def test_a_node(changes: dict[str, Any], expected: str) -> None:
    assert expected in problems({"n1": {**FACTS, **changes}})


def test_rdma_that_silently_became_tcp() -> None:
    nodes = {name: {**facts, "rdma": "mlx5_0"} for name, facts in NODES.items()}
    assert "goes over TCP although both nodes have RDMA" in problems(nodes, LINK, BACK)
    fast = [replace(each, path="rc_mlx5/mlx5_0:1") for each in (LINK, BACK)]
    assert problems(nodes, *fast) == ""


def test_a_wire_that_was_bypassed() -> None:
    nodes = {"n1": FACTS, "n2": FACTS}
    bypassed = [replace(each, path="sysv/memory") for each in (LINK, BACK)]
    assert "not over the wire" in problems(nodes, *bypassed)


def test_one_machine_but_two_pid_namespaces() -> None:
    nodes = {"n1": FACTS, "n2": {**FACTS, "pid_namespace": "pid:[9]"}}
    assert "not in one PID namespace" in problems(nodes, LINK, BACK)


def test_links_that_cannot_be_read_or_attested() -> None:
    failed = replace(LINK, failure="timed out")
    assert "fails: timed out" in problems(NODES, failed, BACK)
    assert "no transport reads from node n2" in problems(NODES, LINK)
    assert "could not be attested" in problems(NODES, replace(LINK, path="unknown"), BACK)


def test_this_machine_can_be_looked_at() -> None:
    facts = look()
    assert facts["memory_bytes"] > 0
    assert str(facts["pid_namespace"]).startswith("pid:[")
