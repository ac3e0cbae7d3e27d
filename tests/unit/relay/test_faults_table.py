"""relay/FAULTS.md promises tests: they exist, and every fault has an answer."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "relay" / "FAULTS.md"
TEST = re.compile(r"`(\w+/[\w/]+\.py)::(\w+)`")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| what ", "| --- "))
]


@cache
def names_in(file: str) -> set[str]:
    """Names of the tests of a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1].split(",")[0])
def test_every_fault_has_an_answer_that_can_be_checked(row: list[str]) -> None:
    _, source, answer = row
    assert re.search(r"#\d+|^llm-d,", source)
    named = TEST.findall(answer)
    assert len(named) == answer.count("::"), "a test is not named as folder/file.py::test"
    assert [name for file, name in named if name not in names_in(file)] == []
    kind = re.match(r"\*(Tested|Cannot|Open)\*", answer)
    assert kind, "neither tested, nor impossible, nor open"
    assert named or kind[1] != "Tested"


def test_the_table_is_read_and_found() -> None:
    assert len(ROWS) > 30
    assert "FAULTS.md" in (TABLE.parent / "README.md").read_text(encoding="utf-8")
