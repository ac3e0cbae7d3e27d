"""The real executor: engines on the two-node test bed, warm and ready to measure units."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from kvrelay.bench import engines, policies
from kvrelay.bench.audit.asking import AuditClient
from kvrelay.bench.audit.design import rng_of
from kvrelay.bench.audit.material import Material
from kvrelay.bench.audit.measure import Measurement, Processes
from kvrelay.bench.audit.plan import Plan
from kvrelay.bench.errors import BenchError
from kvrelay.bench.places import joined_bed, labels_of, places, set_way
from kvrelay.bench.policies_rows import Cell
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.bench.testbed import system
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import err
from kvrelay.cluster.config import DecisionsConfig, TelemetryConfig
from kvrelay.cluster.embedding import Encoder
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.memory import available_bytes

# What a relay needs to be measured however slow its wire is, as in `bench policies`.
RELAY: Row = {
    "policy": "cost",
    "load_deadline_s": 300.0,
    "load_patience": 100.0,
    "capacity_bytes": 2 * 2**30,
}
# Every answer's record is looked up in the log of decisions: a short one is read quickly.
_TELEMETRY = TelemetryConfig(decisions=DecisionsConfig(max_bytes=4 * 2**20))
# Of `Bench.pair` and, for each length, of a recomputation alone.
_REQUESTS_PER_PAIR = 4


def check() -> None:
    """Fail at once where there can be no test bed.

    Raises:
        BenchError: with the remedy.
    """
    if reason := system.unavailable():
        raise BenchError(reason)


@contextmanager
def opened(
    plan: Plan, encoder: Encoder | None, name: str, now_s: Callable[[], float]
) -> Iterator[Measurement]:
    """Start two nodes with their engines and warm them up; all is gone afterwards.

    Args:
        plan: what will be measured.
        encoder: for the cosine of prompts, see `material.encoder_of`; None measures none.
        name: of this process's part of the run, for salts.
        now_s: seconds since the run's start.

    Raises:
        KvrelayError: it cannot be done here.
    """
    with ExitStack() as stack:
        source = ensure_model(plan.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            prompts = PromptSource.load(source, plan.seed)
            material = Material.load(source, encoder)
        links = [parse_link(link) for link in plan.links() if link != SAME_NODE]
        bed = stack.enter_context(joined_bed(links))
        here, there = labels_of(bed)
        token = secrets.token_hex(16)
        agents = [engines.relaying(B, here), engines.relaying(NEAR, here)]
        agents.append(engines.relaying(FAR, there))
        digest = hashlib.sha256(token.encode()).hexdigest()
        config = engines.cluster(plan.model, agents, RELAY, here, digest)
        config = config.model_copy(update={"telemetry": _TELEMETRY})
        preflight.check_memory(config, available_bytes() - config.relay.capacity_bytes)
        session = stack.enter_context(engines.started(config))
        client = stack.enter_context(closing(AuditClient(session.url, token)))
        near, far, wire = places((here, there), bed)
        if far is None or wire is None:
            raise BenchError("a link needs two nodes")
        set_way(*policies.WAY)
        gate = QuietGate(session.id, plan.quiet_wait_s)
        bench = policies.Bench(client, near, far, wire, prompts, gate, name)
        processes = Processes.of(session.id, len(agents))
        measurement = Measurement(plan, bench, client, material, processes, now_s)
        with err.status("warming up"):
            _warm_up(measurement)
        gate.forget()
        yield measurement


def _warm_up(measurement: Measurement) -> None:
    """Every engine computes, saves, loads and hits over every link and way, as often as planned."""
    plan, bench = measurement.plan, measurement.bench
    rng, links, lengths = rng_of(plan.seed, "warm up"), plan.links(), plan.lengths()
    bench.warm_up([Cell(0.5, tokens, link) for tokens in lengths for link in links], rng)
    measurement.discarded += _REQUESTS_PER_PAIR * len(links) + len(lengths)
    for link in links:
        for _ in range(_REQUESTS_PER_PAIR, plan.warm_up_requests, _REQUESTS_PER_PAIR):
            bench.pair(Cell(0.5, policies.WARM_UP_TOKENS, link), rng)
            measurement.discarded += _REQUESTS_PER_PAIR
    if plan.goes_back():
        for link in (link for link in links if link != SAME_NODE):
            bench.be_at(link)
            bench.settle(Cell(0.5, policies.WARM_UP_TOKENS, link), back=True)
            measurement.discarded += 2 * len(policies.SETTLING)
