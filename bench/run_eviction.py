"""Carries out `kvrelay bench eviction`: traces, replays, report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench import eviction, eviction_rows
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.bench.trace_profiles import PROFILES
from kvrelay.bench.tracegen import generate
from kvrelay.bench.traces import Trace, describe, read_jsonl, regrouped
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.policies.prefill import PrefillCost

# The engine's block on CPU; traces with larger ones keep theirs.
BLOCK_TOKENS = 128
SMOKE_SHARE = 0.1
METHOD = """\
Replays of request streams against a store of a share of the stream's different blocks: median and
range over the seeds. Nothing is timed: seconds of prefill are those of the cost model, T(n) = a*n +
b*n*n of the longest held prefix. `clairvoyant` knows the future, the others do not."""
NOT_COVERED = """\
--smoke: a tenth of each stream, one seed. Policies that learn have little to learn from, and the
streams' statistics are not those of the published traces."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for; traces are names of profiles, or files."""

    traces: tuple[str, ...]
    capacities: tuple[float, ...]
    repeats: int
    seed: int
    prefill: PrefillCost
    json_file: Path | None
    samples_file: Path | None
    smoke: bool


def parse_capacities(text: str) -> tuple[float, ...]:
    """`0.1,0.3` as numbers, in order, each once.

    Raises:
        ConfigError: not a list of shares.
    """
    try:
        shares = sorted({float(part) for part in text.split(",")})
    except ValueError:
        shares = []
    if not shares or not 0 < shares[0] <= shares[-1] <= 1:
        raise ConfigError(f"--capacity {text}: give shares of the footprint such as 0.1,0.3")
    return tuple(shares)


def parse_traces(text: str) -> tuple[str, ...]:
    """Names of profiles and files, each once.

    Raises:
        ConfigError: neither.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PROFILES and not Path(name).is_file():
            raise ConfigError(f"--traces {name}: neither a file nor one of {', '.join(PROFILES)}")
    return names


def parse_prefill(text: str) -> PrefillCost:
    """`6e-4,2.3e-7` as the cost of a prefill.

    Raises:
        ConfigError: not two coefficients, or they make no cost.
    """
    try:
        per_token_s, per_token_squared_s = (float(part) for part in text.split(","))
    except ValueError:
        per_token_s = per_token_squared_s = -1.0
    if per_token_s <= 0 or per_token_squared_s < 0:
        raise ConfigError(f"--prefill {text}: give a and b of T(n) = a*n + b*n*n, as 6e-4,2.3e-7")
    return PrefillCost(per_token_s=per_token_s, per_token_squared_s=per_token_squared_s)


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        KvrelayError: a trace cannot be read.
    """
    meta = new_meta("none", options.seed, prefill=asdict(options.prefill), statistics=[])
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, eviction_rows.summarize)
    replays = len(options.capacities) * len(eviction.POLICIES)
    total = replays * sum(options.repeats if name in PROFILES else 1 for name in options.traces)
    with (
        signals_as_exit(),
        kept(report, options.json_file, options.samples_file),
        progress_bar("replaying", total) as advance,
    ):
        for seed, trace in _traces(options):
            which = {"trace": trace.name, "seed": seed}
            meta["statistics"].append(which | asdict(describe(trace)))
            for sample in _samples(
                regrouped(trace, max(BLOCK_TOKENS, trace.block_tokens)), options
            ):
                report.samples.append(which | sample)
                advance(1)
    _show(report, options)


def _traces(options: Options) -> Iterator[tuple[int, Trace]]:
    for name in options.traces:
        if name not in PROFILES:
            yield options.seed, read_jsonl(Path(name))
            continue
        profile = PROFILES[name]
        if options.smoke:
            profile = profile.scaled(SMOKE_SHARE)
        for seed in range(options.seed, options.seed + options.repeats):
            yield seed, generate(profile, seed)


def _samples(trace: Trace, options: Options) -> Iterator[dict[str, Any]]:
    best = eviction.unlimited(trace, options.prefill)
    for capacity in options.capacities:
        slots = max(1, round(capacity * trace.num_blocks))
        for policy in eviction.POLICIES:
            outcome = eviction.replay(trace, policy, slots, options.prefill)
            yield {
                "capacity": capacity,
                "policy": policy,
                "block_tokens": trace.block_tokens,
                "requests": len(trace),
                "slots": slots,
                "saved_prefill_s": outcome.saved_s,
                "saved_of_unlimited_ratio": outcome.saved_s / best.saved_s,
                "saved_of_all_ratio": outcome.saved_s / outcome.all_s,
                "hit_token_ratio": outcome.hit_tokens / outcome.all_tokens,
                "evicted_blocks": outcome.evictions,
            }


def _show(report: Report, options: Options) -> None:
    show("eviction", eviction_rows.TABLE, report.rows())
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    if options.smoke:
        err.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
