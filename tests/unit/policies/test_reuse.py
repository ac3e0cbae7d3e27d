"""The learned rate of uses, against processes whose rate is known."""

import numpy as np
import pytest

from kvrelay.policies.prefill import PrefillCost
from kvrelay.policies.reuse import NUM_OCTAVES, ReuseModel, octaves

NOTHING = np.zeros(0, np.int64), np.zeros(0)


def model() -> ReuseModel:
    return ReuseModel(groups=2, kinds=2, memory_lives=10**9)


def feed(reuse: ReuseModel, kind: int, uses_s: np.ndarray, seen_s: float) -> None:
    """Lives of which only those uses are known that came within `seen_s`."""
    known = uses_s[uses_s < seen_s]
    reuse.used(np.full(len(known), kind), known)
    for _ in range(len(uses_s) - len(known)):
        reuse.lost(kind, seen_s)


def test_octaves() -> None:
    ages_s = np.array([-1.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 1e30])
    expected = [0, 0, 0, 1, 2, 3, 3.585, NUM_OCTAVES - 1]
    assert octaves(ages_s) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("seen_s", [1e9, 60.0])
def test_a_constant_rate_is_found_at_every_age(seen_s: float) -> None:
    """Also if many lives were watched for only a while: that they go on is no loss."""
    rng = np.random.default_rng(1)
    reuse = model()
    feed(reuse, 0, rng.exponential(50.0, 40_000), seen_s)
    reuse.update(*NOTHING)
    ages_s = np.array([0.0, 1.0, 8.0, 30.0])
    rates = reuse.rate_per_s(np.zeros(4, np.int64), ages_s)
    assert rates == pytest.approx(0.02, rel=0.3)


def test_lives_that_still_last_count_as_exposed() -> None:
    rng = np.random.default_rng(1)
    few, many = model(), model()
    for reuse in (few, many):
        reuse.used(np.zeros(1000, np.int64), rng.exponential(10.0, 1000))
    few.update(*NOTHING)
    many.update(np.zeros(9000, np.int64), np.full(9000, 500.0))
    at = np.zeros(1, np.int64), np.array([20.0])
    assert many.rate_per_s(*at)[0] < 0.25 * few.rate_per_s(*at)[0]


def test_what_comes_after_a_pause_is_worth_waiting_for() -> None:
    """Uses come 64 to 128 s after the last: soon after it the rate is low, but not nothing."""
    rng = np.random.default_rng(1)
    reuse = model()
    reuse.used(np.zeros(20_000, np.int64), rng.uniform(64, 128, 20_000))
    reuse.update(*NOTHING)
    rates = reuse.rate_per_s(np.zeros(3, np.int64), np.array([1.0, 64.0, 400.0]))
    assert rates[0] > 0.5 / 128
    assert rates[1] > rates[0] > rates[2]


def test_classes_that_were_never_used_are_told_apart() -> None:
    rng = np.random.default_rng(1)
    reuse = model()
    feed(reuse, 0, rng.exponential(20.0, 5000), 300.0)
    feed(reuse, 3, np.full(5000, 1e9), 300.0)
    reuse.update(*NOTHING)
    rates = reuse.rate_per_s(np.arange(4), np.full(4, 10.0))
    assert rates[3] < 0.05 * rates[0]
    assert rates[3] < rates[1] <= rates[0], "what was not seen borrows from its kind and all"


def test_before_anything_was_seen_the_rate_falls_with_age() -> None:
    rates = model().rate_per_s(np.zeros(12, np.int64), 2.0 ** np.arange(12))
    assert (np.diff(rates) < 0).all()


def test_what_was_long_ago_is_forgotten() -> None:
    reuse = ReuseModel(groups=1, kinds=1, memory_lives=1000)
    reuse.used(np.zeros(1000, np.int64), np.full(1000, 10.0))
    at = np.zeros(1, np.int64), np.array([9.0])
    reuse.update(*NOTHING)
    before = reuse.rate_per_s(*at)[0]
    for _ in range(20):
        for _ in range(1000):
            reuse.lost(0, 5000.0)
        reuse.update(*NOTHING)
    assert reuse.rate_per_s(*at)[0] < 0.01 * before


def test_prefill_cost_is_that_of_the_measured_model() -> None:
    """TTFT without any hit, SmolLM2-135M on two cores, medians of 5."""
    cost = PrefillCost()
    for tokens, measured_s in ((512, 0.448), (1024, 0.949), (2048, 2.302), (7900, 19.17)):
        assert cost.fixed_s + cost.added_s(0, tokens) == pytest.approx(measured_s, rel=0.05)
    assert cost.added_s(0, 100) + cost.added_s(100, 300) == pytest.approx(cost.added_s(0, 300))
