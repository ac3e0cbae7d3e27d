"""`kvrelay bench topology`: what a relay costs by where A is, and by the wire to it.

    node-1: client, proxy, ingress, `b`, `plain`, `a-near`  <-- link -->  node-2: `a`

Whatever is timed is on the node of the client, so that nothing but the relay crosses the wire.
The arms of a repeat, each with a prompt of its own that begins like no other, run in random
order, over all links:

    recompute     b: P+32, relay refused                                   -> recompute_s
    plain         plain: P                     then  plain: P+32           -> local_hit_s
    relay, link   a or a-near: P               then  b: P+32               -> relay_s
                  between nodes once by each way: transport and codec

Before B is asked, A's store has committed every block of A, and B's store has heard of them.
Requests are for one token and not streamed: the answer that is timed carries vLLM's count of
cached tokens and the record of relay, so that every timed relay tells its own path and bytes.
A relay counts only if that path is the link and, on the test bed, the link's interface has
counted the bytes.
Once a repeat the goodput of a plain TCP stream and its round trips are measured over each link:
`wire_s` is what that stream would take for the same bytes. A link with a round-trip time goes
through a process (testbed/bridge.py), and its row says how much of a core that took meanwhile.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvrelay.bench.answers import Answer, AnswerClient
from kvrelay.bench.errors import BenchError, Miscount, WrongPath
from kvrelay.bench.hit import blocks_saved, local_hit_tokens, prefill_estimate_s
from kvrelay.bench.places import Place
from kvrelay.bench.prompts import OTHER_TOKENS, PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.bench.testbed.link import Link, parse_link
from kvrelay.bench.wires import CLUSTER, Wire, check_path
from kvrelay.cluster.errors import ConfigError
from kvrelay.relay.codecs.base import NAMES as CODECS

FAR, NEAR, B, PLAIN = "a", "a-near", "b", "plain"
SAME_NODE = "same-node"
CLUSTER_LINKS: tuple[Link | None, ...] = (None, CLUSTER)
TRANSPORTS = ("nixl", "plasma")
WARM_UP_TOKENS = 512
# Of the demo model; for the progress bar only.
_BYTES_PER_TOKEN = 23_040
_UNSHAPED_BITS_PER_S = 4e9
Advance = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """One running cluster and what is needed to measure on it.

    Attributes:
        here: the node of B and of the client.
        there: the other node, and `wire` the way to it; None if all is on one node.
        links: what is compared; None stands for the same node.
        ways: how blocks come between nodes, (transport, codec) each.
        set_way: has B's store take one of them.
    """

    client: AnswerClient
    here: Place
    there: Place | None
    wire: Wire | None
    links: Sequence[Link | None]
    ways: Sequence[tuple[str, str]]
    set_way: Callable[[str, str], None]
    prompts: PromptSource
    gate: QuietGate
    samples: list[Row]

    def run(
        self, lengths: Sequence[int], repeats: int, rng: random.Random, advance: Advance
    ) -> None:
        """Measure every arm over every link and at every length, as often as asked.

        Raises:
            Miscount: an engine reused other tokens than the arm claims.
            WrongPath: a relay did not go over its link.
            BenchError: an agent failed, or blocks were not saved or not heard of.
        """
        for repeat in range(repeats):
            for link in self.links:
                if link is not None:
                    self._goodput(link, repeat)
            for tokens in rng.sample(lengths, len(lengths)):
                arms: list[Callable[[int, int], None]] = [self._recompute, self._plain]
                arms += self._relays()
                for arm in rng.sample(arms, len(arms)):
                    arm(tokens, repeat)
                    advance(1.0 / len(arms) * estimate_s(tokens, self.links, len(self.ways)))

    def warm_up(self) -> None:
        """Let every engine compute, save, load and hit once, over every link; nothing is kept."""
        try:
            self._recompute(WARM_UP_TOKENS, -1)
            self._plain(WARM_UP_TOKENS, -1)
            for relay in self._relays():
                relay(WARM_UP_TOKENS, -1)
        finally:
            self.samples.clear()

    def _relays(self) -> list[Callable[[int, int], None]]:
        """On the same node there is one way, between nodes there are several."""
        found: list[Callable[[int, int], None]] = []
        for link in self.links:
            ways = [None] if link is None else self.ways
            found += [partial(self._relay, link, way) for way in ways]
        return found

    # Arms

    def _recompute(self, tokens: int, repeat: int) -> None:
        factors = {"tokens": tokens, "repeat": repeat, "arm": "recompute"}
        prompt = self.prompts.take(tokens).whole
        since = self.here.store.committed()
        self._ask(factors, "recompute_s", B, prompt, cached=0, mode="recompute")
        self.here.store.wait(since, blocks_saved(len(prompt)))

    def _plain(self, tokens: int, repeat: int) -> None:
        factors = {"tokens": tokens, "repeat": repeat, "arm": "plain"}
        prompt = self.prompts.take(tokens)
        self._ask(factors, "plain_miss_s", PLAIN, prompt.shared, cached=0)
        hit = local_hit_tokens(tokens)
        self._ask(factors, "local_hit_s", PLAIN, prompt.whole, cached=hit)

    def _relay(
        self, link: Link | None, way: tuple[str, str] | None, tokens: int, repeat: int
    ) -> None:
        name = SAME_NODE if link is None else link.name
        factors = {"tokens": tokens, "repeat": repeat, "arm": "relay", "link": name}
        if way is not None:
            factors["way"] = "/".join(way)
            self.set_way(*way)
        prompt = self.prompts.take(tokens)
        source, agent = (self.here, NEAR) if link is None else (self._far(), FAR)
        if link is not None:
            self._wire().set_link(link)
        since = source.store.committed()
        self._ask(factors, "save_s", agent, prompt.shared, cached=0)
        source.store.wait(since, blocks_saved(tokens))
        if link is not None:
            self.here.wait_known(source)
        since = self.here.store.committed()
        before, bridge_s = self._received_bytes(), self._bridge_cpu_s()
        answer = self._ask(factors, "relay_s", B, prompt.whole, cached=tokens)
        received = self._received_bytes() - before
        bridge_s = self._bridge_cpu_s() - bridge_s
        taken = (answer.record["transport"], answer.record["codec"])
        if way is not None and taken != way:
            raise WrongPath(f"a relay took {'/'.join(taken)} where {'/'.join(way)} was set")
        self._keep_record(factors, link, answer.record, received)
        if link is not None and link.rtt_s and (seconds := answer.record["transfer_s"]):
            value = bridge_s / seconds
            self.samples.append({**factors, "measure": "bridge_cores", "value": value})
        self.here.store.wait(since, blocks_saved(tokens + OTHER_TOKENS, tokens))

    def _goodput(self, link: Link, repeat: int) -> None:
        wire = self._wire()
        wire.set_link(link)
        self.gate.wait()
        measured = wire.goodput()
        factors = {"link": link.name, "repeat": repeat, "read_bytes": measured.num_bytes}
        for value in measured.bits_per_s:
            self.samples.append({**factors, "measure": "goodput_bits_per_s", "value": value})
        for value in wire.round_trips_s():
            self.samples.append({**factors, "measure": "rtt_s", "value": value})

    # Steps

    def _far(self) -> Place:
        if self.there is None:
            raise BenchError("a link needs two nodes")
        return self.there

    def _wire(self) -> Wire:
        if self.wire is None:
            raise BenchError("a link needs two nodes")
        return self.wire

    def _received_bytes(self) -> int:
        return (self.wire.received_bytes() if self.wire is not None else None) or 0

    def _bridge_cpu_s(self) -> float:
        return (self.wire.bridge_cpu_s() if self.wire is not None else None) or 0.0

    def _ask(
        self,
        factors: Mapping[str, Any],
        measure: str,
        agent: str,
        prompt: Sequence[int],
        *,
        cached: int,
        mode: str | None = None,
    ) -> Answer:
        """Time one request and check what was reused."""
        answer, watched = self.gate.watch(lambda: self.client.answer(agent, prompt, mode))
        if answer.cached_tokens != cached:
            reason = answer.record.get("reason", "it does not relay")
            raise Miscount(
                f"{measure} at {factors['tokens']} tokens, link {factors.get('link', 'none')}: "
                f"vLLM of agent '{agent}' counts {answer.cached_tokens} cached prompt tokens, "
                f"expected {cached} ({reason}); the figures would be worth nothing"
            )
        sample = {**factors, "measure": measure, "value": answer.seconds}
        self.samples.append({**sample, "cached_tokens": cached, **watched.to_dict()})
        return answer

    def _keep_record(
        self,
        factors: Mapping[str, Any],
        link: Link | None,
        record: Mapping[str, Any],
        received: int,
    ) -> None:
        """Keep what a relay says of itself, after a check that it went where its row will say."""
        values = {
            "bytes": record["num_bytes"],
            "copy_s": record["copy_s"],
            # Within a node nothing is transferred: the arena is both ends.
            "transport": record["transport"] or record["load_path"],
            "codec": record["codec"] or "raw",
        }
        if link is None:
            check_path(SAME_NODE, None, record, received)
            values["path"] = record["path"] or record["load_path"]
        else:
            wire = self._wire()
            values["path"] = wire.check(link, record, received)
            values |= {"wire_bytes": record["wire_bytes"], "transfer_s": record["transfer_s"]}
            if wire.received_bytes() is not None:
                values["interface_bytes"] = received
        for measure, value in values.items():
            self.samples.append({**factors, "measure": measure, "value": value})


def parse_links(text: str) -> tuple[Link | None, ...]:
    """`same-node,unshaped,1gbit` as links, each once; None is the same node.

    Raises:
        ConfigError: a word is no link.
    """
    words = dict.fromkeys(word.strip() for word in text.split(","))
    return tuple(None if word == SAME_NODE else parse_link(word) for word in words)


def parse_cluster(near: str | None, far: str | None, links: str | None) -> tuple[str, str] | None:
    """The labels of two nodes of a running cluster; None if the test bed is to be made.

    Raises:
        ConfigError: one of them is missing, or there is no cluster, or links are to be made there.
    """
    if near is None and far is None:
        return None
    if near is None or far is None or near == far:
        raise ConfigError("--near and --far go together: the labels of two nodes of a cluster")
    if links is not None:
        raise ConfigError("--links makes links of the test bed; the cluster of --near has its own")
    if not os.environ.get("RAY_ADDRESS"):
        raise ConfigError("--near and --far are of a running Ray: name it in RAY_ADDRESS")
    return near, far


def parse_ways(text: str) -> tuple[tuple[str, str], ...]:
    """`nixl/raw,plasma/raw` as pairs of transport and codec, each once.

    Raises:
        ConfigError: a word is not such a pair.
    """
    ways = []
    for word in dict.fromkeys(word.strip() for word in text.split(",")):
        transport, _, codec = word.partition("/")
        if transport not in TRANSPORTS or codec not in CODECS:
            known = f"transports: {', '.join(TRANSPORTS)}; codecs: {', '.join(CODECS)}"
            raise ConfigError(f"--ways {word}: a way is TRANSPORT/CODEC; {known}")
        ways.append((transport, codec))
    return tuple(ways)


def estimated_transfer_s(link: Link, tokens: int) -> float:
    """Roughly how long the KV of so many tokens takes over a link."""
    return 8 * _BYTES_PER_TOKEN * tokens / (link.bits_per_s or _UNSHAPED_BITS_PER_S)


def estimate_s(tokens: int, links: Sequence[Link | None], num_ways: int) -> float:
    """Roughly how long all arms of one repeat take at one length."""
    wires = [link for link in links if link is not None]
    transfers = sum(estimated_transfer_s(link, tokens) for link in wires)
    relays = len(wires) * num_ways + len(links) - len(wires)
    return (2 + relays) * prefill_estimate_s(tokens) + num_ways * transfers


def total_estimate_s(
    lengths: Sequence[int], repeats: int, links: Sequence[Link | None], num_ways: int
) -> float:
    """What `Bench.run` advances to."""
    return repeats * sum(estimate_s(tokens, links, num_ways) for tokens in lengths)
