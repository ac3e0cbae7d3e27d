"""Assignment and order: which request has which arm, when, and beside what. Pure, all by the seed.

A unit is what is measured or not, as a whole: a run that was killed goes on with the next one. It
has blocks, each of which begins when the machine is quiet and the caches hold what A has computed
for all its requests; between blocks whatever was queued has drained, which is their wash-out.

    paired, aa    a block for each arm, of the same requests; in Latin squares (two arms: AB, BA)
    sessions      one block of one session, whose arm was drawn in cycles of all arms: for all turns
    switchback    one block, all of whose requests have one arm: a coin for each two blocks
    saturation, randomised    one block, of which a share is treated, at random places
    staggered     one block for both receivers, in turn
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of B's, with the turn of A's before it.

    Attributes:
        arm: which it has.
        text: seed of its prompts: requests with the same one are the same.
        propensity: chance of this arm, for this request.
        gap: after the one before, over the mean of such gaps.
        receiver: 0 is B, 1 another engine on its node.
    """

    arm: str
    text: int
    propensity: float = 1.0
    gap: float = 0.0
    receiver: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """What is measured as a whole.

    Attributes:
        design: see `schema.Design`.
        stratum: the same for all its requests.
        blocks: of requests, in order.
        number: within its design and stratum.
        pair: of blocks that belong together, in other units too; None if rows pair within it.
        block: number in time, where time is the design's subject.
        saturation: share that is treated.
        utilisation: of B's engine, for the gaps.
        drain_times: how many times as long as its queues take to empty a block has to last.
        shape, turns: of a session, A's first turn included.
    """

    design: str
    stratum: Stratum
    blocks: tuple[tuple[Ask, ...], ...]
    number: int
    pair: str | None = None
    block: int | None = None
    saturation: float | None = None
    utilisation: float = 1.0
    drain_times: float = 0.0
    shape: Shape = Shape.PIPELINE
    turns: int = HAND_OVER
    key: str = field(init=False)

    def __post_init__(self) -> None:
        """The key names the content: a plan that changes a unit makes it another one."""
        content: tuple[object, ...] = (self.design, self.stratum, self.blocks, self.pair)
        content += (self.utilisation,)
        if (self.shape, self.turns) != (Shape.PIPELINE, HAND_OVER):
            content += (str(self.shape), self.turns)
        digest = hashlib.sha256(repr(content).encode()).hexdigest()[:6]
        name = f"{self.design}/{self.stratum.name}/{self.number}-{digest}"
        object.__setattr__(self, "key", name)

    @property
    def arms(self) -> tuple[str, ...]:
        """Of its requests, each once."""
        return tuple(dict.fromkeys(ask.arm for block in self.blocks for ask in block))

    @property
    def requests(self) -> int:
        """Of B's, and of a session all that follow A's first turn: so many rows."""
        return sum(len(block) for block in self.blocks) * (self.turns - 1)


def rng_of(seed: int, *names: object) -> random.Random:
    """A source of chance of its own for each purpose: what else is drawn does not disturb it."""
    words = "/".join(map(str, (seed, *names)))
    return random.Random(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big"))


def texts_of(seed: int, count: int, *names: object) -> list[int]:
    """Seeds of that many different prompts."""
    return rng_of(seed, "text", *names).sample(range(2**48), count)


def square(size: int) -> list[list[int]]:
    """Orders of `size` arms in which each is at every place, and behind every other, equally often.

    Source: E. J. Williams, "Experimental designs balanced for the estimation of residual effects
    of treatments", Australian Journal of Scientific Research A 2 (1949): one square for even
    sizes, a square and its mirror image for odd ones.
    """
    first, low, high = [0], 1, size - 1
    while len(first) < size:
        first.append(low)
        low += 1
        if len(first) < size:
            first.append(high)
            high -= 1
    rows = [[(place + shift) % size for place in first] for shift in range(size)]
    return rows if size % 2 == 0 else rows + [row[::-1] for row in rows]


def orders(arms: Sequence[T], count: int, rng: random.Random) -> list[list[T]]:
    """So many orders of arms: squares, whose rows and arms are shuffled each time.

    Of two arms that is AB BA or BA AB, again and again: in time, ABBA.
    """
    found: list[list[T]] = []
    while len(found) < count:
        named = rng.sample(arms, len(arms))
        rows = square(len(arms))
        found += [[named[place] for place in row] for row in rng.sample(rows, len(rows))]
    return found[:count]


def cycles(counts: dict[T, int], rng: random.Random) -> list[T]:
    """Each key so often, spread over time: every cycle has each that is left, in random order."""
    left, found = dict(counts), list[T]()
    while left := {key: count for key, count in left.items() if count > 0}:
        found += rng.sample(list(left), len(left))
        left = {key: count - 1 for key, count in left.items()}
    return found


def coin_flips(count: int, rng: random.Random) -> list[bool]:
    """Independent and fair."""
    return [rng.random() < 0.5 for _ in range(count)]


def treated_places(count: int, share: float, rng: random.Random) -> set[int]:
    """Which of `count` requests are treated: as near to the share as whole requests go."""
    return set(rng.sample(range(count), round(share * count)))


def gaps(count: int, rng: random.Random) -> list[float]:
    """Between arrivals of a Poisson stream, over their mean; the first comes at once."""
    return [0.0, *(rng.expovariate(1.0) for _ in range(count - 1))]
