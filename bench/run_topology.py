"""Carries out `kvrelay bench topology`: test bed or real cluster, progress, report."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench import engines, hit, topology, topology_rows
from kvrelay.bench.answers import AnswerClient
from kvrelay.bench.errors import BenchError
from kvrelay.bench.places import joined_bed, labels_of, places, set_way
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Report, Row, kept, new_meta, show
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.link import Link
from kvrelay.bench.topology import FAR, NEAR, PLAIN, B
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.config import ClusterConfig
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.memory import available_bytes

METHOD = """\
Seconds to an answer of one token at the HTTP endpoint: median, and ± half the range. B's prompt
is A's plus 32 other tokens; arms run in random order over all links. transfer: as the relay's own
record says; wire: what a plain TCP stream would take for the KV over that link."""
OF_THE_BED = "Both nodes share this machine's cores."
OF_A_CLUSTER = """\
A cluster as it was found: no interface has counted bytes and nobody knows what else ran there; path
is what the relay's own record attests."""
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
    # Labels of two nodes of the Ray that RAY_ADDRESS names: B's and the other one's.
    cluster: tuple[str, str] | None = None


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        KvrelayError: it cannot run, or its figures would be worth nothing.
    """
    hit.check_lengths(options.lengths)
    needs_bed = options.cluster is None and any(link is not None for link in options.links)
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
        bed = stack.enter_context(joined_bed(options.links)) if needs_bed else None
        labels = options.cluster
        if bed is not None:
            labels = labels_of(bed)
        config = _config(options, labels)
        if bed is not None:
            preflight.check_memory(config, available_bytes() - config.relay.capacity_bytes)
        own_machine = options.cluster is None
        session = stack.enter_context(engines.started(config, own_machine))
        client = stack.enter_context(closing(AnswerClient(session.url)))
        here, there, wire = places(labels, bed)
        gate = QuietGate(session.id if own_machine else None, options.quiet_wait_s)
        bench = topology.Bench(
            client=client,
            here=here,
            there=there,
            wire=wire,
            links=options.links,
            ways=options.ways,
            set_way=set_way,
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


def _config(options: Options, labels: tuple[str, str] | None) -> ClusterConfig:
    """B, `plain`, and A on the same node or the other one, or both."""
    here, there = labels or (None, None)
    agents = [engines.relaying(B, here), engines.plain(PLAIN, here)]
    if None in options.links:
        agents.append(engines.relaying(NEAR, here))
    if there is not None:
        agents.append(engines.relaying(FAR, there))
    if options.cluster is not None:  # its nodes need not have the cores of this machine
        agents = [{**agent, "cpu_binding": None} for agent in agents]
    relay = {"load_deadline_s": _DEADLINE_S, "capacity_bytes": _CAPACITY_BYTES}
    return engines.cluster(options.model, agents, relay, here)


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    show("B's answer, by where A is", topology_rows.TIMES_TABLE, rows)
    show("what the relay moved", topology_rows.TRANSFERS_TABLE, rows)
    remark = OF_THE_BED if options.cluster is None else OF_A_CLUSTER
    out.print(f"{METHOD} {remark}", style="dim", highlight=False, soft_wrap=True)
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
