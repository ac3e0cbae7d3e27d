"""Carries out `kvrelay bench policies`: test bed, progress, raw data, report with its aims."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from kvrelay.bench import engines, policies, policies_rows
from kvrelay.bench.answers import AnswerClient
from kvrelay.bench.errors import BenchError
from kvrelay.bench.places import joined_bed, labels_of, places, set_way
from kvrelay.bench.policies_aims import Aim, aims
from kvrelay.bench.policies_rows import Cell, wanted
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.raw import RawFile
from kvrelay.bench.report import Report, Row, kept, new_meta, show
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.link import Link, parse_link
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.memory import available_bytes

METHOD = """\
Seconds to an answer of one token, idle machine. Each request was measured recomputed and with all
that matches relayed, and every policy is given the outcome of the arm that it chooses. Regret: mean
over that of the better arm of the cell as its other pairs show it, less 1. per_link_constant: the
best threshold per link in hindsight. owner_affinity asks the engine that has the prefix, an arm
that the others do not have."""
LEFT_OUT = """\
Not measured: busy machines, and plans that relay a part; both change what other requests meet and
cannot be scored by replay."""
NOT_COVERED = """\
--smoke: 8 cells of short prompts, one pair each. No intervals; the oracle and policies that learn
have seen what they are scored on; nothing is said of long prompts, other links, or how figures
vary."""
SMOKE_QUIET_WAIT_S = 1.0
# A relay is to be measured however slow the wire is, not given up.
_DEADLINE_S = 300.0
_CAPACITY_BYTES = 2 * 2**30
# What has to be the same for pairs of several runs to belong together.
_SAME = ("model", "cpu", "cores", "versions", "engine_kwargs", "way")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for.

    Attributes:
        least, most: pairs of a cell, and of one that is not resolved by then.
    """

    policies: tuple[str, ...]
    least: int
    most: int
    json_file: Path | None
    resume: bool
    model: str
    seed: int
    quiet_wait_s: float
    smoke: bool

    @property
    def cells(self) -> list[Cell]:
        """What is measured."""
        return policies.smoke_grid() if self.smoke else policies.full_grid()


def main(options: Options) -> None:
    """Run the benchmark and leave its report; the raw data lies beside it as JSONL.

    Raises:
        KvrelayError: it cannot run, or its figures would be worth nothing.
    """
    if reason := system.unavailable():
        raise BenchError(reason)
    meta = new_meta(
        options.model,
        options.seed,
        engine_kwargs=engines.ENGINE,
        way="/".join(policies.WAY),
        left_out=" ".join(LEFT_OUT.split()),
    )
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    raw_file = options.json_file.with_suffix(".jsonl") if options.json_file else None
    raw = RawFile(raw_file, options.resume, {name: meta[name] for name in _SAME})
    meta["resumed_pairs"] = len(raw.samples)
    summarize = partial(policies_rows.summarize, policies=options.policies)
    report = Report(meta, summarize, raw.samples)
    with signals_as_exit(), kept(report, options.json_file, None):
        try:
            if wanted(raw.samples, options.cells, options.least, options.most):
                _measure(options, raw, meta)
        finally:
            meta["aims"] = [asdict(aim) for aim in aims(report.rows(), options.smoke)]
    _show(report, options)


def _measure(options: Options, raw: RawFile, meta: Row) -> None:
    """Add the pairs that are missing."""
    with ExitStack() as stack:
        source = ensure_model(options.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            # Each time other prompts: a run that is taken up again does not repeat the first ones.
            prompts = PromptSource.load(source, options.seed + len(raw.samples))
        bed = stack.enter_context(joined_bed(_links(options.cells)))
        labels = labels_of(bed)
        here, there = labels
        agents = [engines.relaying(B, here), engines.relaying(NEAR, here)]
        agents.append(engines.relaying(FAR, there))
        relay = {"load_deadline_s": _DEADLINE_S, "capacity_bytes": _CAPACITY_BYTES}
        config = engines.cluster(options.model, agents, relay, here)
        preflight.check_memory(config, available_bytes() - config.relay.capacity_bytes)
        session = stack.enter_context(engines.started(config))
        client = stack.enter_context(closing(AnswerClient(session.url)))
        near, far, wire = places(labels, bed)
        if far is None or wire is None:
            raise BenchError("a link needs two nodes")
        set_way(*policies.WAY)
        gate = QuietGate(session.id, options.quiet_wait_s)
        name = f"policies-{len(raw.samples)}"
        bench = policies.Bench(client, near, far, wire, prompts, gate, raw, name)
        rng = random.Random(options.seed + len(raw.samples))
        with err.status("warming up"):
            bench.warm_up(options.cells, rng)
        gate.forget()
        try:
            # First what every cell needs, then more where that did not suffice.
            for title, most in (("measuring", options.least), ("resolving", options.most)):
                missing = wanted(raw.samples, options.cells, options.least, most)
                with progress_bar(title, policies.total_estimate_s(missing)) as advance:
                    bench.run(options.cells, options.least, most, rng, advance)
        finally:
            meta |= gate.summary()


def _links(cells: Sequence[Cell]) -> list[Link]:
    names = dict.fromkeys(cell.link for cell in cells)
    return [parse_link(name) for name in names if name != SAME_NODE]


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    grid = [row for row in rows if "cells" in row]
    cells = [row for row in rows if row["policy"] == policies_rows.ORACLE and "cells" not in row]
    show("each cell, and its better arm", policies_rows.CELLS_TABLE, cells)
    show("policies over all cells", policies_rows.GRID_TABLE, grid)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    for aim in (Aim(**each) for each in report.meta["aims"]):
        out.print(aim.line(), style="" if aim.holds else "yellow", highlight=False, soft_wrap=True)
    out.print(LEFT_OUT, style="dim", highlight=False, soft_wrap=True)
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
