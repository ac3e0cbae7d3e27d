"""`kvrelay bench policies`: what each arm takes, on the same requests, by cell.

    node-1: client, proxy, ingress, `b`, `a-near`  <-- link -->  node-2: `a`

A pair is one prompt, under two salts of its own so that its arms share no cache:

    salt 1    b: prompt, relay refused                                  -> recompute_s
    salt 2    a or a-near: the shared prefix
              b: prompt, which relays all of the prefix                 -> relay_s
              a or a-near: prompt, relay refused, the prefix at hand    -> local_hit_s

The recomputation comes at a random place among the others (but not between the prefix and its
relay, where what it saves could push the prefix out), the cells in random order, a pair of each in
every round. As in `bench topology`, B is asked when A's store has committed and B's store
has heard of it; the answers are of one token and not streamed, since they carry the record; and a
relay counts only if it took the link. Blocks come in one way between nodes, the same in all cells.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvrelay.bench.answers import Answer, AnswerClient
from kvrelay.bench.errors import Miscount
from kvrelay.bench.hit import blocks_saved, local_hit_tokens, prefill_estimate_s
from kvrelay.bench.places import Place
from kvrelay.bench.policies_rows import Cell, wanted
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.raw import RawFile
from kvrelay.bench.report import Row
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B, estimated_transfer_s
from kvrelay.bench.wires import Wire, check_path

WAY = ("nixl", "raw")
FRACTIONS = (0.0, 0.25, 0.5, 0.95)
LENGTHS = (512, 2048, 6000)
LINKS = (SAME_NODE, "1gbit", "200mbit", "150mbit", "100mbit")
WARM_UP_TOKENS = 512
# The machine becoming quiet, blocks being saved and heard of.
_SETTLE_S = 6.0
Advance = Callable[[float], None]


def full_grid() -> list[Cell]:
    """All idle cells."""
    return [Cell(f, tokens, link) for f in FRACTIONS for tokens in LENGTHS for link in LINKS]


def smoke_grid() -> list[Cell]:
    """Eight cells in which one fixed rule is right in one half, and the other in the other."""
    links = (SAME_NODE, "100mbit")
    return [Cell(f, tokens, link) for f in (0.5, 0.95) for tokens in (512, 1024) for link in links]


def estimate_s(cell: Cell) -> float:
    """Roughly how long a pair takes."""
    shared, rest_s = cell.shared_tokens, prefill_estimate_s(cell.tokens)
    # Behind a prefix the rest costs what it adds to it.
    rest_s -= prefill_estimate_s(shared)
    seconds = prefill_estimate_s(cell.tokens) + prefill_estimate_s(shared) + 2 * rest_s
    if cell.link != SAME_NODE:
        seconds += estimated_transfer_s(parse_link(cell.link), shared)
    return _SETTLE_S + seconds


@dataclass(slots=True)
class Bench:
    """One running cluster and what is needed to measure on it.

    Attributes:
        here: the node of B and of the client; `there` the other one, and `wire` the way to it.
        raw: where pairs go, and which there are already.
        name: of this run, in its salts.
    """

    client: AnswerClient
    here: Place
    there: Place
    wire: Wire
    prompts: PromptSource
    gate: QuietGate
    raw: RawFile
    name: str
    _num_salts: int = field(default=0, init=False)

    def run(
        self,
        cells: Sequence[Cell],
        least: int,
        most: int,
        rng: random.Random,
        advance: Advance,
    ) -> None:
        """Measure, a pair of each cell a round, until every cell has what it needs.

        Raises:
            Miscount: an engine reused other tokens than the arm claims.
            WrongPath: a relay did not go over its link.
            BenchError: an agent failed, or blocks were not saved or not heard of.
        """
        while missing := wanted(self.raw.samples, cells, least, most):
            for cell in rng.sample(list(missing), len(missing)):
                number = sum(_is_of(cell, sample) for sample in self.raw.samples)
                self.raw.keep(self._pair(cell, rng) | {"pair": number})
                advance(estimate_s(cell))

    def warm_up(self, cells: Sequence[Cell], rng: random.Random) -> None:
        """Let every engine compute, save, load and hit once, over every link; nothing is kept."""
        for link in dict.fromkeys(cell.link for cell in cells):
            self._pair(Cell(0.5, WARM_UP_TOKENS, link), rng)

    def _pair(self, cell: Cell, rng: random.Random) -> Row:
        if cell.link != SAME_NODE:
            self.wire.set_link(parse_link(cell.link))
        prompt = self.prompts.take(cell.tokens).shared
        found: Row = {**cell.factors(), "local_hit_s": None, "watched": {}}
        salt = self._salt()
        steps: list[Callable[[], None]] = [lambda: self._relay(found, cell, prompt, salt)]
        if cell.shared_tokens:
            steps.append(lambda: self._at_owner(found, cell, prompt, salt))
        place = rng.randrange(len(steps) + 1)
        steps.insert(place, lambda: self._recompute(found, cell, prompt))
        for step in steps:
            step()
        return {**found, "recompute_place": place}

    # Arms

    def _recompute(self, found: Row, cell: Cell, prompt: Sequence[int]) -> None:
        since = self.here.store.committed()
        self._ask(found, "recompute_s", B, prompt, self._salt(), cached=0, mode="recompute")
        self.here.store.wait(since, blocks_saved(cell.tokens))

    def _prime(self, found: Row, cell: Cell, prompt: Sequence[int], salt: str) -> None:
        source, agent = self._source(cell)
        since = source.store.committed()
        self._ask(found, "save_s", agent, prompt, salt, cached=0)
        source.store.wait(since, blocks_saved(len(prompt)))
        if source is not self.here:
            self.here.wait_known(source)

    def _relay(self, found: Row, cell: Cell, prompt: Sequence[int], salt: str) -> None:
        shared = cell.shared_tokens
        if shared:
            self._prime(found, cell, prompt[:shared], salt)
        since, before = self.here.store.committed(), self._received_bytes()
        answer = self._ask(found, "relay_s", B, prompt, salt, cached=shared)
        received = self._received_bytes() - before
        if shared:
            self._check_path(cell, answer.record, received)
        kept = {name: value for name, value in answer.record.items() if name != "overhead"}
        found["record"] = kept
        self.here.store.wait(since, blocks_saved(cell.tokens, shared))

    def _at_owner(self, found: Row, cell: Cell, prompt: Sequence[int], salt: str) -> None:
        _, agent = self._source(cell)
        cached = local_hit_tokens(cell.shared_tokens)
        self._ask(found, "local_hit_s", agent, prompt, salt, cached=cached, mode="recompute")

    # Steps

    def _check_path(self, cell: Cell, record: Mapping[str, Any], received: int) -> None:
        if cell.link == SAME_NODE:
            check_path(SAME_NODE, None, record, received)
        else:
            self.wire.check(parse_link(cell.link), record, received)

    def _source(self, cell: Cell) -> tuple[Place, str]:
        """Where the prefix is computed, and by whom."""
        return (self.here, NEAR) if cell.link == SAME_NODE else (self.there, FAR)

    def _salt(self) -> str:
        self._num_salts += 1
        return f"{self.name}-{self._num_salts}"

    def _received_bytes(self) -> int:
        return self.wire.received_bytes() or 0

    def _ask(
        self,
        found: Row,
        measure: str,
        agent: str,
        prompt: Sequence[int],
        salt: str,
        *,
        cached: int,
        mode: str | None = None,
    ) -> Answer:
        """Time one request and check what was reused."""
        answer, watched = self.gate.watch(
            lambda: self.client.answer(agent, prompt, mode=mode, salt=salt)
        )
        if answer.cached_tokens != cached:
            reason = answer.record.get("reason", "no record")
            raise Miscount(
                f"{measure} of {len(prompt)} tokens, {found['shared_prefix_fraction']:.0%} shared, "
                f"link {found['link']}: vLLM of agent '{agent}' counts {answer.cached_tokens} "
                f"cached prompt tokens, expected {cached} ({reason}); "
                "the figures would be worth nothing"
            )
        found[measure] = answer.seconds
        found["watched"][measure] = watched.to_dict()
        return answer


def total_estimate_s(missing: Mapping[Cell, int]) -> float:
    """How long so many pairs of each cell take."""
    return sum(count * estimate_s(cell) for cell, count in missing.items())


def _is_of(cell: Cell, sample: Mapping[str, Any]) -> bool:
    return all(sample[name] == value for name, value in cell.factors().items())
