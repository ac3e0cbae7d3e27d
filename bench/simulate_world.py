"""The cluster that `bench simulate` simulates, and what comes of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.testbed.link import Link
from kvrelay.bench.traces import Ints, Trace
from kvrelay.policies.prefill import PrefillCost

Floats = NDArray[np.float64]
_UNSHAPED_BITS_PER_S = 2.5e9  # plain TCP between two namespaces of a machine with two cores


@dataclass(frozen=True, slots=True)
class World:
    """A cluster; by default one of the demo model on small CPU nodes, with the product's defaults.

    Attributes:
        num_agents: engines; agent i is on node i modulo the number of nodes.
        links: how nodes are connected; node i by link i modulo their number.
        prefill: of every engine.
        bytes_per_token: of KV.
        max_tokens: of a prompt (longer ones are cut), and of a step.
        engine_bytes: KV that an engine caches.
        store_bytes: KV that a node's store holds.
        relay_fixed_s: what a load takes besides moving bytes.
        copy_bytes_per_s: from the arena into an engine.
        transfer_fixed_s: what a transfer between nodes takes besides its bytes, without round trip.
        wire_share: of a link's rate that a transfer makes use of.
        load_deadline_s, max_loads_in_flight: of every engine, as in its configuration.
        noise: standard deviation of the logarithm of each request's seconds.
    """

    num_nodes: int
    num_agents: int
    links: tuple[Link, ...]
    prefill: PrefillCost = field(default_factory=PrefillCost)
    bytes_per_token: int = 23_040
    max_tokens: int = 8192
    engine_bytes: int = 2**30
    store_bytes: int = 2 * 2**30
    relay_fixed_s: float = 0.02
    copy_bytes_per_s: float = 3e9
    transfer_fixed_s: float = 0.05
    wire_share: float = 0.93
    load_deadline_s: float = 2.0
    max_loads_in_flight: int = 8
    noise: float = 0.1

    def bytes_per_s(self, link: Link) -> float:
        """What a transfer makes of a link."""
        return self.wire_share * (link.bits_per_s or _UNSHAPED_BITS_PER_S) / 8


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of each request of the trace, in its order.

    Attributes:
        ttft_s: from its arrival to the end of the step that computed the last of its prompt.
        started_s: when that step began.
        prompt_tokens: its length, cut as the engine needs it.
        local_tokens, relayed_tokens: of these, found in the engine's cache, and relayed.
        wire_bytes: what was moved between nodes for it, in time or not.
        given_up: whether its load did not bring all, by its deadline or because it was evicted.
        link_busy_s: seconds of transfers, of all links together.
    """

    ttft_s: Floats
    started_s: Floats
    prompt_tokens: Ints
    local_tokens: Ints
    relayed_tokens: Ints
    wire_bytes: Ints
    given_up: NDArray[np.bool_]
    link_busy_s: float


def paced(trace: Trace, world: World, load: float) -> Trace:
    """The trace at the rate at which it asks for this share of all engines, were nothing reused."""
    tokens = np.minimum(trace.input_tokens, world.max_tokens)
    needed_s = float(np.sum(world.prefill.fixed_s + world.prefill.added_s(0 * tokens, tokens)))
    duration_s = needed_s / (load * world.num_agents)
    factor = duration_s / float(trace.times_s[-1]) if trace.times_s[-1] > 0 else 1.0
    return replace(trace, times_s=trace.times_s * factor)
