"""Carries out `kvrelay bench miss`: restarts, progress, report."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench import engines, hit, itl, miss, miss_rows
from kvrelay.bench.client import BenchClient
from kvrelay.bench.errors import BenchError
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.bench.roles import CONNECTOR, ROLES, cast, share
from kvrelay.bench.settle import StoreWatch
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model

# The policy that does most at a look-up; nothing is found there, so no policy relays.
POLICY = "cost"
METHOD = """\
TTFT in seconds of never-seen prompts, three engines asked in random order within each repeat and
started anew with their parts rotated. Ratios to `plain` with 95 % intervals; `control` has no
connector either, so its ratio shows what is not the connector's. Engines differ more from start
to start than within one; from four starts on there is an interval with that in it, of any start."""
NOT_COVERED = """\
--smoke: one start, few and short prompts. It shows that the parts work, but says nothing about
the connector's cost: intervals are wide, and the engines' places are not rotated."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    lengths: tuple[int, ...]
    repeats: int
    restarts: int
    alternations: int
    idle_s: float
    json_file: Path | None
    samples_file: Path | None
    model: str
    seed: int
    quiet_wait_s: float
    smoke: bool
    gate: bool


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        KvrelayError: it cannot run, its figures would be worth nothing, or the gate fails.
    """
    hit.check_lengths(options.lengths)
    meta = new_meta(
        options.model, options.seed, engine_kwargs=engines.ENGINE, overhead=[], policy=POLICY
    )
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, miss_rows.summarize)
    rng = random.Random(options.seed)
    with ExitStack() as stack:
        stack.enter_context(signals_as_exit())
        stack.enter_context(kept(report, options.json_file, options.samples_file))
        source = ensure_model(options.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            prompts = PromptSource.load(source, options.seed)
        for restart in range(options.restarts):
            _one_start(options, restart, prompts, report, rng)
        if options.alternations:
            _itl_start(options, prompts, report, rng)
    _show(report, options)
    if options.gate:
        _check_gate(meta["overhead"])


def _one_start(
    options: Options, restart: int, prompts: PromptSource, report: Report, rng: random.Random
) -> None:
    roles = cast(restart)
    repeats = share(options.repeats, options.restarts, restart)
    make = {CONNECTOR: engines.relaying}
    agents = [make.get(role, engines.plain)(name) for name, role in roles.agents.items()]
    with _cluster(options, agents) as (session, client, store):
        gate = QuietGate(session.id, options.quiet_wait_s)
        bench = miss.Bench(session.id, roles, restart, client, store, prompts, gate, report.samples)
        with err.status("warming up"):
            bench.warm_up(options.lengths)
        if options.idle_s:
            with err.status("idling"):
                bench.measure_idle(options.idle_s)
        total = repeats * len(ROLES) * sum(map(hit.prefill_estimate_s, options.lengths))
        title = f"start {restart + 1} of {options.restarts}"
        with progress_bar(title, total) as advance:
            overhead = bench.measure(options.lengths, repeats, rng, advance)
        report.meta["overhead"].append({"restart": restart, **overhead.to_dict()})
        report.meta.setdefault("quiet", []).append({"restart": restart, **gate.summary()})


def _itl_start(options: Options, prompts: PromptSource, report: Report, rng: random.Random) -> None:
    agents = [engines.relaying("a"), engines.relaying("b")]
    with _cluster(options, agents) as (session, client, store):
        bench = itl.Bench(session.url, client, store, prompts, report.samples)
        with err.status("warming up"):
            for agent in ("a", "b"):
                client.first_token(agent, prompts.take(itl.PROMPT_TOKENS).shared)
        total = options.alternations * bench.estimate_s()
        with progress_bar("ITL while saving", total) as advance:
            bench.run(options.alternations, rng, advance)


@contextmanager
def _cluster(
    options: Options, agents: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Any, BenchClient, StoreWatch]]:
    config = engines.cluster(options.model, agents, {"policy": POLICY})
    with (
        engines.started(config) as session,
        closing(BenchClient(session.url)) as client,
        closing(StoreWatch.of_this_node()) as store,
    ):
        yield session, client, store


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    ttft = [row for row in rows if row["kind"] == "ttft"]
    show("never-seen prompts", miss_rows.COLUMNS, ttft)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    lines = [
        f"start {each['restart'] + 1}: hooks and copy threads {each['cpu_share_ratio']:.2%} of "
        f"TTFT, 99 % of steps within {1000 * each['p99_step_s']:.2f} ms, "
        f"{each['saved_blocks']} blocks saved, {each['dropped_blocks']} dropped"
        for each in report.meta["overhead"]
    ]
    for row in rows:
        if row["kind"] == "itl":
            ratio = row["itl_ratio"]
            lines.append(
                f"ITL beside a prompt being saved / not saved: {ratio['estimate']:.3f} "
                f"({ratio['low']:.3f} to {ratio['high']:.3f}, {row['alternations']} alternations)"
            )
        if row["kind"] == "idle":
            lines.append(
                "idle cores with the connector {connector_cores[median]:.3f}, without "
                "{plain_cores[median]:.3f} and {control_cores[median]:.3f}".format_map(row)
            )
    for line in lines:
        out.print(line, highlight=False, soft_wrap=True)
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)


def _check_gate(overhead: list[dict[str, Any]]) -> None:
    failed = [each for each in overhead if not each["passes"]]
    if failed:
        worst = max(failed, key=lambda each: each["cpu_share_ratio"])
        raise BenchError(
            f"--gate: hooks and copy threads take {worst['cpu_share_ratio']:.2%} of TTFT (at most "
            f"1 %), p99 of a step {1000 * worst['p99_step_s']:.2f} ms (at most 2)"
        )
