"""Statistics of the benchmarks."""

from __future__ import annotations

import random

import pytest

from kvrelay.bench.stats import (
    figure,
    geometric_mean,
    interval_over_strata,
    paired_ratios,
    ratio_interval,
    ratio_of_medians,
)


def test_a_figure_has_its_range_and_count() -> None:
    assert figure([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0, "n": 3}
    assert figure([1.0, 2.0])["median"] == 1.5
    with pytest.raises(ValueError, match="at least one"):
        figure([])


def test_ratios() -> None:
    assert ratio_of_medians([2, 4, 100], [1, 2, 3]) == 2.0
    assert paired_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="pair"):
        paired_ratios([1.0], [1.0, 2.0])
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_the_interval_is_seeded_and_holds_the_estimate() -> None:
    rng = random.Random(7)
    strata = {i: [rng.gauss(1.01, 0.02) for _ in range(13)] for i in range(3)}
    interval = ratio_interval(strata, seed=1)
    assert interval == ratio_interval(strata, seed=1)
    assert interval.low < interval.estimate < interval.high
    assert interval.n == 39
    assert 0.99 < interval.low < interval.high < 1.03


def test_every_stratum_counts_the_same() -> None:
    assert ratio_interval({0: [1.0] * 30, 1: [4.0]}, seed=1).estimate == pytest.approx(2.0)


def test_the_interval_covers_what_it_should() -> None:
    """Of 95 % intervals over samples around 1, about 95 % hold 1."""
    rng = random.Random(3)
    hits = 0
    for seed in range(150):
        strata = {i: [rng.lognormvariate(0, 0.05) for _ in range(13)] for i in range(3)}
        interval = ratio_interval(strata, seed, num_draws=400)
        hits += interval.low <= 1 <= interval.high
    assert 130 <= hits <= 149


def test_what_differs_between_strata_is_in_the_interval_over_them() -> None:
    """Pairs hardly differ within a stratum here, so the other interval misses the truth mostly."""
    rng = random.Random(5)
    hits = within = 0
    for seed in range(200):
        strata = {}
        for start in range(6):
            shift = rng.lognormvariate(0, 0.03)
            strata[start] = [shift * rng.lognormvariate(0, 0.01) for _ in range(5)]
        interval = interval_over_strata(strata)
        assert interval is not None and interval.n == 6
        hits += interval.low <= 1 <= interval.high
        other = ratio_interval(strata, seed, num_draws=200)
        within += other.low <= 1 <= other.high
    assert 180 <= hits <= 199
    assert within < 100
    assert interval_over_strata({n: [1.0, 2.0] for n in range(3)}) is None


@pytest.mark.parametrize("strata", [{}, {0: []}, {0: [1.0], 1: [0.0]}])
def test_no_interval_without_ratios(strata: dict[int, list[float]]) -> None:
    with pytest.raises(ValueError, match="ratio"):
        ratio_interval(strata, seed=1)
