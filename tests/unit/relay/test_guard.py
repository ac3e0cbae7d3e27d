import random
from types import SimpleNamespace

import pytest

from kvrelay.relay.connector.guard import Breaker, StepCost, guarded


class Half:
    def __init__(self) -> None:
        self.breaker, self.cost, self.given_up = Breaker(), StepCost(), []

    def give_up(self, request_id: str) -> None:
        self.given_up.append(request_id)

    @guarded(lambda: (0, False))
    def hook(self, request: object, fail: bool) -> tuple[int, bool]:
        if fail:
            raise RuntimeError("injected")
        return 5, True


def test_an_exception_stays_inside_and_names_the_request() -> None:
    half = Half()
    request = SimpleNamespace(request_id="r")
    assert half.hook(request, False) == (5, True)
    assert half.hook(request, True) == (0, False)
    assert (half.given_up, half.breaker.faults) == (["r"], 1)
    assert half.cost.total_s > 0


def test_a_breaker_opens_after_a_burst_and_closes_after_its_rest() -> None:
    now_s = 0.0
    breaker = Breaker(limit=3, window_s=10, rest_s=20, clock_s=lambda: now_s)
    for now_s in (0.0, 6.0, 12.0):  # noqa: B007
        breaker.record()
    assert not breaker.is_open  # too far apart
    now_s = 13.0
    breaker.record()
    assert breaker.is_open
    now_s = 33.5
    assert not breaker.is_open


def test_the_worst_step_is_kept() -> None:
    cost = StepCost()
    cost.add(1.0, 1.5)
    cost.add(2.0, 2.5)
    cost.end_step()
    cost.add(0.5, 1.0)
    cost.end_step()
    assert (cost.total_s, cost.worst_step_s) == pytest.approx((3.5, 4.0))
    for _ in range(300):
        cost.add(0.25, 9.0)
        cost.end_step()
    assert 0.25 <= cost.p99_step_s <= 0.25 * 1.08


def test_the_p99_is_that_of_the_recent_steps() -> None:
    cost, rng = StepCost(), random.Random(1)
    assert cost.p99_step_s == 0.0
    taken = [10 ** rng.uniform(-5, -1) for _ in range(1300)]
    for number, seconds in enumerate(taken, 1):
        cost.add(seconds, seconds)
        cost.end_step()
        recent = sorted(taken[max(0, number - 500) : number])
        exact = recent[int(0.99 * (len(recent) - 1))]
        assert exact * 0.999 <= cost.p99_step_s <= exact * 1.08
