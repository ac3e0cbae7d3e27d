"""What `kvrelay bench policies` measures, in which order, and how long that takes. Pure.

Cells are told apart by `load`:

- `idle`: one request at a time, both arms of each;
- `busy`: requests come at random, at `UTILISATION` of what B's engine can recompute;
- `tail`: the same at four places of the grid, often enough for a p95;
- `partial`: one request at a time of whose prefix the first half lies on B's node already.

The order is that in which an interrupted run is worth most: first pairs, of short prompts that take
seconds; last where nothing is shared, so that all policies do the same. Every stage
begins with two rounds of all its cells; then each link gets what is missing in one visit, since
the policy that learns would else meet another link every minute.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kvrelay.bench.hit import check_lengths, prefill_estimate_s
from kvrelay.bench.options import parse_fractions, parse_lengths
from kvrelay.bench.policies_rows import BUSY, IDLE, PARTIAL, TAIL, Cell
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import SAME_NODE, estimated_transfer_s
from kvrelay.cluster.errors import ConfigError

FRACTIONS = (0.0, 0.25, 0.5, 0.95)
LENGTHS = (512, 2048, 6000)
LINKS = (SAME_NODE, "1gbit", "200mbit", "150mbit", "100mbit")
LOADS = (IDLE, BUSY, TAIL, PARTIAL)
TAIL_CELLS = (
    Cell(0.95, 512, SAME_NODE, TAIL),
    Cell(0.95, 512, "1gbit", TAIL),
    Cell(0.5, 1024, "200mbit", TAIL),
    Cell(0.95, 512, "100mbit", TAIL),
)
TAIL_REQUESTS = 400
BURST, LONG_BURST = 6, 3
# Twice as many: the machine is waited for before each block, and queues have time to grow.
TAIL_BURST = 12
UTILISATION = 0.7
_FIRST_ROUNDS = 2
_SHORT_TOKENS = 2048
# The machine becoming quiet, blocks being saved and heard of: of a pair, and of a live block.
_SETTLE_S, _BLOCK_SETTLE_S = 6.0, 3.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Cells that are measured before those of the next stage.

    Attributes:
        rounds: that each gets.
    """

    cells: tuple[Cell, ...]
    rounds: int

    def line(self, missing: Mapping[Cell, int], slowness: float) -> str:
        """What of it is missing, for people."""
        seconds, rounds = total_estimate_s(missing, slowness), sum(missing.values())
        tokens = sorted({cell.tokens for cell in missing})
        return (
            f"{self.cells[0].load}, {' and '.join(f'{each:,}' for each in tokens)} tokens: "
            f"{len(missing)} cells, {rounds} rounds of about {seconds / rounds:.0f} s, "
            f"together {duration(seconds)}"
        )


def grid(
    loads: Collection[str] = LOADS,
    links: Sequence[str] = LINKS,
    lengths: Sequence[int] = LENGTHS,
    fractions: Sequence[float] = FRACTIONS,
) -> list[Cell]:
    """All cells with these factors; those of tails differ in their links only.

    Raises:
        ConfigError: nothing can be measured at one of the lengths.
    """
    check_lengths(lengths)
    cells = [
        Cell(fraction, tokens, link, load)
        for load in (IDLE, BUSY, PARTIAL)
        if load in loads
        for fraction in fractions
        for tokens in lengths
        for link in links
        if load != PARTIAL or (fraction > 0 and link != SAME_NODE)
    ]
    return cells + [cell for cell in TAIL_CELLS if TAIL in loads and cell.link in links]


def smoke_grid() -> list[Cell]:
    """Eight cells in which one fixed rule is right in one half, and the other in the other."""
    links = (SAME_NODE, "100mbit")
    return [Cell(f, tokens, link) for f in (0.5, 0.95) for tokens in (512, 1024) for link in links]


def parse_cells(loads: str, links: str, tokens: str, shared: str) -> list[Cell]:
    """The grid of these options.

    Raises:
        ConfigError: one of them cannot be read.
    """
    lengths, fractions = parse_lengths(tokens), parse_fractions(shared)
    return grid(_parse_loads(loads), _parse_links(links), lengths, fractions)


def _parse_loads(text: str) -> tuple[str, ...]:
    """`idle,busy`, each once."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in LOADS:
            raise ConfigError(f"--loads {word}: known are {', '.join(LOADS)}")
    return words


def _parse_links(text: str) -> tuple[str, ...]:
    """`same-node,1gbit`, each once."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word != SAME_NODE:
            parse_link(word)
    return words


def num_requests(cell: Cell) -> int:
    """Requests of each arm in a round."""
    if cell.load == TAIL:
        return TAIL_BURST
    if cell.load != BUSY:
        return 1
    return BURST if cell.tokens <= _SHORT_TOKENS else LONG_BURST


def stages(cells: Sequence[Cell], rounds: int) -> list[Stage]:
    """Cells in the order in which they are measured, and how often."""
    kinds = [(IDLE, 0), (IDLE, 1), (TAIL, 0)]
    kinds += [(load, tier) for tier in (0, 1) for load in (BUSY, PARTIAL)]
    kinds += [(IDLE, 2), (BUSY, 2)]
    tail = -(-TAIL_REQUESTS // TAIL_BURST)
    found = []
    for kind in kinds:
        if group := tuple(cell for cell in cells if (cell.load, _tier(cell)) == kind):
            found.append(Stage(group, tail if kind[0] == TAIL else rounds))
    return found


def passes(stage: Stage) -> list[int]:
    """How many rounds each of its cells is to have before any gets more."""
    return sorted({min(_FIRST_ROUNDS, stage.rounds), stage.rounds})


def visits(missing: Mapping[Cell, int], rng: random.Random) -> list[Cell]:
    """The order of what is missing: link by link, there a round of each cell in turn."""
    order: list[Cell] = []
    links = list(dict.fromkeys(cell.link for cell in missing))
    for link in rng.sample(links, len(links)):
        left = {cell: count for cell, count in missing.items() if cell.link == link}
        while left:
            order += rng.sample(list(left), len(left))
            left = {cell: count - 1 for cell, count in left.items() if count > 1}
    return order


def estimate_s(cell: Cell, slowness: float = 1.0) -> float:
    """Roughly how long a round takes.

    Args:
        cell: what is measured.
        slowness: of the machine, against that of `prefill_estimate_s`.
    """
    whole_s = slowness * prefill_estimate_s(cell.tokens)
    shared_s = slowness * prefill_estimate_s(cell.shared_tokens)
    transfer_s = 0.0
    if cell.link != SAME_NODE:
        transfer_s = estimated_transfer_s(parse_link(cell.link), cell.shared_tokens)
    if cell.load == IDLE:
        return _SETTLE_S + whole_s + shared_s + 2 * (whole_s - shared_s) + transfer_s
    count = num_requests(cell)
    blocks = 3 if cell.load == TAIL else 4
    come_s = (count - 1) * whole_s / UTILISATION
    relays_s = 2 * max(0.0, count * transfer_s - come_s)
    return blocks * (_BLOCK_SETTLE_S + come_s + whole_s) + 2 * count * shared_s + relays_s


def total_estimate_s(missing: Mapping[Cell, int], slowness: float = 1.0) -> float:
    """How long so many rounds of each cell take."""
    return sum(count * estimate_s(cell, slowness) for cell, count in missing.items())


def duration(seconds: float) -> str:
    """For people: `3 h 20 min`."""
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"


def _tier(cell: Cell) -> int:
    if cell.load == TAIL:
        return 0
    if not cell.shared_tokens:
        return 2
    return int(cell.tokens > _SHORT_TOKENS)
