import math
import random

import pytest

from kvrelay.policies.regression import Regression

GUESS = (0.1, 6e-4, 2.3e-7)
TRUE = (0.02, 2e-3, 5e-7)
SCATTERED = 0.35


def point(rng: random.Random, tokens: int | None = None) -> tuple[float, float, float]:
    n = tokens or rng.choice([4, 64, 300, 1024, 2048])
    c = rng.choice([0, 512, 2048])
    return 1.0, n, n * (2 * c + n)


def at(x: tuple[float, ...], coefficients: tuple[float, ...] = TRUE) -> float:
    return sum(a * b for a, b in zip(x, coefficients, strict=True))


def taught(rng: random.Random, count: int, spread: float = 0.08) -> Regression:
    regression = Regression(GUESS)
    for _ in range(count):
        x = point(rng)
        regression.observe(x, at(x) * rng.lognormvariate(0, spread))
    return regression


def test_it_starts_from_the_guess_and_doubts_it() -> None:
    x = (1.0, 1024.0, 1024.0**2)
    mean, sd = Regression(GUESS).predict(x)
    assert mean == pytest.approx(at(x, GUESS))
    assert sd > mean


def test_it_finds_the_coefficients() -> None:
    rng = random.Random(1)
    regression = taught(rng, 100)
    for tokens in (4, 256, 1500, 4000):
        x = point(rng, tokens)
        assert regression.predict(x).mean == pytest.approx(at(x), rel=0.1)
        assert regression.predict(x).sd < 0.15 * at(x)


@pytest.mark.parametrize("factor", [0.2, 5.0, 0.01, 80.0])
def test_a_wrong_guess_is_corrected_at_once(factor: float) -> None:
    wrong = tuple(factor * value for value in TRUE)
    regression, x = Regression(wrong), (1.0, 1500.0, 1500.0**2)
    for _ in range(4):
        regression.observe(x, at(x))
    assert regression.predict(x).mean == pytest.approx(at(x), rel=0.2)


@pytest.mark.parametrize("factor", [0.2, 5.0, 80.0])
def test_a_change_of_the_world_is_followed_within_three_observations(factor: float) -> None:
    rng = random.Random(2)
    regression = taught(rng, 200)
    x = (1.0, 1500.0, 1500.0**2)
    changed = [regression.observe(x, factor * at(x)) for _ in range(3)]
    assert any(changed)
    assert regression.predict(x).mean == pytest.approx(factor * at(x), rel=0.35)


def test_an_outlier_is_none() -> None:
    rng = random.Random(3)
    regression = taught(rng, 50)
    x = (1.0, 1500.0, 1500.0**2)
    before = regression.predict(x).mean
    assert not regression.observe(x, 20 * at(x))
    assert regression.predict(x).mean < 1.25 * before


def test_noise_is_no_change() -> None:
    rng = random.Random(4)
    regression = taught(rng, 20)
    for _ in range(500):
        x = point(rng)
        assert not regression.observe(x, at(x) * rng.lognormvariate(0, 0.12))


@pytest.mark.parametrize("seed", range(5))
def test_nor_is_it_where_seconds_scatter_much(seed: int) -> None:
    """As on a machine that others use too."""
    rng = random.Random(seed)
    regression = taught(rng, 50, SCATTERED)
    changes = 0
    for _ in range(2000):
        x = point(rng)
        changes += regression.observe(x, at(x) * rng.lognormvariate(0, SCATTERED))
    assert changes <= 3


@pytest.mark.parametrize("factor", [0.2, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_there_too_a_change_is_followed_within_three_observations(seed: int, factor: float) -> None:
    rng = random.Random(seed)
    regression = taught(rng, 200, SCATTERED)
    x = (1.0, 1500.0, 1500.0**2)
    changed = [
        regression.observe(x, factor * at(x) * rng.lognormvariate(0, SCATTERED)) for _ in range(3)
    ]
    assert any(changed)
    assert 0.5 < regression.predict(x).mean / (factor * at(x)) < 2


def test_a_world_that_goes_back_and_forth_is_taken_for_a_noisy_one() -> None:
    rng = random.Random(11)
    regression = taught(rng, 100)
    changes = []
    for n in range(400):
        x = point(rng)
        slow = 2.5 if n % 8 < 3 else 1.0
        changes.append(regression.observe(x, slow * at(x) * rng.lognormvariate(0, 0.08)))
    assert 1 <= sum(changes[:200]) <= 10
    assert sum(changes[200:]) <= 2


def test_a_change_at_one_point_leaves_alone_what_has_no_share_in_it() -> None:
    """Short steps have become slower; nothing is known about long ones."""
    rng = random.Random(5)
    regression = taught(rng, 200)
    short, long = (1.0, 2.0, 4.0), (1.0, 4000.0, 4000.0**2)
    before = regression.predict(long).mean
    changed = [regression.observe(short, 3 * at(short)) for _ in range(3)]
    assert any(changed)
    assert regression.predict(long).mean == pytest.approx(before, rel=0.1)
    assert regression.predict(long).sd < 0.35 * before


def test_coefficients_and_predictions_are_never_negative() -> None:
    rng = random.Random(6)
    regression = Regression(GUESS)
    for _ in range(300):
        x = point(rng)
        regression.observe(x, 0.05 * rng.lognormvariate(0, 1.0))  # no function of x
        assert min(regression.coefficients) >= 0
        assert regression.predict((0.0, 1.0, 0.0)).mean >= 0


def test_what_is_not_observed_any_more_becomes_uncertain_but_not_boundlessly() -> None:
    rng = random.Random(7)
    regression = taught(rng, 100)
    short, long = (1.0, 2.0, 4.0), (1.0, 4000.0, 4000.0**2)
    certain = regression.predict(long).sd
    for _ in range(5000):
        regression.observe(short, at(short) * rng.lognormvariate(0, 0.05))
    mean, sd = regression.predict(long)
    assert mean == pytest.approx(at(long), rel=0.2)
    assert 3 * certain < sd < 3 * mean


def test_coefficients_come_back_without_certainty() -> None:
    rng = random.Random(8)
    before = taught(rng, 100)
    after = Regression(GUESS)
    after.restore(before.coefficients)
    x = (1.0, 1500.0, 1500.0**2)
    assert after.predict(x).mean == pytest.approx(before.predict(x).mean)
    assert after.count == 0
    assert after.predict(x).sd > after.predict(x).mean


@pytest.mark.parametrize("y", [0.0, -1.0, math.nan, math.inf])
def test_impossible_observations_are_refused(y: float) -> None:
    regression = Regression(GUESS)
    with pytest.raises(ValueError, match="no observation"):
        regression.observe((1.0, 1.0, 1.0), y)
    with pytest.raises(ValueError, match="no observation"):
        regression.observe((0.0, 0.0, 0.0), 1.0)
    with pytest.raises(ValueError, match="no coefficients"):
        regression.restore([y, 1.0] if y == 0 else [y, 1.0, 1.0])
