"""The last observations: bounded, kept, and read again, by whatever version wrote them."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelay.policies import Costs, Work
from kvrelay.policies.costs import MAX_WAYS
from kvrelay.relay import learnt
from kvrelay.relay.learnt import (
    MAX_LOADS,
    MAX_STEPS,
    Memory,
    SeenLoad,
    SeenStep,
    engine_and_machine,
    read,
    state_path,
)

STEP = SeenStep(1000.0, 512, 512**2, 0.3, 0.25)
LOAD = SeenLoad(1001.0, 30_000_000, 0, 0.5, 0.4)
NIXL = ("nodes", "n2", "nixl", "tcp/eth0", "raw")


def costs() -> Costs:
    known = Costs()
    for _ in range(6):
        known.observe_step(Work.of(0, 512), 0.3)
        known.observe_load(NIXL, 30_000_000, 0, 0.5)
    return known


def write(path: Path, **more: Any) -> Path:
    path.write_text(json.dumps(costs().to_dict() | more))
    return path


def test_they_are_bounded() -> None:
    memory = Memory("a")
    for n in range(2 * MAX_STEPS):
        memory.add_step(STEP._replace(tokens=n))
        memory.add_load(NIXL, LOAD)
        memory.add_load(("nodes", f"n{n}"), LOAD)
    state = memory.to_dict()
    assert [step.tokens for step in state["steps"]] == list(range(MAX_STEPS, 2 * MAX_STEPS))
    loads = {tuple(each["way"]): each["loads"] for each in state["ways"]}
    assert len(loads) == MAX_WAYS
    assert loads[NIXL] == [LOAD] * MAX_LOADS


def test_they_outlive_the_engine() -> None:
    memory = Memory("a")
    memory.add_step(STEP)
    memory.add_load(NIXL, LOAD)
    state = json.loads(json.dumps(memory.to_dict()))
    again = Memory("b")
    again.restore(state)
    again.add_step(STEP)
    assert again.to_dict() == memory.to_dict() | {"agent": "b", "steps": [STEP, STEP]}


@pytest.mark.parametrize("state", [None, 7, [], {"steps": [[1]]}, {"ways": [{"way": "nodes"}]}])
def test_what_is_none_is_refused_and_changes_nothing(state: Any) -> None:
    memory = Memory("a")
    memory.add_step(STEP)
    with pytest.raises(ValueError, match="no last observations"):
        memory.restore(state)
    assert memory.to_dict()["steps"] == [STEP]


def test_a_file_is_read(tmp_path: Path) -> None:
    memory = Memory("a")
    memory.add_step(STEP)
    memory.add_load(NIXL, LOAD)
    saved = read(write(tmp_path / "state.json", recent=memory.to_dict()))
    assert saved.recent.agent == "a"
    assert saved.recent.steps == (STEP,)
    assert [(each.way, each.loads) for each in saved.recent.ways] == [(NIXL, (LOAD,))]
    assert saved.prefill.count == 6
    assert [curve.way for curve in saved.loads][-1] == NIXL


def test_a_file_of_before_has_no_last_observations(tmp_path: Path) -> None:
    assert read(write(tmp_path / "state.json")).recent.steps == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "truncated"),
        ("[]", "object"),
        ('{"schema": 1}', "missing"),
        (json.dumps(Costs().to_dict() | {"schema": 99}), "version 99"),
        ("\x00", "malformed"),
    ],
)
def test_a_damaged_file_says_why(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        read(path)


def test_a_name_tells_engine_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt.platform, "node", lambda: "a-b.c")
    assert engine_and_machine(state_path(b"\x01" * 32)) == ("01" * 8, "a-b.c")
