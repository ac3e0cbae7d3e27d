"""`kvrelay audit`: the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Prove by randomised experiments where relay pays, on this machine, with real engines.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

PlanFile = Annotated[Path, typer.Option("--plan", help="the plan, as YAML")]
Folder = Annotated[Path, typer.Argument(help="of the run", metavar="DIR")]


@app.command()
def plan(file: Annotated[Path, typer.Argument(help="the plan, as YAML", metavar="PLAN")]) -> None:
    """Check a plan, and say what it would measure, how long that takes and what it can find.

    Exit status 0 if it can be run, 2 if not. The hash is that of the content: it goes with the data
    and into the report.

    Example:

      kvrelay audit plan bench/plans/full.yaml
    """
    from kvrelay.bench.audit.plan import load_plan
    from kvrelay.bench.audit.show import show_plan

    show_plan(load_plan(file))


@app.command()
def run(
    *,
    plan_file: PlanFile,
    out: Annotated[Path, typer.Option("--out", help="folder of the run; goes on with one")],
) -> None:
    """Measure a plan on real engines, and leave data, analysis and report.

    On two nodes of this machine (root, `ip` and `tc`), with a wire between them that is made into
    each link. Every unit is on disk as soon as it is measured: after Ctrl-C, an error or a crash
    the same command goes on with what is missing.

    Examples:

      kvrelay audit run --plan bench/plans/smoke.yaml --out smoke

      kvrelay audit run --plan bench/plans/full.yaml --out full
    """
    from kvrelay.bench.audit import bed, extras, outputs
    from kvrelay.bench.audit.material import encoder_of
    from kvrelay.bench.audit.plan import load_plan
    from kvrelay.bench.audit.run import run as run_plan
    from kvrelay.bench.audit.show import show_plan
    from kvrelay.bench.engines import ENGINE
    from kvrelay.bench.report import new_meta
    from kvrelay.cluster.cli.console import err
    from kvrelay.cluster.lifecycle import signals_as_exit

    checked = load_plan(plan_file)
    bed.check()
    outputs.require()
    show_plan(checked)
    encoder, reason = encoder_of(checked.embedding_model)
    not_measured = {} if reason is None else {"cosine": reason}
    if reason is not None:
        err.print(f"no cosine of prompts: {reason}", highlight=False, markup=False)
    meta = new_meta(
        checked.model,
        checked.seed,
        relay=bed.RELAY,
        engine_kwargs=ENGINE,
        not_measured=not_measured,
    )
    with signals_as_exit():
        run_plan(
            checked,
            out,
            meta,
            lambda name, now_s: bed.opened(checked, encoder, name, now_s),
        )
        extras.make(checked, out)
        _analyze(out, None, None, [])
        _report(out)


@app.command()
def analyze(
    source: Annotated[
        Path, typer.Argument(help="of a run; or a .parquet, .jsonl or .csv", metavar="DIR_OR_FILE")
    ],
    *,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="default: the run's own; for a file, none")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="default: beside the data")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="SCHEMA_NAME=THEIR_NAME, for data of others")
    ] = None,
) -> None:
    """Estimate effects from rows: `analysis.json`, the same bytes each time.

    Rows of others need the columns `arm`, `session`, `time_s` and an outcome such as `ttft_s`.

    Examples:

      kvrelay audit analyze full

      kvrelay audit analyze theirs.csv --column session=user --column ttft_s=latency --out theirs
    """
    _analyze(source, plan_file, out, column or [])


@app.command()
def report(folder: Folder) -> None:
    """Write `report.html` and `report.md` of an analysis.

    Example:

      kvrelay audit report full
    """
    _report(folder)


def _analyze(source: Path, plan_file: Path | None, out: Path | None, columns: list[str]) -> None:
    from kvrelay.bench.audit import outputs
    from kvrelay.cluster.cli.console import err
    from kvrelay.cluster.errors import ConfigError

    names = {}
    for word in columns:
        ours, equals, theirs = word.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError(f"--column {word}: give SCHEMA_NAME=THEIR_NAME")
        names[ours] = theirs
    written = outputs.analyze(outputs.source_of(source, plan_file, out), names)
    err.print(f"written: {written}", highlight=False, markup=False)


def _report(folder: Path) -> None:
    from kvrelay.bench.audit import outputs
    from kvrelay.cluster.cli.console import err

    for file in outputs.report(folder):
        err.print(f"written: {file}", highlight=False, markup=False)
