"""Carries out `kvrelay bench hit`: cluster, progress, report."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench import engines, hit, hit_rows
from kvrelay.bench.client import BenchClient
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.bench.settle import StoreWatch
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model

METHOD = """\
TTFT in seconds by a streaming OpenAI client at the HTTP endpoint: median, and ± half the range.
B's prompt is A's plus 32 other tokens; every arm has prompts of its own that begin like no other;
arms run in random order; engines have equal cores. Ratios are of medians."""
NOT_COVERED = """\
--smoke: short lengths, one repeat. It shows that relays, hits and misses reuse what they should,
but says nothing about speed, long prompts, a partial last block, or how figures vary."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    lengths: tuple[int, ...]
    repeats: int
    json_file: Path | None
    samples_file: Path | None
    peer: bool
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
    meta = new_meta(options.model, options.seed, engine_kwargs=engines.ENGINE)
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, hit_rows.summarize)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        ExitStack() as stack,
    ):
        source = ensure_model(options.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            prompts = PromptSource.load(source, options.seed)
        folder = stack.enter_context(engines.peer_folder()) if options.peer else None
        agents = [engines.relaying(hit.A), engines.relaying(hit.B), engines.plain(hit.PLAIN)]
        if folder is not None:
            agents.append(engines.peer(hit.PEER, folder))
        session = stack.enter_context(engines.started(engines.cluster(options.model, agents)))
        client = stack.enter_context(closing(BenchClient(session.url)))
        store = stack.enter_context(closing(StoreWatch.of_this_node()))
        gate = QuietGate(session.id, options.quiet_wait_s)
        bench = hit.Bench(client, store, prompts, gate, report.samples, folder)
        with err.status("warming up"):
            bench.warm_up()
        gate.forget()
        total = hit.total_estimate_s(options.lengths, options.repeats, options.peer)
        try:
            with progress_bar("measuring", total) as advance:
                bench.run(options.lengths, options.repeats, random.Random(options.seed), advance)
        finally:
            meta |= gate.summary()
    _show(report, options)


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    for title, columns in (
        ("B's TTFT: computed, relayed, at hand", hit_rows.TIMES_TABLE),
        ("what it costs", hit_rows.COSTS_TABLE),
    ):
        shown = {name: cell for name, cell in columns.items() if options.peer or "peer" not in name}
        show(title, shown, rows)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    waited_s, disturbed = report.meta["waited_s"], report.meta["requests_not_quiet"]
    out.print(
        f"Waited {waited_s:.0f} s for a quiet machine; it was not quiet before {disturbed} "
        "requests.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
