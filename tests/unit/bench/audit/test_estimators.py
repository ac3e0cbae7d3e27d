"""Each estimator against what is known of it: another library, a hand-made number, an identity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests

from kvrelay.bench.audit.analysis import simulate
from kvrelay.bench.audit.analysis.effects import covariates
from kvrelay.bench.audit.analysis.graph import graph, identification, is_back_door
from kvrelay.bench.audit.estimate import (
    aipw,
    cate,
    did,
    equivalence,
    iv,
    neyman,
    observational,
    quantile,
    randomisation,
    regression,
    saturation,
    stratified,
    switchback,
)
from kvrelay.bench.audit.estimate.base import Estimate

RNG = np.random.default_rng


def test_the_difference_is_welchs() -> None:
    rng = RNG(1)
    y, treated = rng.normal(2.0, 1.0, 40), np.arange(40) % 3 == 0
    found = neyman.difference(y, treated)
    other = stats.ttest_ind(y[treated], y[~treated], equal_var=False)
    interval = other.confidence_interval(0.95)
    assert found.p == pytest.approx(other.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.control_mean == pytest.approx(y[~treated].mean())


def test_pairs_are_students_and_are_clustered_where_a_session_has_several() -> None:
    rng = RNG(2)
    zero = rng.normal(2.0, 1.0, 24)
    one = zero - 0.5 + rng.normal(0.0, 0.1, 24)
    found = neyman.within_pairs(one, zero, np.arange(24))
    assert found.p == pytest.approx(stats.ttest_rel(one, zero).pvalue)
    # The mean of balanced clusters: exactly Student's t of the clusters' means.
    sessions = np.repeat(np.arange(6), 4)
    clustered = neyman.within_pairs(one, zero, sessions)
    by_session = stats.ttest_1samp((one - zero).reshape(6, 4).mean(axis=1), 0.0)
    assert clustered.p == pytest.approx(by_session.pvalue)
    assert clustered.degrees == pytest.approx(5.0)
    assert clustered.sessions == 6


def test_relative_effects_are_ratios_with_their_own_error() -> None:
    rng = RNG(3)
    own = rng.lognormal(0.0, 1.0, 200)
    found = neyman.within_pairs(0.5 * own, own)
    # Relay takes exactly half of each: the ratio has no error, though the difference has.
    assert found.relative()[0] == pytest.approx(-0.5)
    assert found.high - found.low > 0.1
    _, low, high = found.relative()
    assert high - low < 1e-9


def test_nothing_is_said_without_data_or_variation() -> None:
    for found in (
        neyman.difference(np.array([1.0, 2.0]), np.array([True, False])),
        neyman.within_pairs(np.array([1.0]), np.array([2.0])),
        neyman.within_pairs(np.ones(9), np.zeros(9)),
        stratified.stratified(np.ones(2), np.array([True, False]), np.zeros(2, np.int64)),
    ):
        assert (found.low, found.high, found.p) == (-math.inf, math.inf, None)
        assert found.note


def test_strata_are_weighted_by_their_size() -> None:
    y = np.array([1.0, 3.0, 5.0, 7.0, 10.0, 12.0, 20.0, 22.0, 11.0, 12.0, 21.0, 22.0])
    treated = np.array(
        [False, False, True, True, False, False, True, True, False, False, True, True]
    )
    strata = np.array([0] * 4 + [1] * 8)
    found = stratified.stratified(y, treated, strata)
    # Differences 4 and 10 (21.25 - 11.25), shares 1/3 and 2/3.
    assert found.estimate == pytest.approx(8.0)
    v = (1 / 9) * (2 / 2 + 2 / 2) + (4 / 9) * (11 / 12 / 4 + 11 / 12 / 4)
    reach = (found.high - found.low) / 2
    assert reach == pytest.approx(stats.t.ppf(0.975, found.degrees) * math.sqrt(v))
    alone = stratified.stratified(y, treated, np.array([0] * 4 + [1] * 7 + [2]))
    assert "1 strata without both arms left out" in alone.note


def test_stratified_pairs_take_out_differences_between_strata() -> None:
    rng = RNG(4)
    strata = np.repeat([0, 1], 20)
    zero = np.full(40, 5.0)
    one = zero + np.where(strata == 0, -3.0, 1.0) + rng.normal(0.0, 0.1, 40)
    pooled = neyman.within_pairs(one, zero)
    apart = stratified.stratified_pairs(one, zero, strata, np.arange(40))
    assert apart.estimate == pytest.approx(pooled.estimate)
    assert apart.high - apart.low < 0.1 * (pooled.high - pooled.low)


def test_stratified_pairs_of_one_session_count_together() -> None:
    rng = RNG(40)
    zero = np.full(40, 5.0)
    one = zero + np.repeat(rng.normal(size=10), 4)
    sessions, strata = np.repeat(np.arange(10), 4), np.repeat([0, 1], 20)
    found = stratified.stratified_pairs(one, zero, strata, sessions)
    means, halves = (one - zero)[::4], np.repeat([0, 1], 5)
    alone = stratified.stratified_pairs(means, np.zeros(10), halves, np.arange(10))
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))
    assert (found.n, found.sessions) == (40, 10)


def test_hc2_without_covariates_is_neymans_variance() -> None:
    rng = RNG(5)
    y, treated = rng.normal(size=30), np.arange(30) < 11
    found = regression.lin(y, treated, np.empty((30, 0)))
    v = y[treated].var(ddof=1) / 11 + y[~treated].var(ddof=1) / 19
    reach = (found.high - found.low) / 2
    assert reach == pytest.approx(stats.t.ppf(0.975, 28) * math.sqrt(v))


def test_cr2_with_clusters_of_one_is_hc2() -> None:
    rng = RNG(6)
    x = np.column_stack([np.ones(30), np.arange(30) % 2, rng.normal(size=30)])
    y = rng.normal(size=30) * (1.0 + x[:, 1])
    estimate, error, degrees = regression.cr2(y, x, np.arange(30), 1)
    other = OLS(y, x).fit(cov_type="HC2", use_t=True)
    assert estimate == pytest.approx(other.params[1])
    assert error == pytest.approx(other.bse[1])
    assert 2.0 < degrees < 28.0


def test_cr2_by_its_definition() -> None:
    """With full matrices, instead of one small one for each cluster."""
    rng = RNG(7)
    clusters = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4])
    n = len(clusters)
    x = np.column_stack([np.ones(n), clusters % 2, rng.normal(size=n)])
    y = rng.normal(size=n)
    bread = np.linalg.inv(x.T @ x)
    m = np.eye(n) - x @ bread @ x.T
    columns, scores = [], []
    for g in range(5):
        rows = clusters == g
        values, vectors = np.linalg.eigh(m[np.ix_(rows, rows)])
        root = vectors @ np.diag(values**-0.5) @ vectors.T
        column = m[:, rows] @ root @ (x[rows] @ bread[:, 1])
        columns.append(column)
        scores.append(column @ y)
    gram = np.array(columns) @ np.array(columns).T
    _, error, degrees = regression.cr2(y, x, clusters, 1)
    assert error == pytest.approx(math.sqrt(sum(s * s for s in scores)))
    assert degrees == pytest.approx(np.trace(gram) ** 2 / (gram * gram).sum())


def test_adjustment_narrows_the_interval_and_keeps_the_truth() -> None:
    world = simulate.randomised(RNG(8), n=2000, fixed=True)
    y, treated = world.data.number("ttft_s"), world.data.text("arm") == "relay"
    plain = neyman.difference(y, treated)
    found = regression.lin(y, treated, covariates(world.data))
    assert found.covers(world.truth["direct"])
    assert found.high - found.low < 0.6 * (plain.high - plain.low)


def test_covariates_that_follow_from_others_are_left_out() -> None:
    rng = RNG(9)
    treated = np.arange(40) % 2 == 0
    a = rng.normal(size=40)
    x = regression.design_matrix(treated, np.column_stack([a, 2.0 * a, np.ones(40)]))
    assert x.shape[1] == np.linalg.matrix_rank(x) == 4


def test_aipw_is_right_where_the_difference_is_not() -> None:
    world = simulate.randomised(RNG(10), n=4000, uneven=True)
    data = world.data
    y, treated = data.number("ttft_s"), data.text("arm") == "relay"
    probability = np.where(treated, data.number("propensity"), 1.0 - data.number("propensity"))
    noise = RNG(1).normal(size=(len(y), 2))
    for x in (covariates(data), noise, np.empty((len(y), 0))):
        found = aipw.aipw(y, treated, probability, x, seed=0)
        assert found.covers(world.truth["direct"])
        assert found == aipw.aipw(y, treated, probability, x, seed=0)
    assert not neyman.difference(y, treated).covers(world.truth["direct"])


def test_aipw_says_when_an_arm_is_rare() -> None:
    world = simulate.randomised(RNG(11))
    y, treated = world.data.number("ttft_s"), world.data.text("arm") == "relay"
    found = aipw.aipw(y, treated, np.full(len(y), 0.01), np.empty((len(y), 0)), seed=0)
    assert "probability 0.01" in found.note


def test_holm_by_hand() -> None:
    assert cate.holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert cate.holm([None]) == [None]
    p_values = RNG(41).random(30) ** 3
    assert cate.holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_strata_without_both_arms_are_not_there() -> None:
    y = np.arange(8.0)
    treated = np.array([True, False] * 2 + [True] * 4)
    found = cate.by_stratum(y, treated, np.array(["a"] * 4 + ["b"] * 4))
    assert set(found) == {"a"}


def test_the_instrument_gives_walds_ratio() -> None:
    world = simulate.noncompliance(RNG(12))
    data = world.data
    y, z, d = data.number("ttft_s"), data.text("arm") == "relay", data.flag("completed")
    found = iv.complier(y, z, d)
    wald = (y[z].mean() - y[~z].mean()) / (d[z].mean() - d[~z].mean())
    assert found.estimate == pytest.approx(wald)
    assert found.covers(world.truth["complier"])
    # Comparing by what completed is wrong: requests that do not complete take longer anyway.
    assert not neyman.difference(y, d).covers(world.truth["complier"])
    assert iv.complier(y, z, np.zeros(len(y), np.bool_)).p is None


def test_the_instrument_within_pairs() -> None:
    rng = RNG(13)
    done = (np.arange(40) % 4 > 0).astype(np.float64)
    found = iv.complier_pairs(-0.4 * done + rng.normal(0.0, 0.01, 40), done, np.arange(40))
    assert found.estimate == pytest.approx(-0.4, abs=0.01)
    assert found.covers(-0.4)


def test_a_quantile_is_the_first_outcome_that_reaches_it() -> None:
    rng = RNG(14)
    y, treated = rng.normal(size=300), np.arange(300) % 2 == 0
    for share in (0.05, 0.5, 0.9):
        found = quantile.difference(y, treated, np.arange(300), share, seed=0)
        expected = [np.quantile(y[m], share, method="inverted_cdf") for m in (treated, ~treated)]
        assert found.estimate == pytest.approx(expected[0] - expected[1])
        assert found.low <= found.estimate <= found.high
    assert quantile.difference(y, treated, np.arange(300), 0.99, seed=0).p is None


def test_quantiles_of_clusters_are_as_uncertain_as_the_clusters() -> None:
    """Every request ten times over tells nothing more."""
    rng = RNG(15)
    y, treated = rng.normal(size=100), np.arange(100) % 2 == 0
    once = quantile.difference(y, treated, np.arange(100), 0.5, seed=0)
    ten = np.repeat(np.arange(100), 10)
    found = quantile.difference(y[ten], treated[ten], ten, 0.5, seed=0)
    assert (found.estimate, found.low, found.high) == (once.estimate, once.low, once.high)
    blind = quantile.difference(y[ten], treated[ten], np.arange(1000), 0.5, seed=0)
    assert blind.high - blind.low < 0.6 * (found.high - found.low)


def test_pairs_are_drawn_whole() -> None:
    rng = RNG(16)
    own = rng.normal(0.0, 5.0, 200)
    y = np.concatenate([own + 1.0, own])
    treated = np.repeat([True, False], 200)
    found = quantile.difference(y, treated, np.tile(np.arange(200), 2), 0.5, seed=0)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def p_of(tau: float, y: np.ndarray, arms: np.ndarray, others: np.ndarray) -> float:
    """The randomisation p of an effect tau, by its definition."""
    moved = y - tau * arms
    seen = abs(float(switchback.weights(arms) @ moved))
    drawn = np.abs(switchback.weights(others) @ moved)
    return (1 + int((drawn >= seen - 1e-12).sum())) / (len(others) + 1)


@pytest.mark.parametrize("seed", range(6))
def test_the_interval_ends_where_the_randomisation_test_rejects(seed: int) -> None:
    rng = RNG(seed)
    arms = np.tile([1.0, 0.0], 7)
    y = rng.normal(size=14) + 0.8 * arms
    _, others = switchback.assignments(arms > 0, seed=0)
    found = switchback.switchback(y, arms > 0, seed=0)
    assert found.p == pytest.approx(p_of(0.0, y, arms, others))
    for end, outwards in ((found.low, -1.0), (found.high, 1.0)):
        assert p_of(end - 1e-6 * outwards, y, arms, others) > 0.05
        assert p_of(end + 1e-6 * outwards, y, arms, others) <= 0.05


def test_coins_are_enumerated_and_too_few_say_nothing() -> None:
    arms = np.array([True, False, False, True, True, False])
    scheme, others = switchback.assignments(arms, seed=0)
    assert scheme == "drawn in pairs"
    assert len({tuple(row) for row in others.tolist()} | {tuple((arms * 1.0).tolist())}) == 8
    found = switchback.switchback(np.where(arms, 2.0, 1.0) + np.arange(6) / 100, arms, seed=0)
    assert found.p == pytest.approx(2 / 8)
    assert (found.low, found.high) == (-math.inf, math.inf)
    anywhere, drawn = switchback.assignments(np.array([True, True, True, False, False]), seed=0)
    assert anywhere == "drawn anywhere"
    assert (drawn.sum(axis=1) == 3).all()


def test_perfectly_separated_blocks_give_the_smallest_p() -> None:
    arms = np.tile([True, False], 8)
    y = np.where(arms, 2.0, 1.0) + RNG(17).normal(0.0, 1e-3, 16)
    found = switchback.switchback(y, arms, seed=0)
    assert found.p == pytest.approx(2 / 2**8)
    assert 0.98 < found.low < found.high < 1.02


def test_burn_in_leaves_out_the_first_requests_of_each_block() -> None:
    block = np.repeat([3, 5], 10)
    kept = switchback.after_burn_in(block, 0.25)
    assert kept.sum() == 14
    assert not kept[:3].any() and kept[3:10].all()


def test_did_takes_out_replicas_and_periods() -> None:
    units, periods = 6, 8
    start = np.array([2, 3, 4, 5, 6, 7])
    enabled = (np.arange(periods) >= start[:, None]).astype(np.float64)
    level = np.arange(units)[:, None] * 3.0 + np.sin(np.arange(periods))[None, :]
    exact = did.staggered(level - 0.7 * enabled, enabled, seed=0)
    assert exact.estimate == pytest.approx(-0.7)
    noisy = level - 0.7 * enabled + RNG(18).normal(0.0, 0.05, level.shape)
    found = did.staggered(noisy, enabled, seed=0)
    assert found.covers(-0.7) and found.p is not None and found.p < 0.05
    assert did.trend_before(noisy, enabled).covers(0.0)
    assert did.staggered(level, np.zeros_like(enabled), seed=0).p is None


def test_did_with_two_replicas_rests_on_periods() -> None:
    enabled = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [0] * 8], np.float64)
    drift = np.cumsum(RNG(19).normal(size=8))
    noise = RNG(20).normal(0.0, 0.02, (2, 8))
    found = did.staggered(drift + np.array([[1.0], [4.0]]) - 0.5 * enabled + noise, enabled, seed=0)
    assert found.covers(-0.5) and found.high < 0.0
    assert "too few replicas" in found.note


def test_a_panel_with_a_gap_is_none() -> None:
    y, treated = np.ones(4), np.array([False, False, False, True])
    unit, period = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    cells = did.panel(y, treated, unit, period)
    assert cells is not None and cells[1].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert did.panel(y[:3], treated[:3], unit[:3], period[:3]) is None


def test_saturation_tells_direct_spillover_and_global_apart() -> None:
    data = simulate.saturation(RNG(21), blocks=20).data
    y, treated = data.number("ttft_s"), data.text("arm") == "relay"
    share, block = data.number("saturation"), data.number("block").astype(np.int64)
    assert saturation.direct_effect(y, treated, share, block).covers(simulate.DIRECT_S)
    assert saturation.spillover(y, treated, share, block).covers(simulate.CONGESTION_S)
    whole = saturation.global_effect(y, share, block)
    assert whole.covers(simulate.GLOBAL_S) and whole.low > 0.0
    doses = saturation.doses(y, treated, share, block)
    assert [dose.share for dose in doses] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert math.isnan(doses[0].treated.estimate) and math.isnan(doses[-1].control.estimate)
    assert doses[3].control.estimate > doses[1].control.estimate


def test_equivalence_is_shown_not_assumed() -> None:
    rng = RNG(22)
    same, few = rng.normal(0.0, 0.02, 60), rng.normal(0.0, 0.02, 3)
    assert equivalence.tost(same, 0.02).p < 1e-6
    assert equivalence.tost(few, 0.02).p == 1.0
    worse = rng.normal(-0.03, 0.02, 60)
    assert equivalence.tost(worse, 0.02).p > 0.9
    better = rng.normal(0.05, 0.02, 60)
    assert equivalence.tost(better, 0.02).p > 0.9
    assert equivalence.non_inferior(better, 0.02).p < 1e-6
    # Both tests reject at 5 % just when the 90 % interval is inside.
    for margin in (0.002, 0.003, 0.005, 0.01):
        found = equivalence.tost(same, margin)
        inside = -margin < found.low90 and found.high90 < margin
        assert (found.p < 0.05) == inside


def test_equal_answers_are_as_sure_as_their_number() -> None:
    assert equivalence.tost(np.zeros(16), 0.02).p == pytest.approx(0.98**16)
    found = equivalence.tost(np.zeros(200), 0.02)
    assert found.p < 0.05 and found.low90 > -0.02 and found.high90 < 0.02
    assert equivalence.tost(np.full(200, -0.5), 0.02).p == 1.0


def test_the_log_misleads_and_what_was_logged_repairs_it() -> None:
    world = simulate.logged(RNG(23), n=3000)
    y, relayed = world.data.number("ttft_s"), world.data.text("decided") == "relay"
    naive = observational.naive(y, relayed)
    assert naive.low > 0.0 > world.truth["direct"]
    x = covariates(world.data)
    assert observational.adjusted(y, relayed, x, seed=0).covers(-0.3)
    # Without one of the causes it stays wrong.
    tokens = world.data.number("prompt_tokens")[:, None]
    assert not observational.adjusted(y, relayed, tokens, seed=0).covers(-0.3)
    assert observational.adjusted(y[:30], relayed[:30], x[:30], seed=0).p is None


def test_the_graph_says_what_the_audit_rests_on() -> None:
    assert [words for words, holds in identification() if not holds] == []
    decided = graph(policy=True)
    assert not is_back_door(decided, ("prompt_tokens", "link", "load"))
    assert not is_back_door(decided, ("prefill_s",))


def test_any_set_of_assignments_will_do() -> None:
    """Three treated units of six, anywhere; outcomes with a trend."""
    rng = RNG(24)
    treatment = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    rows = [np.array(c, np.float64) for c in itertools.product([0.0, 1.0], repeat=6) if sum(c) == 3]
    others = np.array([r for r in rows if not np.array_equal(r, treatment)])
    y = rng.normal(size=6)
    trend = np.arange(6.0) - 2.5
    y_trend = y + trend
    b, low, high, p = randomisation.infer(
        y_trend, treatment, switchback.weights(treatment), switchback.weights(others)
    )
    assert low <= b <= high
    assert p == pytest.approx(p_of(0.0, y_trend, treatment, others))


def test_estimates_keep_their_notes() -> None:
    found = Estimate(1.0, 0.0, 2.0, 0.05, 4, 4).noted("one").noted("two")
    assert found.note == "one; two"
    assert all(map(math.isnan, found.relative()))
