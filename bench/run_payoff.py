"""Carries out `kvrelay bench payoff`: simulated streams, estimates, report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench import payoff, payoff_rows, payoff_switch
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.lifecycle import signals_as_exit

SMOKE_STREAMS = 12
# Streams of requests per stream of the switch, of which there are two kinds.
_PER_SWITCH = 50
_SPAN_S, _CHANGE_S = 30_000.0, 12_000.0
_PLANTED = {
    "loses, then pays": (payoff_switch.LOSES_S, payoff_switch.PAYS_S),
    "pays": (payoff_switch.PAYS_S, payoff_switch.PAYS_S),
}
METHOD = """\
Simulated streams with known truth; the interval is looked at after every request. Missed: it
excluded the truth at some look. Beside it, how often the usual 95 % interval of one look does when
looked at all the time. Width: the last interval against that usual one. Ranges are over the
streams."""
NOT_COVERED = """\
--smoke: a few streams show that it works; shares of them mean nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    streams: int
    seed: int
    json_file: Path | None
    samples_file: Path | None
    smoke: bool


def main(options: Options) -> None:
    """Run the simulation and leave its report."""
    worlds = [asdict(world) for world in payoff.WORLDS]
    meta = new_meta("none", options.seed, streams=options.streams, worlds=worlds)
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, payoff_rows.summarize)
    switches = max(1, options.streams // _PER_SWITCH)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        progress_bar("simulating", options.streams + len(_PLANTED) * switches) as advance,
    ):
        for sample in _samples(options, switches):
            report.samples.append(sample)
            advance(1)
    _show(report, options)


def stream_samples(streams: int, seed: int) -> Iterator[dict[str, Any]]:
    """Streams of all worlds in turn."""
    for number in range(streams):
        world = payoff.WORLDS[number % len(payoff.WORLDS)]
        yield {
            "scenario": world.name,
            "epsilon": world.epsilon,
            "sessions": world.sessions,
            "truth_s": round(payoff.request_saving_s(), 6),
            "stream": number,
            **asdict(payoff.watch(world, seed + number)),
        }


def _samples(options: Options, switches: int) -> Iterator[dict[str, Any]]:
    yield from stream_samples(options.streams, options.seed)
    for planted, (before_s, after_s) in _PLANTED.items():
        for number in range(switches):
            found = payoff_switch.run(options.seed + number, _SPAN_S, _CHANGE_S, before_s, after_s)
            yield {"scenario": payoff_rows.SWITCH, "planted": planted, **asdict(found)}


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    switched = [row for row in rows if row["scenario"] == payoff_rows.SWITCH]
    show("payoff", payoff_rows.WORLDS_TABLE, [row for row in rows if row not in switched])
    show("strata that turn themselves off", payoff_rows.SWITCH_TABLE, switched)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    out.print(payoff_rows.verdict(rows), highlight=False, soft_wrap=True)
    if options.smoke:
        err.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
