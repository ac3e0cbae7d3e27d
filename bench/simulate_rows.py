"""The rows of `kvrelay bench simulate`, and how they compare with real nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.prompts import OTHER_TOKENS
from kvrelay.bench.report import Row, number
from kvrelay.bench.simulate import simulate
from kvrelay.bench.simulate_fit import BLOCK_TOKENS, RAW, SAME_NODE, Cell, fitted, lengths
from kvrelay.bench.simulate_world import Simulated, World
from kvrelay.bench.stats import figure, paired_ratios
from kvrelay.bench.testbed.link import Link, parse_link
from kvrelay.bench.traces import Trace
from kvrelay.cluster.errors import ConfigError

CONTROL = "never"
QUANTILES = {"ttft_p50_s": 50, "ttft_p95_s": 95, "ttft_p99_s": 99}
COUNTS = ("relays", "given_up", "relayed_tokens", "local_tokens", "wire_bytes")
MEASURES = ("ttft_mean_s", *QUANTILES, *COUNTS, "link_busy_ratio")
OVER_CONTROL = ("ttft_mean_s", "ttft_p95_s", "ttft_p99_s")


def measures(outcome: Simulated, num_nodes: int, times_s: NDArray[np.float64]) -> Row:
    """What one replay comes to, of requests that arrived at these times."""
    row: Row = {"ttft_mean_s": float(outcome.ttft_s.mean())}
    row |= {name: float(np.percentile(outcome.ttft_s, q)) for name, q in QUANTILES.items()}
    row |= {
        "relays": int((outcome.relayed_tokens > 0).sum()),
        "given_up": int(outcome.given_up.sum()),
        "relayed_tokens": int(outcome.relayed_tokens.sum()),
        "local_tokens": int(outcome.local_tokens.sum()),
        "wire_bytes": int(outcome.wire_bytes.sum()),
    }
    end_s = float((times_s + outcome.ttft_s).max())
    row["link_busy_ratio"] = outcome.link_busy_s / (num_nodes * end_s)
    return row


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per trace and policy; figures are over the seeds.

    `..._over_never` are ratios seed by seed: same requests, same agents, same noise.
    """
    cells: dict[tuple[str, str], dict[int, Row]] = {}
    for sample in samples:
        cells.setdefault((sample["trace"], sample["policy"]), {})[sample["seed"]] = sample
    rows = []
    for (trace, policy), by_seed in cells.items():
        some = next(iter(by_seed.values()))
        row: Row = {"trace": trace, "policy": policy}
        row |= {name: some[name] for name in ("requests", "agents", "nodes", "links", "load")}
        row |= {name: figure([each[name] for each in by_seed.values()]) for name in MEASURES}
        others = cells.get((trace, CONTROL), {})
        if both := sorted(set(by_seed) & set(others)):
            for name in OVER_CONTROL:
                own, theirs = ([each[seed][name] for seed in both] for each in (by_seed, others))
                over = f"{name.removesuffix('_s')}_over_{CONTROL}"
                row[over] = figure(paired_ratios(own, theirs))
        rows.append(row)
    return rows


def calibration(cells: Sequence[Cell], world: World) -> list[Row]:
    """Rows of `bench topology`, and what an idle simulated cluster makes of the same cells.

    Each is forecast by engines that were fitted to the other lengths on one node, if there are
    enough, else by those of `world`, so that the difference says something. The link is as its row
    found it: the goodput of plain TCP if that is there. Codecs are not simulated, so that only
    cells of raw blocks are compared.
    """
    rows = []
    for cell in cells:
        if cell.codec != RAW:
            continue
        others = [each for each in cells if each.tokens != cell.tokens]
        theirs = fitted(others, world)
        link = _wire(cell.link, cell.goodput_gbit_per_s, world.wire_share)
        simulated = idle(theirs or world, link, cell.tokens)
        found: Row = {"link": cell.link, "tokens": cell.tokens}
        if cell.way is not None:
            found["way"] = cell.way
        found["fitted_to"] = lengths(others) if theirs else []
        for name, value in cell.seconds.items():
            found[name] = round(value, 6)
            found[f"simulated_{name}"] = round(simulated[name], 6)
            found[f"{name.removesuffix('_s')}_difference"] = round(simulated[name] / value - 1, 4)
        rows.append(found)
    return rows


def idle(world: World, link: Link | None, tokens: int) -> dict[str, float]:
    """Seconds of a lone request behind a shared prefix; without a link both are on one node.

    The request is that of `bench topology`: the prefix, and so many tokens of its own.
    """
    wire = link or Link("unused", None)
    quiet = replace(
        world, num_nodes=2, num_agents=4, links=(wire,), noise=0.0, load_deadline_s=float("inf")
    )
    shared = tokens // BLOCK_TOKENS
    trace = Trace(
        name="idle",
        block_tokens=BLOCK_TOKENS,
        times_s=np.array([0.0, 1e6]),
        input_tokens=np.array([tokens, tokens + OTHER_TOKENS]),
        output_tokens=np.ones(2, np.int64),
        sessions=np.arange(2),
        turns=np.zeros(2, np.int64),
        starts=np.array([0, shared, 2 * shared]),
        blocks=np.concatenate([np.arange(shared)] * 2),
    )
    source = 2 if link is None else 1  # agents 0 and 2 are on the first node, 1 is on the other
    ask = {
        "recompute_s": ("never", (source, 0)),
        "local_hit_s": ("never", (0, 0)),
        "relay_s": ("always", (source, 0)),
    }
    return {
        name: float(simulate(trace, quiet, policy, agents, 0).ttft_s[1])
        for name, (policy, agents) in ask.items()
    }


def _wire(name: str, goodput_gbit_per_s: float | None, wire_share: float) -> Link | None:
    """A link that carries what was found there; None is the same node."""
    if name == SAME_NODE:
        return None
    found = None if goodput_gbit_per_s is None else int(goodput_gbit_per_s * 1e9 / wire_share)
    try:
        link = parse_link(name)
    except ConfigError:
        link = Link(name, None)  # between nodes of a real cluster
    return replace(link, bits_per_s=found or link.bits_per_s)


def _cell(name: str, form: str, scale: float = 1.0) -> Callable[[Row], str]:
    """A cell: the median of a figure."""

    def cell(row: Row) -> str:
        return format(scale * row[name]["median"], form) if name in row else "-"

    return cell


def _two(first: Callable[[Row], str], second: Callable[[Row], str]) -> Callable[[Row], str]:
    """A cell: one figure, and below it another."""
    return lambda row: f"{first(row)}\n[dim]{second(row)}[/]"


def _difference(name: str) -> Callable[[Row], str]:
    """A cell: simulated seconds, and by how much they differ from those measured."""

    def cell(row: Row) -> str:
        if name not in row:
            return "-"
        off = row[f"{name.removesuffix('_s')}_difference"]
        return f"{row[f'simulated_{name}']:.3f}\n[dim]{off:+.0%}[/]"

    return cell


TABLE: Mapping[str, Callable[[Row], str]] = {
    "policy": number("policy"),
    "mean\np50": _two(_cell("ttft_mean_s", ".2f"), _cell("ttft_p50_s", ".2f")),
    "p95\np99": _two(_cell("ttft_p95_s", ".2f"), _cell("ttft_p99_s", ".2f")),
    "p95\n/ never": _cell("ttft_p95_over_never", ".3f"),
    "relays\nlate": _two(_cell("relays", ",.0f"), _cell("given_up", ",.0f")),
    "GB": _cell("wire_bytes", ",.1f", 1e-9),
    "busy": _cell("link_busy_ratio", ".0%"),
}
CALIBRATION_TABLE: Mapping[str, Callable[[Row], str]] = {
    "link": number("link"),
    "way": number("way"),
    "tokens": number("tokens", ","),
    "recompute": _difference("recompute_s"),
    "local\nhit": _difference("local_hit_s"),
    "relay": _difference("relay_s"),
}
