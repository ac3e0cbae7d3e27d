"""The interval: what it needs, how wide it is, and that looking all the time does not break it."""

import math

import numpy as np
import pytest

from kvrelay.policies.confidence import (
    NO_MOMENTS,
    NOTHING,
    ConfidenceSequence,
    Estimate,
    Verdict,
    mixture_bound,
)


def moments(score: float, n: int, relay: float, recompute: float) -> tuple[float, ...]:
    head = (1.0, 0.5, n, score, score * score, score * n, n * n)
    return (*head, relay, relay * relay, recompute, recompute * recompute)


def test_the_bound_is_that_of_asymptotic_confidence_sequences() -> None:
    # arXiv 2103.06476, its normal mixture with sigma = 1 and rho^2 = 1/8.
    t, rho2, alpha = 500.0, 1 / 8, 0.05
    margin = math.sqrt(
        2 * (t * rho2 + 1) / (t * t * rho2) * math.log(math.sqrt(t * rho2 + 1) / alpha)
    )
    assert math.sqrt(mixture_bound(t, alpha) / t) == pytest.approx(margin)


def test_nothing_is_known_before_both_arms_were_seen_often() -> None:
    sequence = ConfidenceSequence(0.025, 0.0)
    assert sequence.estimate() == NOTHING
    for i in range(10_000):  # one arm only: no interval, however many
        sequence.update(NO_MOMENTS, moments(0.1 + 0.01 * (i % 2), 1, 0.005, 0.0))
    alone = sequence.estimate()
    assert (alone.lower_s, alone.upper_s) == (-math.inf, math.inf)
    assert alone.verdict is Verdict.UNKNOWN and alone.more_sessions > 0
    for i in range(10):
        sequence.update(NO_MOMENTS, moments(0.1 + 0.01 * (i % 2), 1, 0.0, 199.0))
        assert sequence.estimate().upper_s == math.inf
    for i in range(30):
        sequence.update(NO_MOMENTS, moments(0.1 + 0.01 * (i % 2), 1, 0.0, 199.0))
    assert sequence.estimate().verdict is Verdict.PAYS


def test_a_session_is_one_however_its_requests_come() -> None:
    rng = np.random.default_rng(1)
    whole, piecemeal = ConfidenceSequence(0.05, 0.0), ConfidenceSequence(0.05, 0.0)
    for score in rng.normal(1.0, 1.0, 300).tolist():
        half, full = moments(score / 3, 1, 1.0, 1.0), moments(score, 2, 1.0, 1.0)
        whole.update(NO_MOMENTS, full)
        piecemeal.update(NO_MOMENTS, half)
        piecemeal.update(half, full)
    one, other = whole.estimate(), piecemeal.estimate()
    assert one.sessions == other.sessions == 300 and one.requests == other.requests == 600
    assert one.lower_s == pytest.approx(other.lower_s)
    assert one.upper_s == pytest.approx(other.upper_s)


def test_standard_error_is_that_of_a_ratio_of_cluster_sums() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 9, 400)
    scores = sizes * 0.3 + rng.normal(0.0, 1.0, 400) * sizes
    sequence = ConfidenceSequence(0.05, 0.0)
    for n, score in zip(sizes.tolist(), scores.tolist(), strict=True):
        sequence.update(NO_MOMENTS, moments(score, n, float(n), float(n)))
    found = sequence.estimate()
    ratio = scores.sum() / sizes.sum()
    residuals = scores - ratio * sizes
    assert found.saving_s == pytest.approx(ratio)
    assert found.stderr_s == pytest.approx(math.sqrt((residuals**2).sum()) / sizes.sum())


def test_more_sessions_are_about_what_it_takes() -> None:
    rng = np.random.default_rng(3)
    sequence = ConfidenceSequence(0.025, 0.0)
    predicted = None
    for i, score in enumerate(rng.normal(0.25, 1.0, 3000).tolist()):
        sequence.update(NO_MOMENTS, moments(score, 1, 1.0, 1.0))
        found = sequence.estimate()
        if i == 100:
            assert found.verdict is Verdict.UNKNOWN
            predicted = i + found.more_sessions
        if predicted is not None and found.verdict is Verdict.PAYS:
            assert found.more_sessions == 0
            assert predicted / 4 < i < predicted * 4
            return
    raise AssertionError("the sign was never known")


def test_looking_all_the_time_does_not_break_it() -> None:
    missed = naive = 0
    for seed in range(200):
        sequence = ConfidenceSequence(0.05, 0.0)
        wrong = fooled = False
        for score in np.random.default_rng(seed).normal(0.0, 1.0, 1000).tolist():
            sequence.update(NO_MOMENTS, moments(score, 1, 1.0, 1.0))
            found = sequence.estimate()
            wrong |= not found.lower_s <= 0.0 <= found.upper_s
            fooled |= found.sessions >= 30 and abs(found.saving_s) > 1.96 * found.stderr_s
        missed += wrong
        naive += fooled
    assert missed <= 18  # 9 %
    assert naive >= 40  # what it is there against


def test_verdicts() -> None:
    def estimate(lower_s: float, upper_s: float) -> Estimate:
        return Estimate(0.0, lower_s, upper_s, 1.0, 1, 1, 0.0, 0)

    assert estimate(0.1, 0.2).verdict is Verdict.PAYS
    assert estimate(-0.2, -0.1).verdict is Verdict.DOES_NOT_PAY
    assert estimate(-0.2, 0.1).verdict is Verdict.UNKNOWN
