"""`kvrelay bench policies`: what each arm takes, on the same requests, by cell.

    node-1: client, proxy, ingress, `b`, `a-near`  <-- link -->  node-2: `a`

A pair is one prompt, under two salts of its own so that its arms share no cache:

    salt 1    b: prompt, mode `recompute`                               -> recompute_s
    salt 2    a or a-near: the shared prefix
              b: prompt, mode `relay`: all of the prefix                -> relay_s
              a or a-near: prompt, relay refused, the prefix at hand    -> local_hit_s

The recomputation comes at a random place among the others (but not between the prefix and its
relay, where what it saves could push the prefix out). As in `bench topology`, B is asked when A's
store has committed and B's store has heard of it; the answers are of one token and not streamed,
since they carry the record; and a relay counts only if it took the link. Blocks come in one way
between nodes, the same in all cells.

B's engine has the policy `cost`, which the modes overrule here: so every relay's record says what
was predicted of both arms. What cannot be told from pairs is measured live, see policies_live.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvrelay.bench.alike import Cosine
from kvrelay.bench.answers import Answer, AnswerClient
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.errors import Miscount
from kvrelay.bench.hit import blocks_saved, local_hit_tokens, prefill_estimate_s
from kvrelay.bench.places import Place
from kvrelay.bench.policies_rows import Cell, cell_of
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import FAR, NEAR, SAME_NODE, B
from kvrelay.bench.wires import Wire, check_path
from kvrelay.policies.modes import Mode

WAY = ("nixl", "raw")
WARM_UP_TOKENS = 512
# After a change of the link: sizes of prefixes, from which the policy learns what it is now. Where
# all that is measured is shorter, they are shorter as well.
SETTLING = (256, 1024, 512, 2048, 384, 1536)


@dataclass(slots=True)
class Bench:
    """One running cluster and what is needed to measure on it.

    Attributes:
        here: the node of B and of the client; `there` the other one, and `wire` the way to it.
        name: of this run, in its salts.
        alone_s: how long B takes to recompute a prompt of so many tokens; filled by `warm_up`.
        cosine: of a prompt and of the prefix that A has, for `similarity`; None measures none.
    """

    client: AnswerClient
    here: Place
    there: Place
    wire: Wire
    prompts: PromptSource
    gate: QuietGate
    name: str
    alone_s: dict[int, float] = field(default_factory=dict)
    cosine: Cosine | None = None
    _num_salts: int = field(default=0, init=False)
    _link: str = field(default="", init=False)
    _since_link: int = field(default=0, init=False)

    def warm_up(self, cells: Sequence[Cell], rng: random.Random) -> None:
        """Let every engine compute, save, load and hit once, over every link; nothing is kept.

        Raises: as `pair`.
        """
        for link in dict.fromkeys(cell.link for cell in cells):
            self.pair(Cell(0.5, WARM_UP_TOKENS, link), rng)
        for tokens in sorted({cell.tokens for cell in cells}):
            found: Row = self._begun(Cell(0.0, tokens, SAME_NODE))
            self._recompute(found, Cell(0.0, tokens, SAME_NODE), self.prompts.take(tokens).shared)
            self.alone_s[tokens] = found["recompute_s"]

    @property
    def slowness(self) -> float:
        """Of this machine, against what estimates are made for; after `warm_up`."""
        return sum(self.alone_s.values()) / sum(map(prefill_estimate_s, self.alone_s))

    def be_at(self, link: str) -> bool:
        """Have the wire be this link from now on; whether it was another one before."""
        if link == self._link:
            return False
        if link != SAME_NODE:
            self.wire.set_link(parse_link(link))
        self._link, self._since_link = link, 0
        return True

    def pair(self, cell: Cell, rng: random.Random) -> Row:
        """Measure both arms of one request.

        Raises:
            Miscount: an engine reused other tokens than the arm claims.
            WrongPath: a relay did not go over its link.
            BenchError: an agent failed, or blocks were not saved or not heard of.
        """
        self.be_at(cell.link)
        prompt = self.prompts.take(cell.tokens).shared
        found, salt = self._begun(cell), self.salt()
        steps: list[Callable[[], None]] = [lambda: self._relay(found, cell, prompt, salt)]
        if cell.shared_tokens:
            steps.append(lambda: self._at_owner(found, cell, prompt, salt))
        place = rng.randrange(len(steps) + 1)
        steps.insert(place, lambda: self._recompute(found, cell, prompt))
        for step in steps:
            step()
        self._since_link += cell.shared_tokens > 0
        return {**found, "recompute_place": place, "similarity": self.similarity(cell, prompt)}

    def similarity(self, cell: Cell, prompt: Sequence[int]) -> float | None:
        """Of a prompt to the prefix that A has; None if it has none, or nothing measures it."""
        if self.cosine is None or not cell.shared_tokens:
            return None
        return self.cosine(prompt[: cell.shared_tokens], prompt)

    def _begun(self, cell: Cell) -> Row:
        since = {"relays_since_link": self._since_link}
        return {**cell.factors(), **since, "local_hit_s": None, "watched": {}}

    # Arms

    def _recompute(self, found: Row, cell: Cell, prompt: Sequence[int]) -> None:
        since = self.here.store.committed()
        answer = self._ask(
            found, "recompute_s", B, prompt, self.salt(), cached=0, mode=Mode.RECOMPUTE
        )
        found["recompute_first_token_s"] = answer.record["first_token_s"]
        self.here.store.wait(since, blocks_saved(cell.tokens))

    def _relay(self, found: Row, cell: Cell, prompt: Sequence[int], salt: str) -> None:
        shared = cell.shared_tokens
        if shared:
            self.gate.wait()
            self.prime(cell, [(prompt[:shared], salt)])
        since, before = self.here.store.committed(), self.received_bytes()
        answer = self._ask(found, "relay_s", B, prompt, salt, cached=shared, mode=Mode.RELAY)
        if shared:
            self.check_path(cell, answer.record, self.received_bytes() - before)
        found["record"] = without_overhead(answer.record)
        self.here.store.wait(since, blocks_saved(cell.tokens, shared))

    def _at_owner(self, found: Row, cell: Cell, prompt: Sequence[int], salt: str) -> None:
        _, agent = self.source(cell)
        cached = local_hit_tokens(cell.shared_tokens)
        self._ask(found, "local_hit_s", agent, prompt, salt, cached=cached, mode=Mode.RECOMPUTE)

    # Steps

    def prime(self, cell: Cell, prefixes: Sequence[tuple[Sequence[int], str]]) -> None:
        """Have A compute these prefixes, each under its salt, and B's store hear of them.

        Raises:
            Miscount: it had one of them.
            BenchError: it failed, or blocks were not saved or not heard of.
        """
        source, agent = self.source(cell)
        for prefix, salt in prefixes:
            self.compute(source, agent, prefix, salt)
        if source is not self.here:
            self.here.wait_known(source)

    def compute(self, place: Place, agent: str, prompt: Sequence[int], salt: str) -> None:
        """Have an agent compute a prompt, until its node's store has it.

        Raises:
            Miscount: it had some of it.
            BenchError: it failed, or blocks were not saved.
        """
        since = place.store.committed()
        answer = self.client.answer(agent, prompt, mode=Mode.RECOMPUTE, salt=salt)
        if answer.cached_tokens:
            raise Miscount(f"agent '{agent}' had {answer.cached_tokens} tokens of a new prompt")
        place.store.wait(since, blocks_saved(len(prompt)))

    def settle(self, cell: Cell, back: bool = False) -> None:
        """Some relays over this link, for the policy to learn what it is now; nothing is kept.

        Args:
            cell: its link.
            back: from B to A instead.

        Raises:
            BenchError: an agent failed, or blocks were not saved or not heard of.
        """
        ends = [self.source(cell), (self.here, B)]
        (source, agent), (place, reader) = reversed(ends) if back else ends
        longest = max(SETTLING)
        share = min(1.0, max(self.alone_s, default=longest) / longest)
        for size in SETTLING:
            tokens = max(BLOCK_TOKENS, round(share * size))
            prompt, salt = self.prompts.some(tokens + 1), self.salt()
            self.compute(source, agent, prompt[:tokens], salt)
            if source is not place:
                place.wait_known(source)
            since = place.store.committed()
            self.client.answer(reader, prompt, mode=Mode.RELAY, salt=salt)
            place.store.wait(since, blocks_saved(len(prompt), tokens))

    def check_path(
        self, cell: Cell, record: Mapping[str, Any], received: int, there: bool = False
    ) -> None:
        """Fail if a relay did not go where its cell says, to B's node or `there`.

        Raises:
            WrongPath: with what was found.
        """
        if cell.link == SAME_NODE:
            check_path(SAME_NODE, None, record, received)
        else:
            self.wire.check(parse_link(cell.link), record, received, there)

    def source(self, cell: Cell) -> tuple[Place, str]:
        """Where the prefix is computed, and by whom."""
        return (self.here, NEAR) if cell.link == SAME_NODE else (self.there, FAR)

    def salt(self) -> str:
        """Another one each time."""
        self._num_salts += 1
        return f"{self.name}-{self._num_salts}"

    def received_bytes(self, there: bool = False) -> int:
        """What has come in at B's node so far, or at the other one."""
        return self.wire.received_bytes(there) or 0

    def _ask(
        self,
        found: Row,
        measure: str,
        agent: str,
        prompt: Sequence[int],
        salt: str,
        *,
        cached: int,
        mode: Mode,
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


def without_overhead(record: Mapping[str, Any]) -> Row:
    """What a record says of its request."""
    return {name: value for name, value in record.items() if name != "overhead"}


def num_measured(samples: Sequence[Row], cell: Cell) -> int:
    """Rounds of a cell so far."""
    return sum(cell_of(sample) == cell for sample in samples)
