"""Draws: uniform, kept by a session, and with the propensity that they really have."""

from collections import Counter

import pytest

from kvrelay.policies.assignment import Assignment, Switchback, assign, session_draw
from kvrelay.policies.decision import Arm

SALT = b"a secret of the cluster"


def test_a_session_keeps_its_draw_within_an_epoch() -> None:
    draw = session_draw(SALT, 0, "session-7")
    assert draw == session_draw(SALT, 0, "session-7")
    others = [(SALT, 1, "session-7"), (b"other", 0, "session-7"), (SALT, 0, "session-8")]
    assert draw not in {session_draw(*other) for other in others}
    assert 0.0 <= session_draw(SALT, 0, "\ud800") < 1.0  # what JSON may bring


def test_draws_are_uniform() -> None:
    draws = [session_draw(SALT, 0, str(i)) for i in range(20_000)]
    tenths = Counter(int(10 * draw) for draw in draws)
    assert set(tenths) == set(range(10))
    # Chi-squared with 9 degrees of freedom; 27.9 is its 99.9 % quantile.
    assert sum((n - 2000) ** 2 / 2000 for n in tenths.values()) < 27.9


@pytest.mark.parametrize("salt", [b"", b"x" * 65])
def test_a_salt_has_a_length(salt: bytes) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        session_draw(salt, 0, "s")


@pytest.mark.parametrize("preferred", list(Arm))
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_propensity_is_the_share_of_draws_that_lead_to_the_arm(
    preferred: Arm, share: float
) -> None:
    count = 2000
    found = [assign((i + 0.5) / count, share, preferred) for i in range(count)]
    for arm in Arm:
        of_arm = [each for each in found if each.arm is arm]
        (propensity,) = {each.propensity for each in of_arm}
        assert len(of_arm) / count == pytest.approx(propensity, abs=1 / count)
    assert sum(each.explored for each in found) / count == pytest.approx(share, abs=1 / count)


def test_a_share_of_zero_is_off() -> None:
    for draw in (0.0, 0.5, 1.0 - 2.0**-53):
        assert assign(draw, 0.0, Arm.RELAY) == Assignment(Arm.RELAY, 1.0, False)


def test_a_drawn_session_keeps_its_arm_when_the_share_grows() -> None:
    for i in range(1000):
        small = assign(i / 1000, 0.05, Arm.RELAY)
        if small.explored:
            assert assign(i / 1000, 0.4, Arm.RECOMPUTE).arm is small.arm


@pytest.mark.parametrize("preferred", list(Arm))
def test_the_middle_leaves_nothing_to_chance(preferred: Arm) -> None:
    for share in (0.01, 0.5, 1.0):
        assigned = assign(0.5, share, preferred)
        assert (assigned.arm, assigned.explored) == (preferred, False)


def test_draws_and_shares_have_ranges() -> None:
    for draw, share in ((1.0, 0.1), (-0.1, 0.1), (0.5, 1.1), (0.5, -0.1)):
        with pytest.raises(ValueError, match="draw must be"):
            assign(draw, share, Arm.RELAY)


def test_a_pair_of_blocks_holds_both_arms_in_random_order() -> None:
    plan = Switchback(seed=7, block_s=60.0, burn_in_s=20.0)
    firsts = Counter[Arm]()
    for pair in range(400):
        first, second = plan.arm(120.0 * pair), plan.arm(120.0 * pair + 60.0)
        assert {first, second} == set(Arm)
        assert plan.pair(120.0 * pair) == plan.pair(120.0 * pair + 119.9) == pair
        firsts[first] += 1
    assert 150 < firsts[Arm.RELAY] < 250
    assert [plan.arm(120.0 * p) for p in range(40)] != [
        Switchback(8, 60.0, 20.0).arm(120.0 * p) for p in range(40)
    ]


def test_the_first_quarter_of_a_clusters_blocks_does_not_count() -> None:
    plan = Switchback.of_cluster(120.0)
    assert plan.counted_arm(1.8e9 + 29.0) is None
    assert plan.counted_arm(1.8e9 + 31.0) is plan.arm(1.8e9)


def test_the_burn_in_has_the_arm_but_does_not_count() -> None:
    plan = Switchback(seed=7, block_s=60.0, burn_in_s=20.0)
    assert plan.counted_arm(600.0) is None and plan.counted_arm(619.9) is None
    assert plan.counted_arm(620.0) is plan.arm(600.0) is plan.arm(659.9)


@pytest.mark.parametrize(("block_s", "burn_in_s"), [(0.0, 0.0), (60.0, 60.0), (60.0, -1.0)])
def test_impossible_blocks_are_refused(block_s: float, burn_in_s: float) -> None:
    with pytest.raises(ValueError, match="burn-in"):
        Switchback(1, block_s, burn_in_s)
