"""Carries out `kvrelay bench simulate`: trace, replays, comparison with real nodes, report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvrelay.bench import simulate_rows
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.bench.simulate import simulate
from kvrelay.bench.simulate_fit import BLOCK_TOKENS, Cell, fitted
from kvrelay.bench.simulate_world import World, paced
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.trace_profiles import PROFILES, TOOL_AGENT
from kvrelay.bench.tracegen import generate
from kvrelay.bench.traces import Trace, describe, read_jsonl, regrouped
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.lifecycle import signals_as_exit

GENERATED = "generated"
SMOKE_REQUESTS = 2_000
METHOD = """\
Replays of one stream, nothing is timed: seconds to the first token are those of a cost model with
noise, the same for every policy. Requests go to agents at random. `late` are loads that did not
bring all in time, `GB` what went between nodes, `busy` the share of the time that a node's link
carries something."""
NOT_COVERED = """\
--smoke: a short stream, in which caches hardly fill and policies that learn have little to learn
from."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for; the trace is `generated`, a profile's name, or a file."""

    trace: str
    requests: int
    load: float
    policies: tuple[str, ...]
    world: World
    repeats: int
    seed: int
    calibrate: Path | None
    json_file: Path | None
    samples_file: Path | None
    smoke: bool


def parse_world(agents: int, nodes: int, links: str) -> World:
    """A cluster of so many engines and nodes, with links such as `1gbit,100mbit`.

    Raises:
        ConfigError: a word is no link.
    """
    return World(nodes, agents, tuple(parse_link(word.strip()) for word in links.split(",")))


def parse_trace(name: str) -> str:
    """A generated trace by name, or a file.

    Raises:
        ConfigError: neither.
    """
    if name not in (GENERATED, *PROFILES) and not Path(name).is_file():
        known = ", ".join((GENERATED, *PROFILES))
        raise ConfigError(f"--trace {name}: neither a file nor one of {known}")
    return name


def main(options: Options) -> None:
    """Run the simulations and leave their report.

    Raises:
        KvrelayError: the trace or the report to compare with cannot be read.
    """
    cells = _measured(options.calibrate) if options.calibrate else []
    world = fitted(cells, options.world) or options.world
    meta = new_meta("none", options.seed, world=asdict(world), load=options.load, statistics=[])
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, simulate_rows.summarize)
    if options.calibrate is not None:
        meta["calibration"] = simulate_rows.calibration(cells, options.world)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        progress_bar("simulating", options.repeats * len(options.policies)) as advance,
    ):
        for seed in range(options.seed, options.seed + options.repeats):
            trace = paced(_trace(options, seed), world, options.load)
            meta["statistics"].append({"seed": seed, **asdict(describe(trace))})
            for sample in _samples(trace, world, options, seed):
                report.samples.append(sample)
                advance(1)
    _show(report, options)


def _trace(options: Options, seed: int) -> Trace:
    """The first requests of the trace, in blocks no smaller than an engine's."""
    profile = TOOL_AGENT if options.trace == GENERATED else PROFILES.get(options.trace)
    if profile is not None:
        trace = generate(profile.scaled(options.requests / profile.num_requests), seed)
    else:
        trace = _first(read_jsonl(Path(options.trace)), options.requests)
    return regrouped(trace, max(BLOCK_TOKENS, trace.block_tokens))


def _first(trace: Trace, count: int) -> Trace:
    """At most so many requests."""
    starts = trace.starts[: count + 1]
    columns = ("times_s", "input_tokens", "output_tokens", "sessions", "turns")
    cut: dict[str, Any] = {name: getattr(trace, name)[:count] for name in columns}
    return replace(trace, **cut, starts=starts, blocks=trace.blocks[: starts[-1]])


def _samples(trace: Trace, world: World, options: Options, seed: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    agents = rng.integers(world.num_agents, size=len(trace)).tolist()
    for policy in options.policies:
        outcome = simulate(trace, world, policy, agents, seed)
        yield {
            "trace": trace.name,
            "seed": seed,
            "policy": policy,
            "requests": len(trace),
            "agents": world.num_agents,
            "nodes": world.num_nodes,
            "links": ",".join(link.name for link in world.links),
            "load": options.load,
            **simulate_rows.measures(outcome, world.num_nodes, trace.times_s),
        }


def _measured(file: Path) -> list[Cell]:
    try:
        rows = list(json.loads(file.read_text(encoding="utf-8"))["rows"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--calibrate {file}: cannot be read as a report: {error}") from None
    return [Cell.of(row) for row in rows]


def _show(report: Report, options: Options) -> None:
    rows = report.rows()
    show(f"simulated TTFT in s: {rows[0]['trace']}", simulate_rows.TABLE, rows)
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    if compared := report.meta.get("calibration"):
        title = "an idle request, simulated by what other lengths took; and how far off that is"
        show(title, simulate_rows.CALIBRATION_TABLE, compared)
    if options.smoke:
        err.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
