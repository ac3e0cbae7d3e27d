"""The Markdown: a screen that says it all, then tables that no string can break."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.audit.report import markdown, writing
from kvrelay.bench.audit.report.contents import CAUTION
from kvrelay.bench.errors import BenchError

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "analysis.json").read_text())


def bars(line: str) -> int:
    """Cell borders of a line of a table: bars that no backslash has made text."""
    return line.replace("\\\\", "").replace("\\|", "").count("|")


@pytest.mark.parametrize("prefix", ["", "a|b\\", "`x`\n| - |", "\\|"])
def test_every_line_of_a_table_has_as_many_cells(prefix: str) -> None:
    analysis = json.loads(json.dumps(WHOLE))
    for check in analysis["checks"]:
        check["words"] = prefix + check["words"]
    analysis["meta"]["question"] = prefix
    blocks = [block.splitlines() for block in markdown.render(analysis).split("\n\n")]
    tables = [block for block in blocks if block[0].startswith("| ")]
    assert len(tables) > 10
    for block in tables:
        assert {bars(line) for line in block} == {bars(block[1])}


def test_the_summary_fits_on_a_screen_and_begins_with_the_verdict() -> None:
    text = markdown.render(WHOLE)
    summary = text.split("\n## ")[0].splitlines()
    assert len(summary) <= 40
    verdicts = [number for number, line in enumerate(summary) if line.startswith("**Of 12 cond")]
    assert verdicts and verdicts[0] < 6
    assert CAUTION in summary
    assert "checks passed" in "\n".join(summary) and WHOLE["meta"]["plan_sha256"] in text


def test_what_is_missing_is_said() -> None:
    text = markdown.render({})
    assert text.count("not measured") > 10
    assert not re.search(r"\b(nan|inf|None|null)\b", text)


def test_text_stays_text() -> None:
    assert markdown.escape("a|b *c* <d> &e; [f](g) `h` _i_") == (
        "a\\|b \\*c\\* \\<d\\> &amp;e; \\[f\\](g) \\`h\\` \\_i\\_"
    )
    assert markdown.escape("# no heading") == "\\# no heading"


def test_a_report_is_written_beside_its_analysis(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text(json.dumps(WHOLE))
    files = writing.write(tmp_path)
    assert [file.name for file in files] == ["report.html", "report.md", "break_even.svg"]
    before = [file.read_bytes() for file in files]
    writing.write(tmp_path)
    assert [file.read_bytes() for file in files] == before
    (tmp_path / "analysis.json").write_text("{}")
    assert [file.name for file in writing.write(tmp_path)] == ["report.html", "report.md"]


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_what_is_no_analysis_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "analysis.json").write_text(content)
    with pytest.raises(BenchError, match=r"analysis\.json"):
        writing.write(tmp_path)


def test_intervals_keep_their_brackets_and_links_cannot_be_made_of_them() -> None:
    assert markdown.escape("TTFT −83 % [−85, −81]") == "TTFT −83 % [−85, −81]"
    assert markdown.escape("[1](http)") == "[1\\](http)"
    assert markdown.escape("[2]: http") == "[2\\]: http"


def test_a_drift_is_said_to_be_a_lower_bound() -> None:
    row = {"measure": "logprob_drift", "arm": "relay", "stratum": None, "difference": 0.01,
           "low90": 0.0, "high90": 0.02, "margin": 0.05, "equivalent": True, "n": 16}  # fmt: skip
    text = markdown.render({"quality": [row]})
    assert "| logprob drift (lower bound) | relay |" in text
    assert "Logprob drift is a lower bound." in text
