"""Steps of an engine, and first tokens, on a fake clock."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvrelay.policies import Work
from kvrelay.policies.prefill import NO_WORK
from kvrelay.relay.connector.request import Tracked
from kvrelay.relay.connector.steps import Steps


class Bed:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.tracked: dict[str, Tracked] = {}
        self.steps = Steps(self.tracked, lambda: self.now_s)

    def request(self, request_id: str) -> Tracked:
        request: Any = SimpleNamespace(num_output_tokens=0)
        tracked = Tracked(request, "auto", self.now_s)
        tracked.decided_s = self.now_s
        self.tracked[request_id] = tracked
        return tracked

    def begin(
        self,
        new: dict[str, tuple[int, int]],
        cached: dict[str, tuple[int, int]] | None = None,
        **more: Any,
    ) -> None:
        """`new`, `cached`: tokens there and to compute, by request."""
        cached = cached or {}
        output: Any = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=there)
                for name, (there, _) in new.items()
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=list(cached), num_computed_tokens=[there for there, _ in cached.values()]
            ),
            num_scheduled_tokens={name: n for name, (_, n) in (new | cached).items()},
            scheduled_encoder_inputs={},
        )
        for name, value in more.items():
            setattr(output, name, value)
        self.steps.begin(output)


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_step_is_what_was_computed_and_how_long_it_took(bed: Bed) -> None:
    bed.request("a")
    bed.request("b").first_token_s = 0.1
    bed.begin({"a": (256, 300)}, {"b": (1000, 1)})
    assert bed.steps.work == Work.of(256, 300).plus(Work.of(1000, 1))
    bed.now_s += 0.25
    step = bed.steps.end()
    assert step is not None
    assert step.seconds == pytest.approx(0.25)
    assert (step.prompts, step.is_plain) == (("a",), True)
    assert bed.steps.work == NO_WORK
    assert bed.steps.computed == 1


def test_a_step_that_is_scheduled_while_one_runs_begins_when_that_ends(bed: Bed) -> None:
    bed.request("a")
    bed.begin({"a": (0, 100)})
    bed.now_s += 0.1
    bed.begin({}, {"a": (100, 50)})
    bed.now_s += 0.3
    first = bed.steps.end()
    bed.now_s += 0.2
    second = bed.steps.end()
    assert first is not None
    assert second is not None
    assert (first.seconds, second.seconds) == (pytest.approx(0.4), pytest.approx(0.2))


def test_the_first_token_counts_from_the_decision(bed: Bed) -> None:
    tracked = bed.request("a")
    bed.now_s += 1.0
    bed.begin({"a": (0, 100)})
    bed.now_s += 0.5
    bed.steps.end()
    assert tracked.first_token_s is None, "the first chunk of a prompt brings none"
    bed.begin({}, {"a": (100, 100)})
    bed.now_s += 0.5
    tracked.request.num_output_tokens = 1
    bed.steps.end()
    assert tracked.first_token_s == pytest.approx(2.0)
    bed.now_s += 1.0
    tracked.see_output(bed.now_s)
    assert tracked.first_token_s == pytest.approx(2.0)


def test_steps_without_tokens_or_with_more_than_tokens_are_not_plain(bed: Bed) -> None:
    bed.request("a")
    plain = []
    for new, more in (
        ({}, {}),
        ({"a": (0, 10)}, {"scheduled_encoder_inputs": {"a": [0]}}),
        ({}, {"num_scheduled_tokens": {"a": 10}}),
    ):
        bed.begin(new, **more)
        step = bed.steps.end()
        plain.append(step is not None and step.is_plain)
    assert plain == [False, False, False]
    assert bed.steps.computed == 2


def test_an_end_without_a_begin_is_nothing(bed: Bed) -> None:
    assert bed.steps.end() is None


def test_begins_without_ends_are_forgotten(bed: Bed) -> None:
    bed.request("a")
    for _ in range(1000):
        bed.begin({"a": (0, 10)})
    assert bed.steps.work.tokens <= 160
