"""The payoff estimate: unbiased whatever the predictions, honest across windows and sessions."""

import math

import numpy as np
import pytest

from kvrelay.policies.assignment import assign
from kvrelay.policies.confidence import Verdict
from kvrelay.policies.decision import Arm
from kvrelay.policies.observation import Observation
from kvrelay.policies.payoff import OVERALL, Payoff, PayoffEstimator
from kvrelay.policies.strata import MAX_STRATA, OTHER, Stratum

STRATUM = Stratum("arena", "<512", "<50%")


def observed(
    time_s: float,
    session: str,
    arm: Arm,
    ttft_s: float,
    *,
    propensity: float = 0.5,
    predicted: tuple[float | None, float | None] = (None, None),
    stratum: Stratum = STRATUM,
) -> Observation:
    return Observation(time_s, session, arm, propensity, None, ttft_s, *predicted, stratum)


def requests(
    seed: int,
    count: int,
    saving_s: float,
    *,
    share: float = 1.0,
    error: float | None = 1.0,
    start_s: float = 0.0,
) -> list[Observation]:
    """One request a second: recomputed 1 s, relayed 1 s less `saving_s`, both times its size."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        size = float(rng.lognormal(-0.18, 0.6))
        drawn = assign(float(rng.random()), share, Arm.RELAY)
        mean_s = size * (1.0 - saving_s if drawn.arm is Arm.RELAY else 1.0)
        predicted = (None, None) if error is None else (error * size * (1.0 - saving_s), size)
        ttft_s = mean_s * float(rng.lognormal(-0.02, 0.2))
        found.append(
            observed(
                start_s + i,
                f"{start_s}/{i}",
                drawn.arm,
                ttft_s,
                propensity=drawn.propensity,
                predicted=predicted,
            )
        )
    return found


def fed(observations: list[Observation], window_s: float = 1e9) -> PayoffEstimator:
    estimator = PayoffEstimator(window_s=window_s)
    for seen in observations:
        estimator.observe(seen)
    return estimator


@pytest.mark.parametrize("error", [1.0, 5.0, 0.2, None])
def test_it_is_right_whatever_the_predictions(error: float | None) -> None:
    found = fed(requests(1, 4000, 0.3, error=error)).estimate()
    assert found.lower_s <= 0.3 <= found.upper_s
    assert found.saving_s == pytest.approx(0.3, abs=4 * found.stderr_s)
    assert found.verdict is Verdict.PAYS


def test_predictions_make_it_precise() -> None:
    good = fed(requests(1, 4000, 0.3)).estimate()
    wrong = fed(requests(1, 4000, 0.3, error=5.0)).estimate()
    none = fed(requests(1, 4000, 0.3, error=None)).estimate()
    assert good.stderr_s < 0.7 * none.stderr_s
    # A constant factor is learned, so that it costs next to nothing.
    assert wrong.stderr_s < 1.2 * good.stderr_s


def test_rare_draws_count_for_those_that_were_not_drawn() -> None:
    found = fed(requests(2, 20_000, 0.3, share=0.02)).estimate()
    assert found.lower_s <= 0.3 <= found.upper_s
    assert found.upper_s < math.inf


def test_the_score_is_inverse_probability_weighted() -> None:
    # Three requests, no predictions: m is 1 until something was learned, then the mean so far.
    estimator = fed([observed(0.0, "a", Arm.RELAY, 3.0, propensity=0.8)])
    assert estimator.estimate().saving_s == pytest.approx(-(3.0 - 1.0) / 0.8)
    estimator.observe(observed(1.0, "b", Arm.RECOMPUTE, 7.0, propensity=0.2))
    # One relay of 3 s, so both arms are believed to take 3 s: the shared ratio.
    second = (7.0 - 3.0) / 0.2
    assert estimator.estimate().saving_s == pytest.approx((-(3.0 - 1.0) / 0.8 + second) / 2)


def test_a_sessions_own_outcomes_do_not_enter_its_predictions() -> None:
    estimator = fed([observed(0.0, "a", Arm.RELAY, 3.0)])
    estimator.observe(observed(1.0, "a", Arm.RELAY, 3.0))
    # Both requests are held against what was believed when the session began, 1 s.
    assert estimator.estimate().saving_s == pytest.approx(-(3.0 - 1.0) / 0.5)
    assert estimator.estimate().sessions == 1 and estimator.estimate().requests == 2


def test_repeated_requests_of_a_session_do_not_make_it_surer() -> None:
    single = requests(3, 300, 0.1, error=None)
    tripled = [seen for seen in single for _ in range(3)]
    once, thrice = fed(single).estimate(), fed(tripled).estimate()
    assert thrice.requests == 3 * once.requests
    assert thrice.stderr_s == pytest.approx(once.stderr_s, rel=0.05)


def test_what_is_old_is_forgotten() -> None:
    estimator = fed(requests(4, 4000, 0.4), window_s=4000.0)
    assert estimator.estimate().verdict is Verdict.PAYS
    later = requests(5, 4000, -0.4, start_s=4000.0)
    for seen in later[:1000]:
        estimator.observe(seen)
    for seen in later[1000:]:
        estimator.observe(seen)
    after = estimator.estimate()
    assert after.verdict is Verdict.DOES_NOT_PAY
    assert after.since_s >= 2000.0


def test_the_newest_that_knows_speaks_where_windows_disagree() -> None:
    estimator = fed(requests(6, 3000, 0.6), window_s=8000.0)
    later = requests(7, 4500, -0.6, start_s=4000.0)
    turned = None
    for seen in later:
        estimator.observe(seen)
        if turned is None and estimator.estimate().verdict is Verdict.DOES_NOT_PAY:
            turned = seen.time_s
    # A second window begins at 4000; the first one goes on paying in the mean until it ends.
    assert turned is not None and turned < 5500.0


def test_a_restart_forgets() -> None:
    whole, again = fed(requests(8, 3000, 0.3)), PayoffEstimator(window_s=1e9)
    for seen in requests(9, 50, -9.0):
        again.observe(seen)
    again.restart()
    assert again.estimate().sessions == 0
    for seen in requests(8, 3000, 0.3, start_s=100.0):
        again.observe(seen)
    one, other = whole.estimate(), again.estimate()
    assert one.sessions == other.sessions
    assert other.lower_s <= 0.3 <= other.upper_s and other.verdict is one.verdict


def test_sessions_from_before_a_restart_do_not_count() -> None:
    estimator = fed([observed(0.0, "old", Arm.RELAY, 1.0)])
    estimator.restart()
    estimator.observe(observed(1.0, "old", Arm.RELAY, 1.0))
    estimator.observe(observed(2.0, "new", Arm.RELAY, 1.0))
    assert estimator.estimate().sessions == 1


@pytest.mark.parametrize(("alpha", "window_s"), [(0.0, 1.0), (1.0, 1.0), (0.05, 0.0)])
def test_impossible_settings_are_refused(alpha: float, window_s: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        PayoffEstimator(alpha, window_s)


def test_strata_are_told_apart_and_all_are_summed() -> None:
    payoff = Payoff()
    slow = Stratum("nodes", "<512", "<50%")
    near = requests(10, 2000, 0.4)
    far = [
        Observation(
            seen.time_s + 0.5,
            f"far {seen.session}",
            seen.arm,
            seen.propensity,
            seen.preferred,
            seen.first_token_s,
            None,
            None,
            slow,
        )
        for seen in requests(11, 2000, -0.4)
    ]
    for seen in sorted([*near, *far], key=lambda each: each.time_s):
        payoff.observe(seen)
    found = payoff.snapshot()
    assert list(found) == [OVERALL, STRATUM.label, slow.label]
    assert found[STRATUM.label].verdict is Verdict.PAYS
    assert found[slow.label].verdict is Verdict.DOES_NOT_PAY
    assert found[OVERALL].requests == 4000
    assert found[OVERALL].lower_s < 0.0 < found[OVERALL].upper_s


def test_labels_are_bounded() -> None:
    payoff = Payoff()
    for i in range(MAX_STRATA + 20):
        stratum = Stratum(f"link-{i}", "any", "any")
        payoff.observe(observed(float(i), str(i), Arm.RELAY, 1.0, stratum=stratum))
    found = payoff.snapshot()
    assert len(found) == 1 + MAX_STRATA + 1
    assert found[OTHER.label].requests == 20
