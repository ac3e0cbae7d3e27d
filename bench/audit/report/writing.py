"""From analysis.json to report.html and report.md, beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvrelay.bench.audit.report import charts_map, markdown, page
from kvrelay.bench.audit.report.plot import standalone
from kvrelay.bench.errors import BenchError
from kvrelay.bench.report import write_atomically

ANALYSIS, PAGE, SUMMARY, PICTURE = "analysis.json", "report.html", "report.md", "break_even.svg"


def write(folder: Path) -> list[Path]:
    """Write the report of a run, and its break-even map as a picture if there is one.

    Args:
        folder: of the run; holds analysis.json.

    Returns:
        The files that were written.

    Raises:
        BenchError: analysis.json is not there, or is no analysis.
    """
    analysis = read(folder / ANALYSIS)
    contents = {PAGE: page.render(analysis), SUMMARY: markdown.render(analysis)}
    drawn = charts_map.break_even_map(analysis)
    if drawn is None:
        (folder / PICTURE).unlink(missing_ok=True)  # of an earlier analysis
    else:
        contents[PICTURE] = standalone(drawn)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def read(file: Path) -> dict[str, Any]:
    """An analysis.

    Raises:
        BenchError: the file is not there, cannot be read, or is no JSON object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{file.name}: {error.strerror}; run `kvrelay audit analyze`") from error
    except ValueError as error:
        raise BenchError(f"{file.name}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BenchError(f"{file.name}: an analysis is a JSON object")
    return found
