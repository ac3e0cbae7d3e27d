"""Scores of policies on pairs whose truth is known, and raw data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench import policies_rows
from kvrelay.bench.policies_aims import aims
from kvrelay.bench.policies_rows import Cell, decisions, pair_of, summarize, view_of, wanted
from kvrelay.bench.raw import RawFile
from kvrelay.bench.replayed import Load, Step
from kvrelay.bench.stats import half_width
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies import Arm, Decision, RelayPolicy, RelayView, parse_policy
from kvrelay.policies.costs import Costs
from kvrelay.policies.decision import Reason, recompute

Row = dict[str, Any]
POLICIES = ("always", "never", "min_tokens:256")


def line(cell: Cell, number: int, recompute_s: float, relay_s: float) -> Row:
    """A pair as it stands in the raw data."""
    shared = cell.shared_tokens
    return {
        **cell.factors(),
        "pair": number,
        "recompute_s": recompute_s,
        "relay_s": relay_s,
        "local_hit_s": 0.1 if shared else None,
        "similarity": 0.88 if shared else None,
        "record": {
            "prompt_tokens": cell.tokens,
            "local_tokens": 0,
            "relayed_tokens": shared,
            "num_bytes": 1000 * shared,
            "fetched_bytes": 0 if cell.link == "same-node" else 1000 * shared,
            "load_path": "nodes" if shared else None,
            "load_s": 0.25 * relay_s,
        },
    }


def lines(truth: dict[Cell, tuple[float, float]], pairs: int = 8) -> list[Row]:
    """A little noise, the same for both arms."""
    return [
        line(cell, number, recompute_s * (1 + 0.01 * number), relay_s * (1 + 0.01 * number))
        for number in range(pairs)
        for cell, (recompute_s, relay_s) in truth.items()
    ]


NEAR_SHORT, NEAR_LONG = Cell(0.5, 512, "same-node"), Cell(0.5, 2048, "same-node")
FAR_SHORT, FAR_LONG = Cell(0.5, 512, "100mbit"), Cell(0.5, 2048, "100mbit")
NOTHING = Cell(0.0, 512, "100mbit")
TRUTH = {
    NEAR_SHORT: (0.4, 0.2),
    NEAR_LONG: (2.0, 0.5),
    FAR_SHORT: (0.4, 0.8),
    FAR_LONG: (2.0, 1.6),
    NOTHING: (0.4, 0.4),
}


def live_line(cell: Cell, number: int, arms_s: tuple[float, float, float], decided: str) -> Row:
    """A round as it stands in the raw data: recompute, relay, cost, and what cost decided."""
    recompute_s, relay_s, cost_s = arms_s
    shared = {"relay": cell.shared_tokens, "part": 100, "recompute": 0}
    records = [
        {"relayed_tokens": shared[word], "decision": {"explored": word == "part"}}
        for word in decided.split()
    ]
    requests = {"cost": [{"seconds": cost_s, "record": record} for record in records]}
    sample = line(cell, number, recompute_s, relay_s)
    return {**sample, "cost_s": cost_s, "requests": requests}


def by_policy(rows: Sequence[Row], cell: Cell | None = None) -> dict[str, Row]:
    """Rows of the grid, or of a cell."""
    if cell is None:
        return {row["policy"]: row for row in rows if "cells" in row}
    factors = cell.factors().items()
    return {row["policy"]: row for row in rows if factors <= row.items() and "cells" not in row}


def test_each_rule_has_regret_where_it_is_wrong_and_only_there() -> None:
    rows = summarize(lines(TRUTH), POLICIES)
    regrets = {
        cell: {name: row["regret"]["estimate"] for name, row in by_policy(rows, cell).items()}
        for cell in TRUTH
    }
    assert regrets[NEAR_SHORT]["never"] == pytest.approx(1.0)
    assert regrets[NEAR_LONG]["never"] == pytest.approx(3.0)
    assert regrets[FAR_SHORT]["always"] == pytest.approx(1.0)
    assert regrets[FAR_LONG]["never"] == pytest.approx(0.25)
    for cell, name in (
        (NEAR_SHORT, "always"),
        (NEAR_LONG, "always"),
        (FAR_SHORT, "never"),
        (FAR_LONG, "always"),
    ):
        assert regrets[cell][name] == pytest.approx(0.0)
    assert set(regrets[NOTHING].values()) == {0.0}
    grid = by_policy(rows)
    assert grid["never"]["regret"]["estimate"] == pytest.approx(4.25 / 5)
    assert grid["always"]["regret"]["estimate"] == pytest.approx(1.0 / 5)
    # Both arms of a pair are off by the same, so that drawing pairs anew changes nothing.
    assert grid["never"]["regret"]["low"] == pytest.approx(4.25 / 5)


def test_an_oracle_has_no_regret() -> None:
    rows = summarize(lines(TRUTH), POLICIES)
    oracle = by_policy(rows)["oracle"]
    assert oracle["regret"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}
    assert oracle["mean_ttft_s"] == pytest.approx((0.2 + 0.5 + 0.4 + 1.6 + 0.4) / 5 * 1.035)
    assert by_policy(rows, FAR_LONG)["oracle"]["decided"] == {"relay": 8}
    assert by_policy(rows, NOTHING)["always"]["decided"] == {"recompute": 8}


def test_the_oracle_does_not_see_the_pair_that_it_is_scored_on() -> None:
    # In each half the other arm looks better: knowing that, an oracle would be at 1.
    samples = [line(FAR_LONG, n, *((1.0, 2.0) if n % 2 else (2.0, 1.0))) for n in range(8)]
    oracle = by_policy(summarize(samples, POLICIES), FAR_LONG)["oracle"]
    assert oracle["mean_ttft_s"] == pytest.approx(2.0)
    # A lone pair has no other half.
    alone = by_policy(summarize(samples[:1], POLICIES), FAR_LONG)["oracle"]
    assert alone["mean_ttft_s"] == pytest.approx(1.0) and "low" not in alone["regret"]


def test_the_best_threshold_of_each_link() -> None:
    rows = summarize(lines(TRUTH), POLICIES)
    best = by_policy(rows)["per_link_constant"]
    assert best["min_tokens"] == {"100mbit": 257, "same-node": 1}
    assert best["regret"]["estimate"] == pytest.approx(0.0)
    # Where long ones should be computed and short ones relayed, no threshold is right.
    turned = {FAR_SHORT: (0.8, 0.4), FAR_LONG: (1.6, 2.0)}
    worse = by_policy(summarize(lines(turned), POLICIES))["per_link_constant"]
    assert worse["regret"]["estimate"] == pytest.approx(0.25 / 2)
    assert worse["min_tokens"] == {"100mbit": 1}


def test_the_owner_is_an_arm_of_its_own() -> None:
    rows = summarize(lines(TRUTH), POLICIES)
    owner = by_policy(rows, NEAR_LONG)["owner_affinity"]
    assert owner["decided"] == {"owner_affinity": 8} and owner["mean_ttft_s"] == 0.1
    assert owner["regret"]["estimate"] < 0
    assert by_policy(rows, NOTHING)["owner_affinity"]["regret"]["estimate"] == 0.0


def test_on_live_cells_cost_is_what_it_was() -> None:
    busy = Cell(0.5, 2048, "100mbit", "busy")
    samples = [live_line(busy, n, (2.0, 1.6, 1.2), "relay recompute part") for n in range(4)]
    rows = by_policy(summarize(samples, (*POLICIES, "cost")), busy)
    assert rows["cost"]["mean_ttft_s"] == 1.2 and rows["cost"]["pairs"] == 4
    assert rows["cost"]["decided"] == {"recompute": 4, "relay": 4, "relay_part": 4}
    assert rows["cost"]["regret"]["estimate"] == pytest.approx(1.2 / 1.6 - 1)
    assert rows["cost"]["explored"] == 4 and "explored" not in rows["never"]
    assert rows["always"]["mean_ttft_s"] == 1.6 and rows["always"]["decided"] == {"relay": 12}
    assert rows["never"]["mean_ttft_s"] == 2.0
    # Beside idle cells, where it is replayed.
    mixed = summarize([*lines(TRUTH), *samples], (*POLICIES, "cost"))
    assert by_policy(mixed, busy)["cost"]["mean_ttft_s"] == 1.2
    assert by_policy(mixed, NEAR_LONG)["cost"]["decided"] == {"relay": 8}
    assert by_policy(mixed)["never"]["cells"] == 6
    # Tails are of no grid.
    tail = live_line(Cell(0.5, 1024, "100mbit", "tail"), 0, (2.0, 1.6, 1.2), "relay")
    assert summarize([tail], POLICIES) == []


def test_similarity_goes_by_the_cosine_of_each_pair() -> None:
    # .88 is above the threshold of this node and below that of others.
    samples = lines(TRUTH)
    for sample in samples:
        if sample["link"] == "same-node" and sample["record"]["relayed_tokens"]:
            sample["record"]["load_path"] = "arena"
    rows = summarize(samples, ("similarity:0.85,0.90", "never"))
    assert by_policy(rows, NEAR_LONG)["similarity:0.85,0.90"]["decided"] == {"relay": 8}
    assert by_policy(rows, FAR_LONG)["similarity:0.85,0.90"]["decided"] == {"recompute": 8}


def test_intervals_cover_what_differs_between_pairs() -> None:
    samples = [line(FAR_SHORT, n, 0.4, 0.8 + 0.1 * (n % 4)) for n in range(8)]
    always = by_policy(summarize(samples, POLICIES), FAR_SHORT)["always"]["regret"]
    assert always["estimate"] == pytest.approx(0.95 / 0.4 - 1)
    assert 1.1 < always["low"] < always["estimate"] < always["high"] < 1.7


def test_rows_say_whether_the_arms_are_known() -> None:
    sure = by_policy(summarize(lines(TRUTH), POLICIES), NEAR_LONG)["never"]
    assert sure["resolved"] is True and sure["recompute_over_relay"] == pytest.approx(4.0)
    noisy = [line(FAR_LONG, n, 2.0, 1.0 + 0.2 * n) for n in range(8)]
    assert by_policy(summarize(noisy, POLICIES), FAR_LONG)["never"]["resolved"] is False
    assert summarize([], POLICIES) == []
    json.dumps(summarize(noisy, POLICIES))
    for row in summarize(lines(TRUTH), POLICIES):
        table = policies_rows.GRID_TABLE if "cells" in row else policies_rows.CELLS_TABLE
        assert all(cell(row) for cell in table.values())


def test_half_widths() -> None:
    assert half_width([2.0] * 8) == 0.0
    assert half_width([1.0, 1.1, 0.9]) == float("inf")
    # Eight ratios: t is 2.3646 with 7 degrees of freedom, 3.1824 with 3.
    logs = [0.1, -0.1] * 4
    error = 0.1 * (8 / 7) ** 0.5 / 8**0.5
    assert half_width([2.718281828**log for log in logs]) == pytest.approx(
        2.718281828 ** (2.3646 * error) - 1, rel=1e-3
    )
    error = 0.1 * (4 / 3) ** 0.5 / 2
    assert half_width([2.718281828**log for log in logs[:4]]) == pytest.approx(
        2.718281828 ** (3.1824 * error) - 1, rel=1e-2
    )


def test_cells_get_more_pairs_until_they_are_resolved() -> None:
    cells = [NEAR_LONG, FAR_LONG]
    assert wanted([], cells, 8, 16) == {NEAR_LONG: 8, FAR_LONG: 8}
    some = lines({NEAR_LONG: (2.0, 0.5)}, 3)
    assert wanted(some, cells, 8, 16) == {NEAR_LONG: 5, FAR_LONG: 8}
    noisy = [line(FAR_LONG, n, 2.0, 1.0 + 0.2 * n) for n in range(8)]
    samples = lines({NEAR_LONG: (2.0, 0.5)}) + noisy
    assert wanted(samples, cells, 8, 8) == {}
    assert wanted(samples, cells, 8, 16) == {FAR_LONG: 8}
    # Cells of another grid do not matter.
    assert wanted(samples, [NEAR_SHORT], 1, 1) == {NEAR_SHORT: 1}


def test_the_view_is_that_of_the_record() -> None:
    view = view_of(line(FAR_LONG, 0, 1.0, 1.0)["record"], 0.88)
    assert view is not None
    (candidate,) = view.candidates
    assert (view.prompt_tokens, view.local_tokens, view.similarity) == (2048, 0, 0.88)
    assert (candidate.place, candidate.num_tokens, candidate.num_bytes) == (
        "nodes",
        1024,
        1_024_000,
    )
    assert view_of(line(NOTHING, 0, 1.0, 1.0)["record"], None) is None


class Student(RelayPolicy):
    """Relays over a link on which a load has been seen to be fast."""

    def __init__(self) -> None:
        self.seen: list[Step | Load] = []

    @property
    def name(self) -> str:
        return "student"

    def decide(self, view: RelayView) -> Decision:
        loads = [what.seconds for what in self.seen if isinstance(what, Load)]
        if min(loads) < 0.1:
            return Decision(Arm.RELAY, Reason.RELAYED, view.candidates[0].num_tokens)
        return recompute(Reason.TOO_FEW_TOKENS)


def test_policies_that_learn_do_so_link_by_link_from_the_other_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    students: list[Student] = []

    def parse(text: str, costs: Costs) -> RelayPolicy:
        students.append(Student())
        return students[-1]

    monkeypatch.setattr(policies_rows, "parse_policy", parse)
    monkeypatch.setattr(policies_rows, "teach", lambda student, what: student.seen.append(what))
    truth = {NEAR_SHORT: (0.4, 0.2), FAR_SHORT: (0.4, 0.8)}
    pairs = [pair_of(sample) for sample in lines(truth, 2)]
    assert decisions(pairs, "student") == [Arm.RELAY, Arm.RECOMPUTE] * 2
    assert len(students) == 4
    far_first = students[0]  # links in order of their names; taught by pair 1, then by its choice
    assert far_first.seen == [
        Load("nodes", 256_000, 256_000, 0, pytest.approx(0.25 * 0.808)),
        Step(((256, 256),), pytest.approx(0.75 * 0.808)),
        Step(((0, 512),), pytest.approx(0.404)),
        Step(((0, 512),), 0.4),
    ]


def test_aims() -> None:
    rows = summarize(lines(TRUTH), POLICIES)
    close, resolved = aims(rows, smoke=False)
    assert close.holds and close.found == "1 of 4"
    assert resolved.holds and resolved.found == "0 of 5"
    always, never = aims(rows, smoke=True)
    assert (always.holds, always.found) == (False, "20.0%") and never.holds
    assert never.line().startswith("met: never") and "NOT MET" in always.line()
    clear = {cell: arms for cell, arms in TRUTH.items() if cell is not FAR_LONG}
    assert not aims(summarize(lines(clear), POLICIES), smoke=False)[0].holds
    noisy = [line(FAR_LONG, n, 2.0, 1.0 + 0.2 * n) for n in range(8)]
    assert not aims(summarize(noisy, POLICIES), smoke=False)[1].holds


def test_aims_of_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, good in (("min_tokens:257", False), ("right", True)):
        rows = summarize_as_cost(monkeypatch, name)
        small, no_worse, *better = aims(rows, smoke=False)[2:]
        assert (small.holds, no_worse.holds) == (good, good)
        held = {aim.text.split()[-1]: aim.holds for aim in better}
        assert set(held) == {*POLICIES, "per_link_constant"}
        if good:
            assert held["never"] and held["always"] and not held["per_link_constant"]
        else:
            assert "worst" in no_worse.found and not held["per_link_constant"]


def summarize_as_cost(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Row]:
    """The rows if `cost` decided as another policy, or always right."""

    class Right(RelayPolicy):
        name = "right"  # type: ignore[assignment]

        def decide(self, view: RelayView) -> Decision:
            tokens = view.candidates[0].num_tokens
            if (view.candidates[0].place, tokens) == ("nodes", FAR_SHORT.shared_tokens):
                return recompute(Reason.TOO_FEW_TOKENS)
            return Decision(Arm.RELAY, Reason.RELAYED, tokens)

    def parse(text: str, costs: Costs) -> RelayPolicy:
        if text != "cost":
            return parse_policy(text, costs)
        return Right() if name == "right" else parse_policy(name)

    monkeypatch.setattr(policies_rows, "parse_policy", parse)
    samples = lines(TRUTH)
    for sample in samples:
        if sample["link"] == "same-node":
            sample["record"]["load_path"] = "arena"
    return summarize(samples, (*POLICIES, "cost"))


# Raw data


def test_raw_data_stays_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test bed changes the working folder behind its back."""
    monkeypatch.chdir(tmp_path)
    raw = RawFile(Path("p.jsonl"), False, {})
    monkeypatch.chdir("/")
    raw.keep({"pair": 0})
    assert (tmp_path / "p.jsonl").is_file()


def test_raw_data_is_on_disk_at_once_and_taken_up_again(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    first = RawFile(file, False, {"model": "demo"})
    assert not file.exists()
    first.keep({"pair": 0})
    assert [json.loads(text) for text in file.read_text().splitlines()] == [
        {"run": {"model": "demo"}},
        {"pair": 0},
    ]
    with file.open("a") as lines:
        lines.write('{"pair": 1')  # killed while writing
    again = RawFile(file, True, {"model": "demo"})
    assert again.samples == [{"pair": 0}]
    again.keep({"pair": 1})
    assert RawFile(file, True, {"model": "demo"}).samples == [{"pair": 0}, {"pair": 1}]
    with pytest.raises(ConfigError, match="another model"):
        RawFile(file, True, {"model": "other"})
    # What earlier files did not tell is not held against them.
    assert len(RawFile(file, True, {"model": "demo", "cpu_model": "25/17/1"}).samples) == 2
    with pytest.raises(ConfigError, match="--resume goes on with it"):
        RawFile(file, False, {"model": "demo"})


def test_raw_data_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"run": {}}\nnonsense\n')
    with pytest.raises(ConfigError, match="line 2"):
        RawFile(file, True, {})
    with pytest.raises(ConfigError, match="name it"):
        RawFile(None, True, {})
    nowhere = RawFile(None, False, {})
    nowhere.keep({"pair": 0})
    assert nowhere.samples == [{"pair": 0}]
