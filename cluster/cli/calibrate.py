"""`kvrelay calibrate`: what engines have learnt about seconds, read from what they keep."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvrelay.cluster.calibration_picture import draw
from kvrelay.cluster.calibration_rows import (
    Row,
    age_text,
    formula,
    main_ways,
    make_row,
    name_of,
    off_text,
    step_bins,
    way_text,
)
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError
from kvrelay.relay.learnt import folder, read


def calibrate(
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="of the files; default: this user's cache")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="only that whose fingerprint begins so")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write all there, every observation included")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="draw it there, as .svg")] = None,
) -> None:
    """What the policy `cost` has learnt: what prefill and loads take, and how far that was off.

    For each engine (by the fingerprint of its model, settings and versions) the fitted curve of a
    step, and for each way that KV comes by latency and rate. A residual is how much longer than
    predicted something has taken; the prediction is that of before. Engines with
    `relay.policy: cost` keep this on their own node, where the command is to be run, and write it
    every ten seconds while they have something to do.

    Examples:

      kvrelay calibrate

      kvrelay calibrate --picture curves.svg

      kvrelay calibrate --engine 3fa9 --json curves.json
    """
    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(f"--picture {picture}: only .svg is drawn, which every browser opens")
    where = folder() if directory is None else directory
    rows = _read(where, engine or "")
    for row in rows:
        _show(row)
    out.print(
        "squares: (there + tokens)² - there², of tokens computed behind those that are there. "
        "Factor: of 100 realised seconds, 50 (5 to 95) are below the curve times this. "
        "Off: realised over predicted, less one; median.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    if json_file is not None:
        json_file.write_text(json.dumps({"engines": rows}, indent=1) + "\n", encoding="utf-8")
    if picture is not None:
        picture.write_text(draw(rows), encoding="utf-8")
        err.print(f"drawn: {picture}", highlight=False)


def _read(where: Path, engine: str) -> list[Row]:
    """Rows of all files whose name begins so, the one that was written last first.

    Raises:
        ConfigError: there is none.
    """
    now_s = time.time()
    rows, found = [], False
    for path in sorted(where.glob("*.json")):
        found = True
        if not path.name.startswith(engine):
            continue
        try:
            rows.append((path.stat().st_mtime, make_row(path, read(path), now_s)))
        except (OSError, ValueError) as error:
            err.print(f"left out {path}: {error}", style="yellow", highlight=False, markup=False)
    if not rows:
        raise ConfigError(_nothing(where, engine, found))
    return [row for _, row in sorted(rows, key=lambda each: each[0], reverse=True)]


def _nothing(where: Path, engine: str, found: bool) -> str:
    if found:
        wanted = f" of an engine {engine}..." if engine else ""
        return f"{where}: no file{wanted} can be read; leave out --engine, or send more requests"
    return (
        f"{where}: no engine has learnt anything yet; set `relay.policy: cost`, start it with "
        "`kvrelay serve` and send requests (engines on other nodes keep theirs there)"
    )


def _show(row: Row) -> None:
    prefill = row["prefill"]
    head = f"{name_of(row)}, {age_text(row['age_s'])}"
    out.print(head, style="bold", highlight=False, markup=False)
    out.print(
        f"  prefill: {formula(prefill)}; factor {_factor(prefill['factor'])}, short steps "
        f"{_factor(prefill['factor_short'])}; {prefill['steps']:,} steps",
        highlight=False,
        soft_wrap=True,
    )
    if prefill["observed"]:
        out.print(_steps(step_bins(prefill["observed"])))
    if row["loads"]:
        out.print(_loads(main_ways(row["loads"])))
    else:
        out.print("  loads: none yet\n", highlight=False)


def _steps(bins: Sequence[Row]) -> Table:
    table = _table("tokens of a step", "steps", "observed", "predicted", "off", "worst")
    for row in bins:
        table.add_row(
            row["tokens"],
            f"{row['steps']}",
            _seconds(row["seconds"]),
            _seconds(row["predicted_s"]),
            off_text(row["off"]),
            off_text(row["worst"]),
        )
    return table


def _loads(rows: Sequence[Row]) -> Table:
    table = _table("loads by way", "latency", "GB/s", "factor", "loads", "off", "last")
    for row in rows:
        table.add_row(
            way_text(row),
            _seconds(row["fixed_s"]),
            "-" if row["gb_per_s"] is None else f"{row['gb_per_s']:.3g}",
            _factor(row["factor"]),
            f"{row['loads']:,}",
            off_text(row["off"]),
            age_text(row["age_s"]),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _factor(factor: Row) -> str:
    return f"{factor['p50']:.2f} ({factor['p5']:.2f} to {factor['p95']:.2f})"
