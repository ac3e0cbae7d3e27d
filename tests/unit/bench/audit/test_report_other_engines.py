"""What the report says of engines that differ follows the rows, whichever way they point."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.audit.report.contents import sections
from kvrelay.bench.audit.report.other_engines import notes, other_engines_table

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "analysis.json").read_text())


def changed(**changes: Any) -> dict[str, Any]:
    """The analysis with another row of the other dtype."""
    found = copy.deepcopy(WHOLE)
    found["heterogeneity"][1] |= changes
    return found


def cells(analysis: dict[str, Any], at: int) -> list[str]:
    row = other_engines_table(analysis).rows[at]
    return [cell.text.replace("\u00a0", " ") for cell in row]


def test_every_kind_has_a_line_with_its_intervals() -> None:
    assert cells(WHOLE, 0) == [
        "the same model", "6,144 of 6,144 that match", "100 % [74, 100]", "75 % [43, 95]",
        "0.213 [0.205, 0.221]", "relayed 12", "12", "as expected",
    ]  # fmt: skip
    assert cells(WHOLE, 1) == [
        "another dtype", "0 of 6,144 that match", "100 % [74, 100]", "100 % [74, 100]",
        "1.00 [0.99, 1.02]", "no_source 12", "12", "as expected",
    ]  # fmt: skip
    tones = [row[-1].tone for row in other_engines_table(changed(passed=False)).rows]
    assert tones == ["pays", "costs", "pays"]


def test_the_sentence_says_what_was_seen() -> None:
    shown, _ = notes(WHOLE)
    assert shown.startswith("An engine of the same model took over all KV that matches. Engines ")
    assert "(2) took over nothing" in shown
    assert shown.endswith("for having looked (TTFT at most 1.05 times as long).")
    alone = {"heterogeneity": WHOLE["heterogeneity"][:1]}
    assert notes(alone)[0] == "An engine of the same model took over all KV that matches."
    assert notes({"heterogeneity": WHOLE["heterogeneity"][1:]})[0].startswith("Engines that differ")


def test_what_is_not_as_it_must_be_is_named_and_nothing_else_is_said() -> None:
    shown, _ = notes(changed(passed=False, relayed_tokens=32))
    assert shown == "NOT as it must be with: another dtype."
    assert cells(changed(passed=False, relayed_tokens=32), 1)[1] == "32 of 6,144 that match"
    assert cells(changed(passed=False), 1)[-1] == "NOT as expected"


@pytest.mark.parametrize("analysis", [{}, {"heterogeneity": []}])
def test_nothing_is_said_where_nothing_was_measured(analysis: dict[str, Any]) -> None:
    assert notes(analysis) == ()
    assert other_engines_table(analysis).rows == ()


def test_a_row_that_lacks_everything_says_so() -> None:
    assert set(cells({"heterogeneity": [{}]}, 0)) == {"not measured"}
    no_interval = changed(ttft_ratio={"estimate": 1.0, "low": None, "high": None})
    assert cells(no_interval, 1)[4] == "not measured"


def test_it_is_a_part_of_the_report() -> None:
    (section,) = (each for each in sections(WHOLE) if each.key == "other-engines")
    assert section.notes == notes(WHOLE)
    assert section.tables == (other_engines_table(WHOLE),)
