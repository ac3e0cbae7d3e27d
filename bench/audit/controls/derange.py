"""Whose KV stands in for whose: a permutation of examples that leaves nobody its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence

from kvrelay.bench.errors import BenchError


def deranged(groups: Sequence[Hashable], rng: random.Random) -> list[int]:
    """A donor for every example, each example donor once, and never of the example's own group.

    Examples of one group begin alike, so that the KV of one is partly right for another. If every
    example has a group of its own, the permutation is one cycle in random order.

    Args:
        groups: of each example.
        rng: decides the order.

    Raises:
        BenchError: there is no such permutation, since a group has more than half of the examples.
    """
    largest = max(Counter(groups).values(), default=0)
    if not 0 < 2 * largest <= len(groups):
        raise BenchError(
            f"of {len(groups)} examples {largest} begin alike: nobody else's KV can stand in for "
            "theirs; give at least as many that begin otherwise"
        )
    order = list(range(len(groups)))
    rng.shuffle(order)
    rank = {group: n for n, group in enumerate(dict.fromkeys(groups[i] for i in order))}
    order.sort(key=lambda i: rank[groups[i]])
    # Groups are runs of at most `largest` in this order. Whoever stands `largest` further on, or
    # by at least as much further back where the order begins anew, is in another run.
    donors = [0] * len(order)
    for at, example in enumerate(order):
        donors[example] = order[(at + largest) % len(order)]
    return donors
