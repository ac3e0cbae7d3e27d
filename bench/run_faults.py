"""Carries out `kvrelay bench faults`: lab, progress, report, verdict."""

from __future__ import annotations

import random
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kvrelay.bench import faults, faults_lab, faults_rows
from kvrelay.bench.errors import BenchError, PromiseBroken
from kvrelay.bench.faults import Injection
from kvrelay.bench.faults_trial import ANSWER_TOKENS, PROMPT_TOKENS, Outcome, Trials
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.bench.testbed import system
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.lifecycle import signals_as_exit

SMOKE_INJECTIONS = 30
_MAX_MISSES = 5
METHOD = """\
Two nodes over a wire of {link}; engines of a small random model, driven without Serve. A computes
{prompt} tokens, B is asked for them and some more, and the fault strikes; as many were relayed the
same way just before, without a fault. Requests are all that were asked of replicas that live on,
until B relays from A again. Right tokens are those that B says when it computes everything itself.
Time lost: B's answer over that recomputation, median and range. Recovery: from the end of the
fault, or from the kill. Leaks are looked for on both nodes."""
NOT_COVERED = """\
--smoke: each fault once or a few times. Rare interleavings need more injections."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    injections: int
    json_file: Path | None
    samples_file: Path | None
    seed: int
    smoke: bool


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        PromiseBroken: something that has to be 0 is not; the report is whole nevertheless.
        KvrelayError: it cannot run.
    """
    try:
        plan = faults.plan(options.injections, options.seed)
    except ValueError as error:
        raise ConfigError(f"--injections {options.injections}: {error}") from None
    if reason := system.unavailable():
        raise BenchError(reason)
    meta = new_meta(
        "random weights",
        options.seed,
        engine_kwargs=faults_lab.ENGINE,
        model_config=faults_lab.SHAPE,
        link=faults_lab.LINK.name,
        load_deadline_s=faults_lab.DEADLINE_S,
        prompt_tokens=PROMPT_TOKENS,
        answer_tokens=ANSWER_TOKENS,
        injections=len(plan),
    )
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, faults_rows.summarize)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        ExitStack() as stack,
    ):
        lab = stack.enter_context(faults_lab.opened())
        trials = Trials(lab, random.Random(options.seed), report.samples)
        with err.status("warming up"):
            trials.warm_up(plan)
        total = sum(injection.seconds for injection in plan)
        with progress_bar("injecting", total) as advance:
            left, misses = deque(plan), 0
            while left:
                injection = left.popleft()
                outcome = trials.run(injection)
                _tell(injection, outcome)
                if not outcome.missed:
                    advance(injection.seconds)
                    continue
                left.append(injection.earlier())
                if (misses := misses + 1) > _MAX_MISSES + len(plan) // 4:
                    raise BenchError(
                        "faults come too late: all blocks have come over by then; this machine "
                        "is too busy"
                    )
    _show(report, options)
    if broken := faults_rows.broken_promises(report.rows()):
        raise PromiseBroken("; ".join(broken))


def _tell(injection: Injection, outcome: Outcome) -> None:
    """Say at once what went wrong."""
    for note in outcome.notes:
        words = [injection.fault, injection.variant.name, "/".join(injection.way)]
        moment = injection.after_blocks
        words += [] if moment is None else [f"after {moment} blocks"]
        err.print(
            f"{', '.join(filter(None, words))}: {note}",
            style="red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    show(f"{len(report.samples)} injections", faults_rows.TABLE, rows)
    show("why B recomputed, or did not", faults_rows.REASONS_TABLE, rows)
    method = METHOD.format(link=faults_lab.LINK.name, prompt=PROMPT_TOKENS)
    out.print(method, style="dim", highlight=False, soft_wrap=True)
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
