"""`kvrelay doctor`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.doctor import Finding, diagnose
from kvrelay.cluster.errors import LifecycleError
from kvrelay.cluster.joined import use_token
from kvrelay.cluster.session import load_sessions
from kvrelay.relay.probe import Probed

_PROBE_TIMEOUT_S = 300.0


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Measure every link between nodes, and check what relay needs on each.

    Reads a few MiB between each pair of stores by each transport, and says which path the
    bytes really took: RDMA, shared memory or TCP. Looks at the cluster that kvrelay has
    started here, or at the Ray that RAY_ADDRESS names. Exit status 1 if something is wrong.
    """
    with _connected():
        facts, probes = _look()
    findings = diagnose(facts, probes)
    if as_json:
        out.print_json(
            json.dumps(
                {
                    "nodes": facts,
                    "links": [asdict(each) for each in probes],
                    "findings": [asdict(each) for each in findings],
                }
            )
        )
    else:
        _show(facts, probes, findings)
    raise typer.Exit(1 if findings else 0)


@contextmanager
def _connected() -> Iterator[None]:
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if not address:
        ours = [session for session in load_sessions() if session.ready]
        if not ours:
            raise LifecycleError(
                "nothing is running here; start a cluster with kvrelay serve, or set RAY_ADDRESS"
            )
        address = ours[-1].ray_address
        if ours[-1].ray_token:
            os.environ["RAY_AUTH_TOKEN"] = ours[-1].ray_token
    use_token()
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LifecycleError(f"cannot join the Ray at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _look() -> tuple[dict[str, dict[str, Any]], list[Probed]]:
    import ray

    from kvrelay.relay.actor import stores

    handles = stores()
    facts: dict[str, dict[str, Any]] = {}
    probes: list[Probed] = []
    with err.status("looking at nodes") as status:
        for handle in handles:
            looked = ray.get([handle.actor.health.remote(), handle.actor.stats.remote()])
            facts[handle.node_id] = {**looked[1], **looked[0]}
        for reader in handles:
            for source in handles:
                if source.node_id != reader.node_id:
                    status.update(f"reading {source.node_id[:8]} from {reader.node_id[:8]}")
                    measured = reader.actor.probe.remote(source.node_id)
                    probes += ray.get(measured, timeout=_PROBE_TIMEOUT_S)
    return facts, probes


def _ahead(facts: dict[str, Any]) -> str:
    """What has become of blocks that a node has fetched ahead."""
    came = facts.get("ahead_blocks", 0)
    if not came:
        return "-"
    used, wasted = facts.get("ahead_used_blocks", 0), facts.get("ahead_wasted_blocks", 0)
    return f"{came:,}: {used:,} used, {wasted:,} wasted"


def _show(facts: dict[str, dict[str, Any]], probes: list[Probed], findings: list[Finding]) -> None:
    nodes = Table(
        *("node", "host", "blocks", "arena", "encoded", "ahead", "/dev/shm free", "RDMA"),
        title="nodes",
    )
    for node, each in facts.items():
        arena, encoded = (
            f"{each[f'{part}used_bytes'] / 2**20:,.0f} of "
            f"{each[f'{part}capacity_bytes'] / 2**20:,.0f} MiB"
            for part in ("", "encoded_")
        )
        free = f"{each['shm_free_bytes'] / 2**20:,.0f} MiB"
        rdma = each["rdma"] or "none"
        blocks = f"{each['blocks'] + each['encoded_blocks']:,}"
        place = (node[:8], each["host"])
        nodes.add_row(*place, blocks, arena, encoded, _ahead(each), free, rdma)
    out.print(nodes)
    if probes:
        links = Table(
            "from", "to", "transport", "path", "latency", "GB/s", title="links, as measured now"
        )
        for link in probes:
            figures = (f"{link.latency_s * 1e3:.2f} ms", f"{link.gb_per_s:.2f}")
            links.add_row(
                link.source[:8],
                link.reader[:8],
                link.transport,
                link.path or "-",
                *(("failed", "-") if link.failure else figures),
            )
        out.print(links)
    elif len(facts) == 1:
        out.print("one node: nothing goes over a wire")
    for finding in findings:
        where = f"node {finding.node[:8]}: " if finding.node else ""
        out.print(f"[yellow]![/] {where}{finding.problem}\n  {finding.fix}", highlight=False)
    if not findings:
        out.print("[bold green]ok[/]")
