"""Estimators in worlds of known truth: 200 draws, bounds that a right one misses once in 1,000.

The 1,000 draws of `make validate` are committed as bench/results/validate.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kvrelay.bench.audit.analysis import checks, simulate, validate
from kvrelay.bench.audit.analysis.validate import Trial, bounds, coverage, rates

DRAWS, SEED = 200, 7
COMMITTED = Path(__file__).resolve().parents[4] / "bench" / "results" / "validate.json"
NAMES = [name for trial in validate.TRIALS for name in trial.estimators]


@pytest.fixture(scope="module")
def covered() -> dict[str, int]:
    return {row["estimator"]: row["covered"] for row in coverage(validate.TRIALS, DRAWS, SEED)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_the_truth(covered: dict[str, int], name: str) -> None:
    low, high = bounds(DRAWS, 0.95)
    assert low <= covered[name] <= high


@pytest.mark.slow
def test_false_positives_are_about_five_per_cent() -> None:
    most = bounds(DRAWS, 0.05)[1]
    for row in rates(validate.FALSE_POSITIVES, DRAWS, SEED):
        assert row["seen"] <= most, row["event"]


@pytest.mark.slow
def test_what_is_planted_is_found_and_nothing_else() -> None:
    for row in rates(validate.FOUND, 50, SEED):
        assert row["rate"] >= validate.FOUND_AT_LEAST, row["event"]
    for row in rates(validate.FALSE_ALARMS, 50, SEED):
        assert row["seen"] <= bounds(50, checks.ALPHA)[1], row["event"]


def test_bounds_are_those_of_the_binomial() -> None:
    low, high = bounds(200, 0.95)
    inside = stats.binom.cdf(high, 200, 0.95) - stats.binom.cdf(low - 1, 200, 0.95)
    assert inside >= 0.999
    assert 175 < low < 190 < high <= 200


def test_an_interval_that_is_too_narrow_is_found_out() -> None:
    """The validation itself can fail: requests of a session taken for independent."""

    def blind(data: simulate.Data, seed: int) -> validate.Estimate:
        return validate.difference(data, seed)

    (row,) = coverage([Trial(simulate.sessions, {"blind": ("direct", blind)})], 100, SEED)
    assert row["covered"] < bounds(100, 0.95)[0]


def test_draws_have_seeds_of_their_own() -> None:
    trial = [Trial(simulate.randomised, {"neyman": ("direct", validate.difference)})]
    one, again = coverage(trial, 5, 1), coverage(trial, 5, 1)
    assert one == again
    assert coverage(trial, 5, 2) != one


def test_worlds_are_what_they_say() -> None:
    """Means over one large draw, against the truth that is claimed."""
    world = simulate.randomised(np.random.default_rng(1), n=200_000)
    y, treated = world.data.number("ttft_s"), world.data.text("arm") == "relay"
    effect = y[treated].mean() - y[~treated].mean()
    assert effect == pytest.approx(world.truth["direct"], abs=0.01)
    heavy = simulate.heavy_sessions(np.random.default_rng(1), count=40_000)
    y, treated = heavy.data.number("ttft_s"), heavy.data.text("arm") == "relay"
    for share in (0.5, 0.99):
        seen = np.quantile(y[treated], share) - np.quantile(y[~treated], share)
        assert seen == pytest.approx(heavy.truth[f"{share:g}"], rel=0.05)


def test_the_committed_validation_passed_with_a_thousand_draws() -> None:
    committed = json.loads(COMMITTED.read_text())
    assert committed["passed"] and committed["draws"] == 1000
    assert [row["estimator"] for row in committed["coverage"]] == NAMES
    for row in committed["coverage"]:
        assert 0.93 <= row["coverage"] <= 0.97, row["estimator"]


@pytest.mark.slow
def test_the_committed_validation_can_be_had_again() -> None:
    committed = json.loads(COMMITTED.read_text())
    again = coverage(validate.TRIALS[:3], committed["draws"], committed["seed"])
    for row, seen in zip(committed["coverage"], again, strict=False):
        assert row["covered"] == seen["covered"], row["estimator"]
        assert row["mean_estimate"] == pytest.approx(seen["mean_estimate"], abs=1e-6)
