"""Carries out `kvrelay bench topology`: test bed, cluster, progress, report."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench import engines, hit, topology, topology_rows
from kvrelay.bench.answers import AnswerClient
from kvrelay.bench.commands import progress_bar
from kvrelay.bench.errors import BenchError
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Report, Row, kept, new_meta, show
from kvrelay.bench.settle import StoreWatch
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.bed import Bed, two_nodes
from kvrelay.bench.testbed.link import UNSHAPED, Link
from kvrelay.bench.testbed.network import Node
from kvrelay.bench.topology import FAR, NEAR, PLAIN, B, Place
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.config import NODE_LABEL, ClusterConfig
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.memory import available_bytes

METHOD = """\
Seconds to an answer of one token at the HTTP endpoint: median, and ± half the range. B's prompt
is A's plus 32 other tokens; arms run in random order over all links. transfer: as the relay's own
record says; wire: what a plain TCP stream would take for the KV over that link. Both nodes share
this machine's cores."""
NOT_COVERED = """\
--smoke: one short length, one repeat. It shows that relays take the link that they are measured
for, but says nothing about speed, long prompts, or how figures vary."""
BRIDGE_TOO_BUSY = """\
The bridge of the links with a round-trip time took up to {cores:.2f} cores from the nodes: relays
over those links look slower than they are."""
MAX_BRIDGE_CORES = 0.15
# A relay is to be measured however slow the wire is, not given up.
_DEADLINE_S = 300.0
_CAPACITY_BYTES = 2**30
_ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    links: tuple[Link | None, ...]
    ways: tuple[tuple[str, str], ...]
    lengths: tuple[int, ...]
    repeats: int
    json_file: Path | None
    samples_file: Path | None
    model: str
    seed: int
    quiet_wait_s: float
    smoke: bool


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        KvrelayError: it cannot run, or its figures would be worth nothing.
    """
    hit.check_lengths(options.lengths)
    needs_bed = any(link is not None for link in options.links)
    if needs_bed and (reason := system.unavailable()):
        raise BenchError(f"{reason}; or measure --links {topology.SAME_NODE} alone")
    links = [topology.SAME_NODE if link is None else link.name for link in options.links]
    meta = new_meta(options.model, options.seed, engine_kwargs=engines.ENGINE, links=links)
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, topology_rows.summarize)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        ExitStack() as stack,
    ):
        source = ensure_model(options.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            prompts = PromptSource.load(source, options.seed)
        bed = stack.enter_context(_joined_bed(options)) if needs_bed else None
        config = _config(options, bed)
        if bed is not None:
            preflight.check_memory(config, available_bytes() - config.relay.capacity_bytes)
        session = stack.enter_context(engines.started(config))
        client = stack.enter_context(closing(AnswerClient(session.url)))
        here, there = _places(stack, bed)
        gate = QuietGate(session.id, options.quiet_wait_s)
        bench = topology.Bench(
            client=client,
            here=here,
            there=there,
            bed=bed,
            links=options.links,
            ways=options.ways,
            set_way=_set_way,
            prompts=prompts,
            gate=gate,
            samples=report.samples,
        )
        with err.status("warming up"):
            bench.warm_up()
        gate.forget()
        total = topology.total_estimate_s(
            options.lengths, options.repeats, options.links, len(options.ways)
        )
        try:
            with progress_bar("measuring", total) as advance:
                bench.run(options.lengths, options.repeats, random.Random(options.seed), advance)
        finally:
            meta |= gate.summary()
    _show(report, options)


@contextmanager
def _joined_bed(options: Options) -> Iterator[Bed]:
    """Two Ray nodes, and this thread at the first; the wire can be all that it will have to."""
    with two_nodes() as bed:
        for link in (*options.links, UNSHAPED):
            if link is not None:
                bed.set_link(link)
        with err.status("starting two Ray nodes"):
            bed.start_ray()
        with bed.joined():
            yield bed


def _config(options: Options, bed: Bed | None) -> ClusterConfig:
    """B, `plain`, and A on the same node or the other one, or both."""
    here = there = None
    if bed is not None:
        here, there = (node.label for node in bed.network.nodes)
    agents = [engines.relaying(B, here), engines.plain(PLAIN, here)]
    if None in options.links:
        agents.append(engines.relaying(NEAR, here))
    if there is not None:
        agents.append(engines.relaying(FAR, there))
    relay = {"load_deadline_s": _DEADLINE_S, "capacity_bytes": _CAPACITY_BYTES}
    return engines.cluster(options.model, agents, relay, here)


def _places(stack: ExitStack, bed: Bed | None) -> tuple[Place, Place | None]:
    """The stores of B's node and of the other one."""
    from kvrelay.relay.actor import stores

    handles = stores()
    if bed is None:
        if len(handles) != 1:
            raise BenchError(f"expected one KV store, found {len(handles)}")
        return _place(stack, handles[0], None), None
    labels = _labels()
    by_label = {labels.get(handle.node_id): handle for handle in handles}
    found = [by_label.get(node.label) for node in bed.network.nodes]
    if None in found:
        raise BenchError("a node has no KV store: its agents run without relay")
    first, second = (
        _place(stack, handle, node) for handle, node in zip(found, bed.network.nodes, strict=True)
    )
    return first, second


def _place(stack: ExitStack, handle: Any, node: Node | None) -> Place:
    import ray

    def blocks() -> tuple[int, int]:
        stats = ray.get(handle.actor.stats.remote(), timeout=_ASK_TIMEOUT_S)
        return stats["blocks"], stats["remote_blocks"]

    # The store's socket has an abstract name, which is known in its own network only.
    with system.entered(node) if node is not None else nullcontext():
        watch = stack.enter_context(closing(StoreWatch(handle.address)))
    return Place(watch, blocks)


def _set_way(transport: str, codec: str) -> None:
    """Have every store read in this way from now on."""
    import ray

    from kvrelay.relay.actor import stores

    ray.get([handle.actor.set_route.remote(transport, codec) for handle in stores()])


def _labels() -> dict[str, str | None]:
    """The label of every Ray node, by its id."""
    import ray

    return {node["NodeID"]: node["Labels"].get(NODE_LABEL) for node in ray.nodes()}


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    show("B's answer, by where A is", topology_rows.TIMES_TABLE, rows)
    show("what the relay moved", topology_rows.TRANSFERS_TABLE, rows)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    for row in {row["link"]: row for row in rows if "goodput_gbit_per_s" in row}.values():
        out.print(_of_the_wire(row), style="dim", highlight=False)
    worst = max((row["bridge_cores"]["max"] for row in rows if "bridge_cores" in row), default=0.0)
    if worst > MAX_BRIDGE_CORES:
        warning = BRIDGE_TOO_BUSY.format(cores=worst)
        out.print(warning, style="yellow", highlight=False, soft_wrap=True)
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)


def _of_the_wire(row: Row) -> str:
    """What was found of a link without relay, in a line."""
    text = f"{row['link']}: plain TCP {row['goodput_gbit_per_s']['median']:.3f} Gbit/s"
    if "rtt_s" in row:
        text += f", round trip {row['rtt_s']['median'] * 1000:.2f} ms"
    if "bridge_cores" in row:
        text += f"; the bridge took {row['bridge_cores']['median']:.3f} cores during relays"
    return text
