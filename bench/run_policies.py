"""Carries out `kvrelay bench policies`: test bed, progress, raw data, report with its aims."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from kvrelay.bench import (
    engines,
    policies,
    policies_plan,
    policies_predictions,
    policies_rows,
    policies_tail,
)
from kvrelay.bench.alike import cosine_of_tokens
from kvrelay.bench.answers import AnswerClient
from kvrelay.bench.errors import BenchError
from kvrelay.bench.places import joined_bed, labels_of, places, set_way
from kvrelay.bench.policies_aims import Aim, aims
from kvrelay.bench.policies_live import Live
from kvrelay.bench.policies_rows import COST, IDLE, ORACLE, TAIL, Cell, cell_of, wanted
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.raw import SAME_ENGINE, RawFile
from kvrelay.bench.report import Report, Row, kept, new_meta, show
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.link import Link, parse_link
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.embedding import PACKAGED, Encoder, packaged_encoder
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.memory import available_bytes

METHOD = """\
Seconds to an answer of one token. Idle: each request was measured recomputed and with all that
matches relayed, and every policy is given the outcome of the arm that it chooses. Busy: requests
come at random, at 0.7 of what B can recompute; partial: half of the prefix is on B's node. There a
pair is a block of requests for each arm, and cost decided itself. Regret: mean over that of the
better arm of the cell as its other pairs show it, less 1. per_link_constant: the best threshold per
link in hindsight. owner_affinity asks the engine that has the prefix, an arm that the others do
not have."""
NOT_COVERED = """\
--smoke: 8 cells of short prompts, one pair each. No intervals; the oracle and policies that learn
have seen what they are scored on, and cost has too few relays of a link to learn from; nothing is
said of long prompts, other links, busy machines, or how figures vary."""
SMOKE_QUIET_WAIT_S = 1.0
# A relay is to be measured however slow the wire is, not given up because it was predicted on
# another link.
_DEADLINE_S, _PATIENCE = 300.0, 100.0
_CAPACITY_BYTES = 2 * 2**30
# What has to be the same for pairs of several runs to belong together.
_SAME = (*SAME_ENGINE, "way", "relay", "cosine")
_SIMILARITY = "similarity:"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for.

    Attributes:
        least, most: pairs of a cell, and of one that is not resolved by then.
    """

    policies: tuple[str, ...]
    cells: tuple[Cell, ...]
    least: int
    most: int
    json_file: Path | None
    resume: bool
    model: str
    seed: int
    quiet_wait_s: float
    smoke: bool


def main(options: Options) -> None:
    """Run the benchmark and leave its report; the raw data lies beside it as JSONL.

    Raises:
        KvrelayError: it cannot run, or its figures would be worth nothing.
    """
    if reason := system.unavailable():
        raise BenchError(reason)
    encoder, no_cosine = packaged_encoder()
    scored = options.policies
    if no_cosine is not None:
        scored = tuple(name for name in scored if not name.startswith(_SIMILARITY))
    meta = new_meta(
        options.model,
        options.seed,
        engine_kwargs=engines.ENGINE,
        way="/".join(policies.WAY),
        relay=_relay(),
        cosine=PACKAGED if no_cosine is None else None,
    )
    if len(scored) < len(options.policies):
        meta["left_out"] = f"not in it: similarity, since {no_cosine}"
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    raw_file = options.json_file.with_suffix(".jsonl") if options.json_file else None
    raw = RawFile(raw_file, options.resume, {name: meta[name] for name in _SAME})
    meta["resumed_pairs"] = len(raw.samples)
    report = Report(meta, partial(summarize, policies=scored), raw.samples)
    with signals_as_exit(), kept(report, options.json_file, None):
        try:
            if _missing(options, raw):
                _say(options, raw)
                _measure(options, raw, meta, encoder)
        finally:
            meta["aims"] = [asdict(aim) for aim in aims(report.rows(), options.smoke)]
    _show(report, options)


def summarize(samples: Sequence[Row], policies: Sequence[str]) -> list[Row]:
    """All rows: of policies, of tails, of predictions."""
    return [
        *policies_rows.summarize(samples, policies),
        *policies_tail.summarize(samples),
        *policies_predictions.summarize(samples),
    ]


def _relay() -> Row:
    """Settings of the relay: the engine's policy is the one that decides live."""
    return {
        "policy": "cost",
        "load_deadline_s": _DEADLINE_S,
        "load_patience": _PATIENCE,
        "capacity_bytes": _CAPACITY_BYTES,
    }


def _missing(options: Options, raw: RawFile) -> bool:
    stages = policies_plan.stages(options.cells, options.least)
    first = any(wanted(raw.samples, s.cells, s.rounds, s.rounds) for s in stages)
    return first or bool(wanted(raw.samples, _graded(options), options.least, options.most))


def _graded(options: Options) -> list[Cell]:
    """Cells that get more pairs until their arms are known."""
    return [cell for cell in options.cells if cell.load != TAIL]


def _say(options: Options, raw: RawFile, slowness: float = 1.0) -> None:
    """What is to be measured, in order, and how long that takes."""
    total_s = 0.0
    for stage in policies_plan.stages(options.cells, options.least):
        if missing := wanted(raw.samples, stage.cells, stage.rounds, stage.rounds):
            err.print(stage.line(missing, slowness), style="dim", highlight=False)
            total_s += policies_plan.total_estimate_s(missing, slowness)
    more = "" if options.most == options.least else ", and what cells take that need more pairs"
    err.print(f"all of it: about {policies_plan.duration(total_s)}{more}", highlight=False)


def _measure(options: Options, raw: RawFile, meta: Row, encoder: Encoder | None) -> None:
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
        token = secrets.token_hex(16)
        digest = hashlib.sha256(token.encode()).hexdigest()
        config = engines.cluster(options.model, agents, _relay(), here, digest)
        preflight.check_memory(config, available_bytes() - config.relay.capacity_bytes)
        session = stack.enter_context(engines.started(config))
        client = stack.enter_context(closing(AnswerClient(session.url, token)))
        near, far, wire = places(labels, bed)
        if far is None or wire is None:
            raise BenchError("a link needs two nodes")
        set_way(*policies.WAY)
        gate = QuietGate(session.id, options.quiet_wait_s)
        name = f"policies-{len(raw.samples)}"
        cosine = cosine_of_tokens(source, encoder)
        bench = policies.Bench(client, near, far, wire, prompts, gate, name, cosine=cosine)
        rng = random.Random(options.seed + len(raw.samples))
        with err.status("warming up"):
            bench.warm_up(options.cells, rng)
        gate.forget()
        _say(options, raw, bench.slowness)
        try:
            _Run(options, raw, bench, rng).everything()
        finally:
            meta |= gate.summary()


@dataclass(frozen=True, slots=True)
class _Run:
    """Measuring, on a cluster that is warm."""

    options: Options
    raw: RawFile
    bench: policies.Bench
    rng: random.Random

    def everything(self) -> None:
        """What every cell needs, stage by stage; then more where that did not suffice."""
        samples = self.raw.samples
        for stage in policies_plan.stages(self.options.cells, self.options.least):
            for rounds in policies_plan.passes(stage):
                self._add(wanted(samples, stage.cells, rounds, rounds), stage.cells[0].load)
        graded, least = _graded(self.options), self.options.least
        while missing := wanted(samples, graded, least, self.options.most):
            self._add(dict.fromkeys(missing, 1), "resolving")

    def _add(self, missing: dict[Cell, int], title: str) -> None:
        """So many rounds more of each cell."""
        if not missing:
            return
        slowness = self.bench.slowness
        total_s = policies_plan.total_estimate_s(missing, slowness)
        with progress_bar(title, total_s) as advance:
            for cell in policies_plan.visits(missing, self.rng):
                number = policies.num_measured(self.raw.samples, cell)
                measure = self.bench.pair if cell.load == IDLE else Live(self.bench).round
                self.raw.keep(measure(cell, self.rng) | {"pair": number})
                advance(policies_plan.estimate_s(cell, slowness))


def _links(cells: Sequence[Cell]) -> list[Link]:
    names = dict.fromkeys(cell.link for cell in cells)
    return [parse_link(name) for name in names if name != SAME_NODE]


def _cells(rows: Sequence[Row]) -> list[Row]:
    """One row per cell: the oracle's, and with it that of `cost`."""
    by_policy: dict[str, dict[Cell, Row]] = {ORACLE: {}, COST: {}}
    for row in rows:
        if "resolved" in row and row["policy"] in by_policy:
            by_policy[row["policy"]][cell_of(row)] = row
    costs = by_policy[COST]
    return [{**row, COST: costs.get(cell)} for cell, row in by_policy[ORACLE].items()]


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    grid = [row for row in rows if "cells" in row]
    cells = _cells(rows)
    tails = [row for row in rows if "p95_s" in row]
    predictions = [row for row in rows if "median_error" in row]
    if grid:
        show("each cell, and its better arm", policies_rows.CELLS_TABLE, cells)
        show("policies over all cells", policies_rows.GRID_TABLE, grid)
    if tails:
        show("tails under load", policies_tail.TAIL_TABLE, tails)
    if predictions:
        table = policies_predictions.PREDICTIONS_TABLE
        show("what was predicted, and what came of it", table, predictions)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    for aim in (Aim(**each) for each in report.meta["aims"]):
        out.print(aim.line(), style="" if aim.holds else "yellow", highlight=False, soft_wrap=True)
    if left_out := report.meta.get("left_out"):
        out.print(left_out, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
