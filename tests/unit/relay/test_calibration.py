"""What the scheduler half makes of steps and loads, and what of that outlives it."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvrelay.policies import Arm, Candidate, Costs, Decision, Reason, Work, parse_policy
from kvrelay.relay import learnt
from kvrelay.relay.connector.calibration import Calibration, calibration_of
from kvrelay.relay.connector.metadata import LoadOutcome
from kvrelay.relay.connector.request import DEADLINE_FLOOR_S, Tracked, load_deadline_s
from kvrelay.relay.connector.state_file import EVERY_S, StateFile
from kvrelay.relay.connector.steps import Step
from kvrelay.relay.connector.view import candidates, relay_view
from kvrelay.relay.learnt import state_path
from kvrelay.relay.protocol import FetchEnded
from kvrelay.relay.settings import RelaySettings

MB = 1_000_000
ARENA = Candidate("arena", 512, 40 * MB)
NODES = Candidate("nodes", 512, 40 * MB, 30 * MB, bytes_ahead=7)
FETCHED = FetchEnded(
    1,
    sources=("n2",),
    transport="nixl",
    path="tcp/eth0",
    codec="raw",
    num_bytes=30 * MB,
)
OUTCOME = LoadOutcome("r", 4, 40 * MB, 0.1, 1.0, None)
STEP = Step(Work.of(0, 100), ("r",), True, 0.5)


class Bed:
    """A calibration whose costs write down what they are told."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.path = folder / "calibration" / "state.json"
        self.file = StateFile(self.path, lambda: self.now_s)
        self.costs = Costs()
        self.seen: list[tuple[Any, ...]] = []
        self.recent: dict[str, Any] = {}
        for name in ("observe_step", "observe_load", "observe_unfinished_load"):
            self._watch(name)
        self.calibration = Calibration(self.costs, self.file)
        self.calibration.step_ended(STEP)  # the engine is warm now

    def _watch(self, name: str) -> None:
        real = getattr(self.costs, name)

        def observe(*args: Any) -> None:
            self.seen.append((name.removeprefix("observe_"), *args))
            real(*args)

        setattr(self.costs, name, observe)

    def kept(self) -> dict[str, Any]:
        """What the file holds of the costs; `recent` is told apart."""
        state: dict[str, Any] = json.loads(self.path.read_text())
        self.recent = state.pop("recent")
        return state

    def load(self, candidate: Candidate | None, steps: int = 1, **outcome: Any) -> None:
        """A load that was decided after no step and took 2 seconds until it was reported."""
        tracked = Tracked(SimpleNamespace(), "auto", 0.0, candidate=candidate, load_s=2.0)
        self.calibration.load_ended(tracked, replace(OUTCOME, **outcome), steps)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_steps_that_compute_prompts_are_observed(bed: Bed) -> None:
    bed.calibration.step_ended(STEP)
    for other in (None, replace(STEP, prompts=()), replace(STEP, is_plain=False)):
        bed.calibration.step_ended(other)
    assert bed.seen == [("step", STEP.work, 0.5)]


def test_the_first_prompt_of_an_engine_tells_nothing(tmp_path: Path) -> None:
    costs = Costs()
    before = costs.to_dict()
    calibration = Calibration(costs, StateFile(tmp_path / "state.json"))
    calibration.step_ended(replace(STEP, prompts=()))
    calibration.step_ended(replace(STEP, seconds=20.0))
    assert costs.to_dict() == before
    calibration.step_ended(STEP)
    assert costs.to_dict() != before
    calibration.close()


def test_a_load_is_timed_by_the_worker_if_steps_held_up_its_report(bed: Bed) -> None:
    bed.load(ARENA, steps=1)
    bed.load(ARENA, steps=0)
    assert bed.seen == [
        ("load", ("arena",), 40 * MB, 0, pytest.approx(1.1)),
        ("load", ("arena",), 40 * MB, 0, 2.0),
    ]


def test_a_load_from_a_node_is_known_by_its_way(bed: Bed) -> None:
    bed.load(NODES, fetched=FETCHED)
    bed.load(NODES, fetched=replace_fetched(sources=("n2", "n3")))
    ways = [seen[1] for seen in bed.seen]
    assert ways == [("nodes", "n2", "nixl", "tcp/eth0", "raw"), ("nodes",)]
    assert bed.seen[0][2:4] == (30 * MB, 7)


def replace_fetched(**changes: Any) -> FetchEnded:
    fields = {name: getattr(FETCHED, name) for name in FETCHED.__struct_fields__}
    return FetchEnded(**fields | changes)


def test_decoding_here_is_told_apart(bed: Bed) -> None:
    decoded = replace_fetched(sources=(), num_bytes=0, decoded_bytes=12 * MB)
    bed.load(replace(NODES, place="encoded"), fetched=decoded)
    assert bed.seen == [("load", ("encoded",), 12 * MB, 7, pytest.approx(1.1))]


@pytest.mark.parametrize(
    "outcome",
    [
        {"fetched": replace_fetched(num_bytes=0)},  # others brought it
        {"fetched": None},
        {"failure": Reason.LOAD_CANCELLED},
        {"failure": Reason.LOAD_CORRUPT},
        {"failure": Reason.SOURCE_LOST},
    ],
)
def test_what_says_nothing_about_seconds_is_left_out(bed: Bed, outcome: dict[str, Any]) -> None:
    bed.load(NODES, **outcome)
    bed.load(None)
    assert bed.seen == []


@pytest.mark.parametrize("failure", [Reason.LOAD_DEADLINE, Reason.TRANSFER_FAILED])
def test_what_did_not_come_in_time_would_have_taken_longer(bed: Bed, failure: Reason) -> None:
    bed.load(NODES, failure=failure, num_bytes=25 * MB)
    assert bed.seen[0] == ("unfinished_load", ("nodes",), 30 * MB, 7, 15 * MB, pytest.approx(1.1))


def test_a_fault_ends_the_calibration_and_nothing_else(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(bed.costs, "observe_step", broken)
    bed.calibration.step_ended(STEP)
    bed.load(ARENA)
    assert bed.calibration.is_off
    assert bed.seen == []
    bed.calibration.close()


# What is kept


def test_what_was_learnt_is_kept_and_found_again(bed: Bed, tmp_path: Path) -> None:
    for _ in range(10):
        bed.calibration.step_ended(STEP)
    bed.calibration.close()
    assert [path.name for path in bed.path.parent.iterdir()] == ["state.json"]
    again = Bed(tmp_path)
    work = Work.of(0, 100)
    assert again.costs.prefill(work).p50_s == pytest.approx(0.5, rel=0.1)
    assert not again.costs.prefill(work).is_sure
    again.calibration.close()
    assert bed.kept() == bed.costs.to_dict(), "nothing new, nothing written"


def test_the_last_observations_are_kept_with_what_was_predicted(bed: Bed, tmp_path: Path) -> None:
    first_s = bed.costs.prefill(STEP.work).p50_s
    load_s = bed.costs.load(("nodes",), 30 * MB, 7).p50_s
    bed.calibration.step_ended(STEP)
    bed.load(NODES, fetched=FETCHED)
    bed.calibration.close()
    bed.kept()
    ((_, tokens, squares, seconds, predicted_s),) = bed.recent["steps"]
    assert (tokens, squares, seconds) == (*STEP.work, STEP.seconds)
    assert predicted_s == pytest.approx(first_s)
    (way,) = bed.recent["ways"]
    assert way["way"] == ["nodes", "n2", "nixl", "tcp/eth0", "raw"]
    ((_, *loaded),) = way["loads"]
    assert loaded == [30 * MB, 7, pytest.approx(1.1), pytest.approx(load_s)]
    again = Bed(tmp_path)
    again.calibration.step_ended(STEP)
    again.calibration.close()
    again.kept()
    assert len(again.recent["steps"]) == 2
    assert again.recent["ways"] == bed.recent["ways"]


def test_a_file_of_before_is_begun_with(bed: Bed, tmp_path: Path) -> None:
    bed.calibration.step_ended(STEP)
    bed.calibration.close()
    bed.path.write_text(json.dumps(bed.kept()))
    again = Bed(tmp_path)
    assert again.costs.prefill(STEP.work) != Costs().prefill(STEP.work)
    again.calibration.step_ended(STEP)
    again.calibration.close()
    again.kept()
    assert len(again.recent["steps"]) == 1


def test_it_is_written_now_and_then(bed: Bed) -> None:
    bed.calibration.step_ended(STEP)
    bed.now_s = EVERY_S - 1
    bed.calibration.step_ended(STEP)
    assert not bed.path.exists()
    bed.now_s = EVERY_S
    bed.calibration.step_ended(STEP)
    bed.file.close()
    assert bed.kept() == bed.costs.to_dict()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 99}', "null", "\x00\xff"])
def test_a_damaged_file_is_begun_anew_with_one_warning(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calibration" / "state.json"
    path.parent.mkdir()
    path.write_bytes(content.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        bed = Bed(tmp_path)
    assert len(caplog.records) == (content != "null")
    bed.calibration.step_ended(STEP)
    bed.calibration.close()
    assert json.loads(path.read_text())["schema"] == 1


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "calibration").write_text("a file")
    bed = Bed(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bed.file.write({})
        bed.file.close()
    assert len([r for r in caplog.records if "not kept" in r.message]) == 1


def test_the_file_is_of_one_model_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(learnt.platform, "node", lambda: "a/b c")
    path = state_path(b"\x01" * 32)
    assert path == tmp_path / "kvrelay" / "calibration" / f"{'01' * 8}-a_b_c.json"
    assert path != state_path(b"\x02" * 32)
    assert calibration_of(parse_policy("always"), b"\x01" * 32) is None
    calibration = calibration_of(parse_policy("cost"), b"\x01" * 32)
    assert calibration is not None
    calibration.close()


# What policies see, and how long they have


@pytest.mark.parametrize(
    ("predicted_s", "deadline_s"),
    [(None, 30.0), (0.1, DEADLINE_FLOOR_S), (4.0, 12.0), (20.0, 30.0)],
)
def test_a_load_has_the_time_that_it_is_predicted_to_take_and_more(
    predicted_s: float | None, deadline_s: float
) -> None:
    settings = RelaySettings(load_deadline_s=30.0, load_patience=3.0)
    decision = Decision(Arm.RELAY, Reason.RELAYED, 1, load_p95_s=predicted_s)
    assert load_deadline_s(decision, settings) == pytest.approx(deadline_s)


def test_no_deadline_is_longer_than_the_setting() -> None:
    decision = Decision(Arm.RELAY, Reason.RELAYED, 1, load_p95_s=0.1)
    assert load_deadline_s(decision, RelaySettings(load_deadline_s=0.5)) == 0.5


def live(there: int, total: int, **fields: Any) -> Tracked:
    request: Any = SimpleNamespace(num_computed_tokens=there, num_tokens=total)
    return Tracked(request, "auto", 0.0, **fields)


def test_the_view_tells_what_the_engine_is_busy_with() -> None:
    loading = [live(0, 900, admitted=True, loading=True, candidate=NODES)]
    others = [
        *loading,
        live(100, 1000, admitted=True),  # computes its prompt
        live(500, 501, admitted=True, first_token_s=0.1),  # decodes
        live(0, 300),  # waits
    ]
    asked = live(0, 700, draw=0.25)
    plans: Any = {
        600: SimpleNamespace(place="nodes", headers=range(6), absent={4, 5}),
        400: SimpleNamespace(place="arena", headers=range(4), absent=set()),
    }
    offered = candidates(plans, 10, loading)
    assert offered == (
        Candidate("nodes", 600, 60, 20, bytes_ahead=30 * MB),
        Candidate("arena", 400, 40, 0, bytes_ahead=0),
    )
    view = relay_view(
        asked,
        128,
        offered,
        others=[*others, asked],
        loading=loading,
        running=Work.of(0, 50),
    )
    assert (view.prompt_tokens, view.local_tokens, view.draw) == (700, 128, 0.25)
    assert (view.requests_waiting, view.requests_running) == (2, 3)
    assert (view.loads_in_flight, view.bytes_in_flight) == (1, 40 * MB)
    assert view.ahead == Work.of(0, 50).plus(Work.of(100, 900))
    assert view.beside == Work.of(500, 1)
