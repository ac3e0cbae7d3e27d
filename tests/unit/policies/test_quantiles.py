import math
import random
from dataclasses import replace

import pytest

from kvrelay.policies.forecast import NOTHING, Forecast
from kvrelay.policies.quantiles import Quantiles, Ratios
from kvrelay.policies.regression import Estimate


def seen(rng: random.Random, count: int, middle: float = 1.0, spread: float = 0.1) -> Ratios:
    ratios = Ratios()
    for _ in range(count):
        ratios.add(middle * rng.lognormvariate(0, spread))
    return ratios


def test_quantiles_are_those_of_what_was_seen() -> None:
    p5, p50, p75, p95 = seen(random.Random(1), 64, middle=1.2).quantiles
    assert p50 == pytest.approx(1.2, rel=0.05)
    assert p75 == pytest.approx(1.2 * math.exp(0.067), rel=0.06)
    assert p5 == pytest.approx(1.2 * math.exp(-0.16), rel=0.1)
    assert p95 == pytest.approx(1.2 * math.exp(0.16), rel=0.1)


def test_little_seen_is_wide() -> None:
    def width(count: int) -> float:
        quantiles = seen(random.Random(2), count).quantiles
        return quantiles.p95 / quantiles.p5

    assert width(0) > width(4) > width(40)
    assert width(0) > 3


def test_what_was_believed_before_does_not_keep_intervals_wide() -> None:
    rng, inside = random.Random(4), 0
    ratios = seen(rng, 200, spread=0.02)
    for _ in range(1000):
        ratio = rng.lognormvariate(0, 0.02)
        inside += ratios.quantiles.p5 <= ratio <= ratios.quantiles.p95
        ratios.add(ratio)
    assert 0.85 <= inside / 1000 <= 0.93


def test_they_forget() -> None:
    rng = random.Random(3)
    ratios = seen(rng, 200)
    for _ in range(40):
        ratios.add(2.0 * rng.lognormvariate(0, 0.1))
    assert ratios.quantiles.p50 > 1.7
    ratios.clear()
    assert ratios.quantiles == Ratios().quantiles


def test_what_is_no_ratio_is_refused() -> None:
    for ratio in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            Ratios().add(ratio)


EXACT = Quantiles(0.8, 1.0, 1.1, 1.3)


def test_a_forecast_is_the_estimate_times_the_ratios() -> None:
    forecast = Forecast.of(Estimate(2.0, 0.0), EXACT)
    assert forecast.p5_s == pytest.approx(1.6)
    assert forecast.p50_s == pytest.approx(2.0)
    assert forecast.p75_s == pytest.approx(2.2)
    assert forecast.p95_s == pytest.approx(2.6)
    nothing = Forecast.of(Estimate(0.0, 1.0), EXACT, is_sure=False)
    assert nothing == replace(NOTHING, is_sure=False)


def test_unsure_coefficients_widen_it() -> None:
    sure, unsure = (Forecast.of(Estimate(2.0, sd), EXACT) for sd in (0.0, 1.0))
    assert unsure.p50_s == sure.p50_s
    assert unsure.p5_s < sure.p5_s
    assert unsure.p75_s > sure.p75_s
    assert unsure.p95_s > sure.p95_s


def test_doubt_that_the_ratios_have_in_them_is_not_counted_twice() -> None:
    ratios = Ratios()
    for _ in range(200):
        ratios.add(1.1, doubt=0.1)
    assert ratios.doubt == pytest.approx(0.1, rel=0.01)
    known, elsewhere = Estimate(2.0, 2.0 * math.expm1(0.1)), Estimate(2.0, 1.0)
    sure = Forecast.of(Estimate(2.0, 0.0), EXACT)
    at_known = Forecast.of(known, EXACT, ratios.doubt)
    assert at_known.p95_s == pytest.approx(sure.p95_s, rel=0.01)
    assert Forecast.of(elsewhere, EXACT, ratios.doubt).p95_s > 1.2 * sure.p95_s
    ratios.clear()
    assert ratios.doubt == 0.0


def test_sums_of_independent_seconds_spread_less_than_sums_of_spreads() -> None:
    one = Forecast(0.8, 1.0, 1.1, 1.3)
    both = one + one
    assert both.p50_s == pytest.approx(2.0)
    assert both.p95_s == pytest.approx(2.0 + 0.3 * math.sqrt(2))
    assert (one + NOTHING).p95_s == pytest.approx(one.p95_s)
    assert one.or_later(NOTHING) == one
