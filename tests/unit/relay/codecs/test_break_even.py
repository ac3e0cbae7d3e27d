"""The link rate below which a codec pays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay.codecs.break_even import break_even_gbit_per_s

BLOCK = 2_949_120
rates = st.floats(0.01, 100.0)


def times_s(
    link_gbit_per_s: float, ratio: float, encode: float, decode: float
) -> tuple[float, float]:
    """Sending a block as it is, and with the codec."""
    wire_s = 8e-9 * BLOCK / link_gbit_per_s
    codec_s = BLOCK * 1e-9 / encode + BLOCK * 1e-9 / decode
    return wire_s, wire_s / ratio + codec_s


def test_by_hand() -> None:
    # Half the bytes saved, 2 s a GB for the codec: 0.25 GB/s.
    assert break_even_gbit_per_s(BLOCK, 2.0, 1.0, 1.0) == pytest.approx(2.0)
    assert break_even_gbit_per_s(BLOCK, 4 / 3, 6.0, 8.0) == pytest.approx(6.857, abs=1e-3)


@given(ratio=st.floats(1.001, 10.0), encode=rates, decode=rates)
def test_there_both_ways_take_equally_long(ratio: float, encode: float, decode: float) -> None:
    link = break_even_gbit_per_s(BLOCK, ratio, encode, decode)
    plain_s, coded_s = times_s(link, ratio, encode, decode)
    assert coded_s == pytest.approx(plain_s)
    plain_s, coded_s = times_s(link / 2, ratio, encode, decode)
    assert coded_s < plain_s
    plain_s, coded_s = times_s(link * 2, ratio, encode, decode)
    assert coded_s > plain_s


@given(ratio=st.floats(0.1, 1.0), encode=rates, decode=rates)
def test_what_saves_nothing_never_pays(ratio: float, encode: float, decode: float) -> None:
    assert break_even_gbit_per_s(BLOCK, ratio, encode, decode) == 0


@given(raw_bytes=st.integers(1, 1 << 40))
def test_the_length_does_not_matter(raw_bytes: int) -> None:
    assert break_even_gbit_per_s(raw_bytes, 1.33, 6.0, 8.0) == pytest.approx(
        break_even_gbit_per_s(BLOCK, 1.33, 6.0, 8.0)
    )


@pytest.mark.parametrize(
    "arguments", [(0, 2.0, 1.0, 1.0), (1, 0.0, 1.0, 1.0), (1, 2.0, 0.0, 1.0), (1, 2.0, 1.0, -1.0)]
)
def test_what_is_no_measurement_is_refused(arguments: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        break_even_gbit_per_s(*arguments)
