"""Donors: a permutation that leaves no example the KV of its own group, or an error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrelay.bench.audit.controls.derange import deranged
from kvrelay.bench.errors import BenchError


@given(st.lists(st.integers(0, 4), max_size=14), st.integers(0, 1000))
def test_donors_are_a_permutation_across_groups_or_there_is_none(
    groups: list[int], seed: int
) -> None:
    largest = max((groups.count(group) for group in groups), default=0)
    if not groups or 2 * largest > len(groups):
        with pytest.raises(BenchError, match="begin alike"):
            deranged(groups, random.Random(seed))
        return
    donors = deranged(groups, random.Random(seed))
    assert sorted(donors) == list(range(len(groups)))
    assert all(groups[donor] != groups[n] for n, donor in enumerate(donors))


def test_one_example_has_no_other() -> None:
    with pytest.raises(BenchError, match="of 1 examples 1 begin alike"):
        deranged(["only"], random.Random(1))


def test_the_seed_decides() -> None:
    def donors(seed: int) -> tuple[int, ...]:
        return tuple(deranged(range(8), random.Random(seed)))

    assert donors(1) == donors(1)
    assert len({donors(seed) for seed in range(20)}) > 10
