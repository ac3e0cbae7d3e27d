"""How a read is cut."""

from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay.transports.batches import growing_batches


def test_the_usual() -> None:
    assert growing_batches([3] * 32, 16) == [1, 2, 4, 5, 5, 5, 5, 5]
    assert growing_batches([], 16) == []
    assert growing_batches([100], 16) == [1]


@given(st.lists(st.integers(1, 100), max_size=50), st.integers(1, 200))
def test_batches(sizes: list[int], limit: int) -> None:
    batches = growing_batches(sizes, limit)
    assert sum(batches) == len(sizes)
    assert all(count > 0 for count in batches)
    assert not sizes or batches[0] == 1
    at, before = 0, 0
    for count in batches:
        filled = sum(sizes[at : at + count])
        assert count == 1 or filled <= min(limit, 2 * before)
        at, before = at + count, filled
