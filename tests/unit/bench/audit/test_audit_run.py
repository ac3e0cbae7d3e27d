"""A run that is killed, interrupted, or fails here and there: nothing is lost, nothing repeated."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fake_audit
import pytest
import yaml
from fake_audit import FakeExecutor, content

from kvrelay.bench.audit.plan import Plan, load_plan
from kvrelay.bench.audit.run import run
from kvrelay.bench.audit.units import planned
from kvrelay.bench.errors import BenchError
from kvrelay.cluster.errors import ConfigError


@pytest.fixture
def plan() -> Plan:
    return load_plan(content())


@pytest.fixture
def executor(tmp_path: Path) -> FakeExecutor:
    return FakeExecutor(tmp_path / "asked.log")


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def rows(out: Path) -> list[dict[str, Any]]:
    return [line for line in lines(out) if set(line) != {"run"}]


def state(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "state.json").read_text())
    return found


def done_in(out: Path) -> list[str]:
    return [line["run"]["done"] for line in lines(out) if "done" in line.get("run", {})]


def requests_of(plan: Plan) -> Counter[str]:
    return Counter(
        f"{unit.key}/{place}" for unit in planned(plan) for place, _ in enumerate(unit.blocks)
    )


def asked(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_whole_run(plan: Plan, executor: FakeExecutor, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(plan, out, {"commit": "abc"}, executor.opened)
    assert Counter(row["request"] for row in rows(out)) == requests_of(plan)
    assert asked(executor.log) == [unit.key for unit in planned(plan)] == done.done
    head = lines(out)[0]["run"]
    assert head["plan_sha256"] == plan.sha256 and head["meta"] == {"commit": "abc"}
    told = state(out)
    assert told["complete"] and told["ended_by"] is None and not told["plan_changed"]
    assert (told["plan_sha256"], told["rows"]) == (plan.sha256, 24)
    assert told["discarded_requests"] == executor.discarded == 12
    assert load_plan(out / "plan.yaml").sha256 == plan.sha256


def test_a_run_that_is_done_starts_no_engine(
    plan: Plan, executor: FakeExecutor, tmp_path: Path
) -> None:
    run(plan, tmp_path / "out", {}, executor.opened)

    def fail(*_: Any) -> Any:
        raise AssertionError("it was started")

    assert run(plan, tmp_path / "out", {}, fail).left == 0


def test_a_killed_process_loses_and_repeats_nothing(plan: Plan, tmp_path: Path) -> None:
    out, log, file = tmp_path / "out", tmp_path / "asked.log", tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(content()))
    child = subprocess.Popen([sys.executable, fake_audit.__file__, file, out, log])
    deadline_s = time.monotonic() + 60
    while len(asked(log)) < 4:
        assert child.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.005)
    child.kill()
    child.wait()
    # What is on disk now must be there afterwards, byte by byte.
    whole = (out / "rows.jsonl").read_bytes()
    finished = done_in(out)
    before = asked(log)
    assert len(finished) >= 3 and set(finished) < {unit.key for unit in planned(plan)}

    run(plan, out, {}, FakeExecutor(log).opened)
    assert (out / "rows.jsonl").read_bytes().startswith(whole)
    assert Counter(row["request"] for row in rows(out)) == requests_of(plan)
    again = asked(log)[len(before) :]
    assert not set(again) & set(finished)
    assert len(again) == len(set(again)) == len(planned(plan)) - len(finished)
    assert state(out)["complete"]


@pytest.mark.parametrize(
    "torn", [b"{", b'{"session": "half', b'{"session": "s", "request": "r"}\n']
)
def test_a_torn_unit_is_measured_again(
    plan: Plan, executor: FakeExecutor, tmp_path: Path, torn: bytes
) -> None:
    out = tmp_path / "out"
    executor.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, {}, executor.opened)
    with (out / "rows.jsonl").open("ab") as tail:
        tail.write(torn)
    executor.stops_at = None
    run(plan, out, {}, executor.opened)
    assert Counter(row["request"] for row in rows(out)) == requests_of(plan)
    assert len(done_in(out)) == len(set(done_in(out))) == len(planned(plan))


def test_it_does_not_go_on_on_another_kind_of_machine(
    plan: Plan, executor: FakeExecutor, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    executor.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, {"cpu": "some", "cpu_model": "25/17/1"}, executor.opened)
    before = (out / "rows.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="another cpu_model"):
        run(plan, out, {"cpu": "some", "cpu_model": "23/49/0"}, executor.opened)
    assert (out / "rows.jsonl").read_bytes() == before
    executor.stops_at = None
    assert run(plan, out, {"cpu": "some", "cpu_model": "25/17/1"}, executor.opened).left == 0


def test_ctrl_c_keeps_what_there_is(plan: Plan, executor: FakeExecutor, tmp_path: Path) -> None:
    out = tmp_path / "out"
    executor.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, {}, executor.opened)
    assert len(rows(out)) == 8
    told = state(out)
    assert (told["ended_by"], told["left"], told["complete"]) == ("KeyboardInterrupt", 8, False)
    executor.stops_at = None
    run(plan, out, {}, executor.opened)
    assert Counter(row["request"] for row in rows(out)) == requests_of(plan)
    assert state(out)["ended_by"] is None


def test_a_unit_that_fails_is_tried_once_more(
    plan: Plan, executor: FakeExecutor, tmp_path: Path
) -> None:
    out, units = tmp_path / "out", planned(plan)
    executor.fails = {units[2].key: 1, units[7].key: 2}
    run(plan, out, {}, executor.opened)
    measured = Counter(row["session"] for row in rows(out))
    assert units[7].key not in measured and measured[units[2].key] == 2
    told = state(out)
    assert told["lost"] == {units[2].key: "A did not answer", units[7].key: "A did not answer"}
    assert (told["left"], told["complete"]) == (1, False)


def test_three_failures_in_a_row_end_the_run(
    plan: Plan, executor: FakeExecutor, tmp_path: Path
) -> None:
    executor.fails = {unit.key: 9 for unit in planned(plan)[1:]}
    with pytest.raises(BenchError, match=r"3 units in a row could not be measured.*A did not"):
        run(plan, tmp_path / "out", {}, executor.opened)
    assert len(asked(executor.log)) == 4
    assert state(tmp_path / "out")["ended_by"] == "BenchError"


def test_a_plan_that_grew_keeps_what_it_has_and_says_so(
    plan: Plan, executor: FakeExecutor, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(plan, out, {}, executor.opened)
    arms = [{**arm, "pairs": 8} for arm in content()["arms"]]
    more = load_plan(content(arms=arms))
    run(more, out, {}, executor.opened)
    assert Counter(row["request"] for row in rows(out)) == requests_of(more)
    assert len(asked(executor.log)) == len(planned(more)) == 16
    told = state(out)
    assert told["plan_changed"] and told["plans"] == [plan.sha256, more.sha256]
    assert load_plan(out / f"plan.{plan.sha256[:8]}.yaml").sha256 == plan.sha256
    assert load_plan(out / "plan.yaml").sha256 == more.sha256


def test_why_a_column_is_empty_is_kept(plan: Plan, executor: FakeExecutor, tmp_path: Path) -> None:
    out, reasons = tmp_path / "out", {"cosine": "no model"}
    executor.stops_at = 5
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, {"not_measured": reasons}, executor.opened)
    assert state(out)["not_measured"] == reasons
    executor.stops_at = None
    run(plan, out, {}, executor.opened)
    assert state(out)["not_measured"] == reasons


def test_a_folder_of_something_else(plan: Plan, executor: FakeExecutor, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1: no row of an audit"):
        run(plan, tmp_path, {}, executor.opened)
    assert (tmp_path / "rows.jsonl").read_text() == "no json\n"


def test_two_processes_at_one_folder(plan: Plan, executor: FakeExecutor, tmp_path: Path) -> None:
    class Inner(FakeExecutor):
        def measure(self, unit: Any) -> Any:
            with pytest.raises(ConfigError, match="another run is writing there"):
                run(plan, tmp_path / "out", {}, executor.opened)
            return super().measure(unit)

    run(plan, tmp_path / "out", {}, Inner(executor.log).opened)
    assert Counter(row["request"] for row in rows(tmp_path / "out")) == requests_of(plan)


def test_no_row_may_hold_what_json_does_not(plan: Plan, tmp_path: Path) -> None:
    class Infinite(FakeExecutor):
        def measure(self, unit: Any) -> Any:
            return [{**row, "ttft_s": float("inf")} for row in super().measure(unit)]

    with pytest.raises(ValueError, match="not JSON compliant"):
        run(plan, tmp_path / "out", {}, Infinite(tmp_path / "log").opened)
    assert rows(tmp_path / "out") == []


def test_engines_that_change_the_working_directory(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moving(FakeExecutor):
        def measure(self, unit: Any) -> Any:
            monkeypatch.chdir("/")  # as a cluster does that starts
            return super().measure(unit)

    monkeypatch.chdir(tmp_path)
    run(plan, Path("out"), {}, Moving(tmp_path / "log").opened)
    assert Counter(row["request"] for row in rows(tmp_path / "out")) == requests_of(plan)
    assert state(tmp_path / "out")["complete"]
