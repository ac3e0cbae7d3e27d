"""What `kvrelay doctor` knows: what may keep relay from being exact, fast, or there at all.

Pure: facts and measurements in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrelay.relay.probe import Probed

Facts = Mapping[str, Any]
MIB = 1 << 20
# Ray's object store, which lies in /dev/shm, falls back to the disk below what it was given.
_LEAST_SHM_FREE = 256 * MIB
_TCP = "tcp"
_SHARED_MEMORY = ("sysv", "posix", "cma", "xpmem", "knem", "shm")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be.

    Attributes:
        node: where; empty if it concerns the cluster.
        problem: what.
        fix: what to do about it.
    """

    node: str
    problem: str
    fix: str


def diagnose(facts: Mapping[str, Facts], probes: Sequence[Probed]) -> list[Finding]:
    """What the facts of the nodes (by node id) and the measured links say."""
    if not facts:
        fix = "start agents with relay: kvrelay serve CONFIG"
        return [Finding("", "no store runs in this cluster", fix)]
    findings = [finding for node, each in facts.items() for finding in _of_node(node, each)]
    for each in probes:
        findings += _of_link(each, facts)
    measured = {(each.source, each.reader) for each in probes}
    for source in facts:
        for reader in facts:
            if source != reader and (source, reader) not in measured:
                findings.append(
                    Finding(
                        reader,
                        f"no transport reads from node {source[:8]}",
                        "see the store's log on both nodes for why a transport was left out",
                    )
                )
    return findings


def _of_node(node: str, facts: Facts) -> list[Finding]:
    findings = []
    if facts["shm_free_bytes"] < _LEAST_SHM_FREE:
        findings.append(
            Finding(
                node,
                f"/dev/shm has {facts['shm_free_bytes'] // MIB} MiB free",
                "mount a larger one: an emptyDir with medium: Memory, or docker --shm-size=2g",
            )
        )
    if facts["rdma"] and 0 <= facts["memlock_bytes"] < facts["capacity_bytes"]:
        findings.append(
            Finding(
                node,
                f"{facts['memlock_bytes'] // MIB} MiB may be pinned, the arena has "
                f"{facts['capacity_bytes'] // MIB}: RDMA cannot read it",
                "raise memlock: ulimit -l unlimited, or the capability IPC_LOCK",
            )
        )
    return findings


def _of_link(probed: Probed, facts: Mapping[str, Facts]) -> list[Finding]:
    link = f"reading from node {probed.source[:8]} by {probed.transport}"
    if probed.failure:
        fix = "check that the nodes reach each other on all ports, and UCX_NET_DEVICES"
        return [Finding(probed.reader, f"{link} fails: {probed.failure}", fix)]
    source, reader = facts[probed.source], facts[probed.reader]
    words = probed.path.lower()
    findings = []
    if probed.transport == "nixl" and source["rdma"] and reader["rdma"] and _TCP in words:
        findings.append(
            Finding(
                probed.reader,
                f"{link} goes over TCP although both nodes have RDMA devices ({reader['rdma']})",
                "check UCX_TLS and UCX_NET_DEVICES, memlock, and that the pod has the device",
            )
        )
    if source["host"] == reader["host"] and any(each in words for each in _SHARED_MEMORY):
        findings.append(
            Finding(
                probed.reader,
                f"{link} goes through this machine's memory ({probed.path}), not over the wire",
                "right for two nodes on one machine; to measure the wire set UCX_TLS=tcp",
            )
        )
    if source["host"] == reader["host"] and source["pid_namespace"] != reader["pid_namespace"]:
        findings.append(
            Finding(
                probed.reader,
                f"{link}: both are on {reader['host']}, but not in one PID namespace, so that "
                "UCX cannot copy from process to process",
                "set shareProcessNamespace: true, or hostPID: true, where the pods may share it",
            )
        )
    if probed.transport == "nixl" and probed.path == "unknown":
        findings.append(
            Finding(
                probed.reader,
                f"{link} takes a path that could not be attested",
                "do not unset UCX_PROTO_INFO or UCX_LOG_FILE where the store starts",
            )
        )
    return findings
