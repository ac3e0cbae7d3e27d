"""Numbers of the report: unit, digits and sign follow the interval."""

from __future__ import annotations

import pytest

from kvrelay.bench.audit.report.numbers import (
    interval,
    measured,
    num_bytes,
    p_value,
    percent,
    seconds,
    share,
    signed,
    widened,
)
from kvrelay.bench.audit.report.reading import Estimate


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_percent_has_the_digits_that_its_interval_bears() -> None:
    assert plain(percent(Estimate(-0.8312, -0.853, -0.811))) == "−83 % [−85, −81]"
    assert plain(percent(Estimate(0.0123, 0.0118, 0.0128))) == "+1.23 % [+1.18, +1.28]"
    assert plain(percent(Estimate(0.012, 0.007, 0.017))) == "+1.2 % [+0.7, +1.7]"


def test_zero_has_no_sign() -> None:
    assert signed(-0.001, 1) == "0.0"
    assert plain(percent(Estimate(-0.0001, -0.04, 0.04))) == "0 % [−4, +4]"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Estimate(1.5, 1.2, 1.8), "+1.5 s [+1.2, +1.8]"),
        (Estimate(-0.0123, -0.0143, -0.0103), "−12 ms [−14, −10]"),
        (Estimate(4e-6, 2e-6, 6e-6), "+4 µs [+2, +6]"),
        (Estimate(0.0, 0.0, 0.0), "0.0 s [0.0, 0.0]"),
    ],
)
def test_seconds_come_in_a_unit_that_suits(value: Estimate, said: str) -> None:
    assert plain(seconds(value)) == said


def test_an_outcome_tells_its_unit() -> None:
    value = Estimate(2e6, 1e6, 3e6)
    assert plain(measured(value, "bytes_moved")) == "+2 MB [+1, +3]" == plain(num_bytes(value))
    assert "tokens/s" in measured(Estimate(3, 1, 5), "tokens_per_s")
    assert plain(measured(Estimate(3, 1, 5), "bleu")) == "+3 [+1, +5]"
    assert "s" in measured(Estimate(3, 1, 5), "ttft_s")


def test_huge_and_tiny_numbers_stay_readable() -> None:
    huge = plain(percent(Estimate(3e12, 1e12, 5e12)))
    assert huge == "+3.0e14 % [+1.0e14, +5.0e14]"
    tiny = plain(interval(Estimate(2e-9, 1e-9, 3e-9), ""))
    assert tiny == "2.0e-9 [1.0e-9, 3.0e-9]".replace("-", "−")
    assert len(plain(seconds(Estimate(1e99, -1e99, 1e99)))) < 50


def test_a_share_has_wilsons_interval() -> None:
    # z^2 / (n + z^2) for no hit in 960, Wilson 1927.
    none = share(0.0, 960)
    assert none is not None
    assert none.low == 0 and none.high == pytest.approx(3.8415 / 963.8415, rel=1e-3)
    assert share(0.5, 0) is None
    assert share(1.5, 10) is None
    half = share(0.5, 100)
    assert half is not None
    assert half.low == pytest.approx(0.4038, abs=1e-3)
    assert half.high == pytest.approx(0.5962, abs=1e-3)


def test_intervals_widen_with_the_number_of_comparisons() -> None:
    value = Estimate(0.0, -1.0, 2.0)
    assert widened(value, 1) == value
    many = widened(value, 48)
    # normal quantiles at 1 - 0.025/48 and 0.975
    assert many.high == pytest.approx(2 * 3.279 / 1.960, rel=1e-3)
    assert many.low == pytest.approx(-many.high / 2)


def test_p_values() -> None:
    assert p_value(None) == "not measured"
    assert p_value(1e-9) == "< 0.001"
    assert p_value(0.0414) == "0.041"
