"""Who comes next, what a pull is worth, and how experience corrects that."""

import pytest

from kvrelay.policies.affinity import CHUNK_BYTES, prefix_hashes
from kvrelay.policies.prediction import (
    MEMORY_PULLS,
    PRIOR_TURNS,
    Accuracy,
    Foresight,
    Pull,
    Successor,
    Successors,
)


def prefix(text: str, scope: str = "model") -> list[bytes]:
    return prefix_hashes(scope, text)


def document(number: int, chunks: int = 4) -> str:
    return f"Document {number:06d}. ".ljust(chunks * CHUNK_BYTES, chr(97 + number % 26))


def work(successors: Successors, number: int, agents: str, tenant: str = "t") -> list[Foresight]:
    """One run of a workflow: each agent reads all that those before it have."""
    told, text = [], document(number)
    for agent in agents:
        told.append(successors.saw(tenant, agent, prefix(text)))
        text += agent * CHUNK_BYTES
    return told


def test_a_workflow_is_learnt() -> None:
    successors = Successors(learns=True)
    first = work(successors, 0, "abc")
    assert [each.successor for each in first] == [None, None, None]
    for number in range(1, 40):
        told = work(successors, number, "abc")
    a, b, c = told
    assert (a.successor.agent, b.successor.agent, c.successor) == ("b", "c", None)
    assert 0.9 < a.successor.probability < 1.0
    assert [each.foreseen for each in told] == [None, True, True]


def test_after_one_time_it_is_far_from_sure() -> None:
    successors = Successors(learns=True)
    work(successors, 0, "ab")
    (a,) = work(successors, 1, "a")
    assert a.successor.agent == "b"
    assert a.successor.probability == pytest.approx(1 / (2 + PRIOR_TURNS), rel=0.05)


def test_what_nobody_goes_on_with_is_not_expected_to_be() -> None:
    successors = Successors(learns=True)
    for number in range(40):
        told = work(successors, number, "ab" if number % 4 == 0 else "a")
    assert told[0].successor.probability == pytest.approx(0.25, abs=0.07)


def test_the_likeliest_is_expected_and_others_are_a_surprise() -> None:
    successors = Successors(learns=True)
    for number in range(30):
        work(successors, number, "ab" if number % 3 else "ac")
    a, c = work(successors, 30, "ac")
    assert a.successor.agent == "b"
    assert c.foreseen is False


def test_a_change_of_habits_is_followed() -> None:
    successors = Successors(learns=True)
    for number in range(100):
        work(successors, number, "ab")
    for number in range(100, 200):
        told = work(successors, number, "ac")
    assert told[0].successor.agent == "c"
    assert told[1].foreseen


def test_a_run_on_one_theme_follows_itself() -> None:
    successors = Successors(learns=True)
    for number in range(20):
        theme = document(number)
        for agent in "aab":
            told = successors.saw("t", agent, prefix(f"{theme} Question of {agent}?"))
    # The second question to `a` goes on with its turn: neither foreseen nor a surprise.
    again = successors.saw("t", "b", prefix(f"{theme} And now?"))
    assert told.foreseen is True
    assert again.foreseen is None


def test_a_common_head_alone_is_no_theme() -> None:
    successors = Successors(learns=True)
    head = document(0, chunks=1)
    for number in range(1, 20):
        told = successors.saw("t", "ab"[number % 2], prefix(head + document(number)))
    assert told == Foresight(None, None)


def test_what_is_declared_is_taken_and_judged() -> None:
    successors = Successors(learns=False)
    for number, taken in enumerate(["b", "c"]):
        begun = prefix(document(number))
        first = successors.saw("t", "a", begun, declared="b")
        assert first.successor == Successor("b", 1.0)
        assert successors.saw("t", taken, begun) == Foresight(None, taken == "b")


def test_without_learning_nobody_is_expected() -> None:
    successors = Successors(learns=False)
    for number in range(10):
        told = work(successors, number, "ab")
    assert told == [Foresight(None, None)] * 2


def test_tenants_learn_nothing_of_each_other() -> None:
    successors = Successors(learns=True)
    for number in range(10):
        work(successors, number, "ab", tenant="one")
    assert work(successors, 10, "a", tenant="two")[0].successor is None


def test_memory_is_bounded() -> None:
    successors = Successors(learns=True, max_chunks=8)
    for number in range(10):
        work(successors, number, "a")
    assert len(successors._last) == 8
    assert successors.saw("t", "b", prefix(document(9))).foreseen is None
    assert successors.saw("t", "b", []) == Foresight(None, None)


@pytest.mark.parametrize(
    ("pull", "pays"),
    [
        (Pull(1.0, 0.5, 2.0), True),
        (Pull(0.1, 0.5, 2.0), False),  # too unlikely for the link
        (Pull(1.0, 20.0, 0.5), False),  # so slow that the request would compute anyway
        (Pull(0.5, 0.5, 0.01), False),  # computing is next to nothing, as on a GPU
        (Pull(1.0, 0.5, 2.0, displaced_per_s=0.1), False),  # what would go is worth more
        (Pull(1.0, 0.5, 2.0, displaced_per_s=0.001), True),
        (Pull(0.0, 0.5, 2.0), False),
    ],
)
def test_only_what_saves_more_than_it_costs_pays(pull: Pull, pays: bool) -> None:
    assert pull.pays is pays


def test_pulls_that_come_to_nothing_end_and_are_tried_again() -> None:
    accuracy = Accuracy()
    assert accuracy.corrected(0.8) == pytest.approx(0.8)
    for _ in range(40):
        accuracy.settled(1.0, 0.0)
    assert accuracy.corrected(1.0) < 0.2
    for _ in range(4 * MEMORY_PULLS):
        accuracy.passed()
    assert accuracy.corrected(1.0) > 0.8


def test_what_comes_as_expected_is_believed() -> None:
    accuracy = Accuracy()
    for number in range(100):
        accuracy.settled(0.5, float(number % 2))
    assert accuracy.corrected(0.5) == pytest.approx(0.5, abs=0.05)
    for _ in range(100):
        accuracy.settled(0.5, 1.0)
    assert accuracy.corrected(0.5) > 0.85
