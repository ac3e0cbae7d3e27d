"""What a benchmark leaves behind: one JSON object, raw samples, a table.

    {"meta": {...}, "rows": [...]}

Files are written whole or not at all, also when the run is interrupted: `meta.complete` says
whether it came to its end, `meta.ended_by` what ended it. Nothing in them tells whose machine
it was: no host or user name, no path.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.facts import machine_facts
from kvrelay.cluster.model import DEMO_MODEL, GGUF_NAME

Row = dict[str, Any]


@dataclass(slots=True)
class Report:
    """A benchmark under way.

    Attributes:
        meta: what the figures have to carry with them.
        summarize: makes the rows of the samples so far.
        samples: every timed request, in the order in which it was made.
    """

    meta: dict[str, Any]
    summarize: Callable[[Sequence[Row]], list[Row]]
    samples: list[Row] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """The rows as far as there are samples."""
        return self.summarize(self.samples)

    def write(self, json_file: Path | None, samples_file: Path | None) -> None:
        """Write the files that were asked for."""
        if json_file is not None:
            content = {"meta": self.meta, "rows": self.rows()}
            write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        if samples_file is not None:
            lines = (json.dumps(sample) + "\n" for sample in self.samples)
            write_atomically(samples_file, "".join(lines))


@contextlib.contextmanager
def kept(report: Report, json_file: Path | None, samples_file: Path | None) -> Iterator[None]:
    """Write the report when the block is left, however that happens.

    Raises:
        ConfigError: at once, if a file could not be written in the end.
    """
    for option, file in (("--json", json_file), ("--samples", samples_file)):
        if file is not None and not os.access(file.parent, os.W_OK):
            raise ConfigError(f"{option} {file}: the folder is not there or cannot be written")
    report.meta |= {"complete": False, "ended_by": None}
    try:
        yield
        report.meta["complete"] = True
    except BaseException as error:
        report.meta["ended_by"] = type(error).__name__
        if report.samples:
            err.print(f"interrupted; keeping what {len(report.samples)} requests gave")
        raise
    finally:
        report.meta["ended"] = _now()
        if report.samples:
            report.write(json_file, samples_file)


def new_meta(model: str, seed: int, **more: Any) -> dict[str, Any]:
    """Command, commit, versions, machine, model, start time and seed."""
    facts = machine_facts()
    return {
        **facts,
        "command": without_paths(facts["command"]),
        "commit": _commit(),
        "model": _model_name(model),
        "started": _now(),
        "seed": seed,
        **more,
    }


def without_paths(command: str) -> str:
    """The command line with absolute paths cut down to file names."""
    words = []
    for word in shlex.split(command):
        option, equals, value = word.rpartition("=")
        words.append(
            option + equals + (Path(value).name if value.startswith(("/", "~")) else value)
        )
    return shlex.join(words)


def write_atomically(file: Path, content: str) -> None:
    """Replace a file whole."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(content, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def show(title: str, columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row]) -> None:
    """Print rows as a table: heading and cell of each column."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    out.print(table)


def seconds(name: str) -> Callable[[Row], str]:
    """A cell: median of a figure, and half its range in percent of that."""

    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "-"
        spread = 50 * (value["max"] - value["min"]) / value["median"] if value["median"] else 0.0
        return f"{value['median']:.3f}\n[dim]±{spread:.0f} %[/]"

    return cell


def number(name: str, form: str = "") -> Callable[[Row], str]:
    """A cell: a plain field."""

    def cell(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else format(value, form)

    return cell


def _model_name(model: str) -> str:
    if model == DEMO_MODEL:
        return f"{DEMO_MODEL} ({GGUF_NAME.partition('.')[0]})"
    return Path(model).name if Path(model).is_dir() else model


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str | None:
    """The commit of the checkout this runs from, `-dirty` if files differ; None elsewhere."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--match="]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip() or None
    return None
