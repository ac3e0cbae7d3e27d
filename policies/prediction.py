"""Which agent needs a prompt's KV next, and whether it pays to have it there before.

    Successors   requests as they arrive -> who comes next, and how likely that is
    Pull         seconds that having it there is expected to save, and to cost
    Accuracy     how often what was expected at a place has come, to correct what is believed

A request follows another one if most of its prompt is how the other one's began: so a workflow's
steps follow each other, and so do requests on one theme that begin with the same document. What one
agent is asked in a row counts as one turn, and what is learnt is which agent's turn comes after
whose: a Markov chain of first order whose counts fade. Prompts that share no beginning share no KV,
however alike they are, so likeness plays no part here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_CHUNKS = 1 << 16  # of prefixes whose last agent is remembered, see `affinity`
MAX_ROWS = 4096
# A request follows another one if that one's prompt covers at least this share of its own.
FOLLOWS_FROM = 0.5
# Turns that are remembered of an agent, and turns with nobody after them to begin with.
MEMORY_TURNS, PRIOR_TURNS = 64, 1.0
# What a second of the link costs that nobody else wants now: a request that comes meanwhile shares
# it, and both nodes' cores, with a few blocks at most before a pull gives way.
LINK_PRICE = 0.2
# What has to go is missed for about so long, until it is computed again or would have gone anyway.
DISPLACED_S = 60.0
# Pulls for an agent that are remembered, and pulls that are taken to have come true to begin with.
MEMORY_PULLS, PRIOR_PULLS = 32, 4.0


class Successor(NamedTuple):
    """The agent that is expected next, and the probability that it comes."""

    agent: str
    probability: float


class Foresight(NamedTuple):
    """What is known of a request when it arrives.

    Attributes:
        successor: who is expected after it; None if nobody is.
        foreseen: whether it had been expected itself; None if it begins something, goes on with its
            agent's own turn, or nobody had been expected.
    """

    successor: Successor | None
    foreseen: bool | None


@dataclass(slots=True)
class _Row:
    """An agent's turns, and who came after them."""

    turns: float = 0.0
    followers: dict[str, float] = field(default_factory=dict)

    def begin_turn(self) -> None:
        kept = 1 - 1 / MEMORY_TURNS
        self.turns = kept * self.turns + 1
        for agent in self.followers:
            self.followers[agent] *= kept

    def likeliest(self) -> Successor | None:
        if not self.followers:
            return None
        agent = max(self.followers, key=lambda each: self.followers[each])
        return Successor(agent, min(1.0, self.followers[agent] / (self.turns + PRIOR_TURNS)))


class _Last(NamedTuple):
    """Who had a prefix last, and who was expected after that."""

    agent: str
    expected: str | None


class Successors:
    """Who comes after whom. Bounded: what has been unused for longest is forgotten first."""

    def __init__(self, learns: bool, max_chunks: int = MAX_CHUNKS) -> None:
        """Nothing known.

        Args:
            learns: whether who comes next is learnt where nobody declares it.
            max_chunks: bounds what is remembered of prompts.
        """
        self._learns = learns
        self._max_chunks = max_chunks
        self._last: OrderedDict[bytes, _Last] = OrderedDict()
        self._rows: OrderedDict[tuple[Hashable, str], _Row] = OrderedDict()

    def saw(
        self, tenant: Hashable, agent: str, prefix: Sequence[bytes], declared: str | None = None
    ) -> Foresight:
        """A request has arrived: who is expected after it?

        Args:
            tenant: whose it is. Nothing is learnt of one tenant from another one's requests.
            agent: who is asked.
            prefix: of its prompt, from `affinity.prefix_hashes`.
            declared: who comes next, if the request says so.
        """
        known = None if declared is None else Successor(declared, 1.0)
        if not prefix:  # too short a prompt to be recognised again
            return Foresight(known, None)
        before = self._before(prefix)
        foreseen: bool | None = None
        if before is None or before.agent != agent:
            self._row(tenant, agent).begin_turn()
            if before is not None:
                followers = self._row(tenant, before.agent).followers
                followers[agent] = followers.get(agent, 0.0) + 1
                if before.expected is not None:
                    foreseen = before.expected == agent
        successor = known
        if successor is None and self._learns:
            successor = self._row(tenant, agent).likeliest()
        self._remember(prefix, _Last(agent, successor.agent if successor else None))
        return Foresight(successor, foreseen)

    def _before(self, prefix: Sequence[bytes]) -> _Last | None:
        for length in range(len(prefix), 0, -1):
            if length < FOLLOWS_FROM * len(prefix):
                return None
            if (last := self._last.get(prefix[length - 1])) is not None:
                return last
        return None

    def _row(self, tenant: Hashable, agent: str) -> _Row:
        row = self._rows.setdefault((tenant, agent), _Row())
        self._rows.move_to_end((tenant, agent))
        if len(self._rows) > MAX_ROWS:
            self._rows.popitem(last=False)
        return row

    def _remember(self, prefix: Sequence[bytes], last: _Last) -> None:
        for digest in reversed(prefix):  # so that the end of a prompt is forgotten before its head
            self._last[digest] = last
            self._last.move_to_end(digest)
        while len(self._last) > self._max_chunks:
            self._last.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Pull:
    """What is known of a pull before it is begun.

        saving = probability * min(transfer, prefill)      a request would do the cheaper of both
        cost   = LINK_PRICE * transfer + DISPLACED_S * displaced

    Attributes:
        probability: that somebody comes for what is pulled.
        transfer_s: seconds that reading it takes.
        prefill_s: seconds that computing it takes.
        displaced_per_s: worth of what would have to go for it, see `value_density`: seconds of
            prefill that keeping it is expected to save, per second.
    """

    probability: float
    transfer_s: float
    prefill_s: float
    displaced_per_s: float = 0.0

    @property
    def saving_s(self) -> float:
        """Seconds that it is expected to save."""
        return self.probability * min(self.transfer_s, self.prefill_s)

    @property
    def cost_s(self) -> float:
        """Seconds that it is expected to cost others."""
        return LINK_PRICE * self.transfer_s + DISPLACED_S * self.displaced_per_s

    @property
    def pays(self) -> bool:
        """Whether it saves more than it costs."""
        return self.saving_s > self.cost_s


class Accuracy:
    """How pulls for one agent have turned out at one place.

    A probability is multiplied by what has come of what was expected. Each pull that is passed over
    lets some of that fade: so those that have gone badly are tried again later.
    """

    def __init__(self) -> None:
        self._expected = self._came = 0.0

    def corrected(self, probability: float) -> float:
        """The probability as experience has it."""
        share = (self._came + PRIOR_PULLS) / (self._expected + PRIOR_PULLS)
        return min(1.0, probability * share)

    def settled(self, probability: float, used_share: float) -> None:
        """A pull that was expected to be used with this probability: how much of it was, 0 to 1."""
        self.passed()
        self._expected += probability
        self._came += used_share

    def passed(self) -> None:
        """A pull has been passed over."""
        kept = 1 - 1 / MEMORY_PULLS
        self._expected *= kept
        self._came *= kept
