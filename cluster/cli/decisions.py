"""`kvrelay decisions`."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError, LifecycleError
from kvrelay.cluster.session import load_sessions
from kvrelay.policies import Arm, Reason
from kvrelay.relay.decisions.reader import DecisionReader, Follower
from kvrelay.relay.decisions.rows import Filter, Row
from kvrelay.relay.decisions.segments import segments
from kvrelay.relay.decisions.summary import Group, summarise, total

app = typer.Typer(
    help="What was decided for each request, and what came of it.", no_args_is_help=True
)

OnlyAgent = Annotated[str | None, typer.Option("--agent", help="only of this agent")]
OnlyReason = Annotated[
    Reason | None, typer.Option("--reason", help="only with this reason", metavar="REASON")
]
OnlyArm = Annotated[Arm | None, typer.Option("--arm", help="only of this arm")]
Since = Annotated[
    str | None, typer.Option(help="only what arrived in the last `90s`, `10m`, `2h` or `3d`")
]
OnlySession = Annotated[
    str | None, typer.Option("--session", help="only of this session, by X-Session-ID")
]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="of a log; default: the running cluster's")
]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]

_POLL_S = 0.5
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LINE = "{:<8} {:<14} {:<9} {:<17} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7}  {}"
_HEAD = _LINE.format(
    *("time", "agent", "arm", "reason", "prompt", "local", "relayed", "recomp."),
    *("MB", "load s", "answer"),
)


@app.callback()
def _group() -> None:
    """What was decided for each request, and what came of it."""


@app.command()
def tail(
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", help="begin with the last N", min=0)] = 10,
    follow: Annotated[bool, typer.Option(help="go on until Ctrl-C")] = True,
    agent: OnlyAgent = None,
    reason: OnlyReason = None,
    arm: OnlyArm = None,
    since: Since = None,
    session: OnlySession = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show decisions as they are made, a line each.

    Examples:

      kvrelay decisions tail --agent reviewer

      kvrelay decisions tail --no-follow -n 100 --reason load_deadline --json
    """
    where = log_directory(directory)
    wanted = _filter(agent, reason, arm, since, session)
    reader = DecisionReader(where)
    show = _show_json if as_json else _show_line
    with suppress(KeyboardInterrupt), closing(Follower(where, reader)) as follower:
        latest = reader.latest(lines, wanted.matches)
        if not latest and lines:
            err.print(_nothing(where), highlight=False, soft_wrap=True)
        if not as_json and (latest or follow):
            _print(_HEAD)
        for row in latest:
            show(row)
        # What was written while the latest were read comes again.
        shown = {row["request_id"] for row in latest}
        while follow:
            for row in follower.poll():
                if wanted.matches(row) and row["request_id"] not in shown:
                    show(row)
            shown.clear()
            time.sleep(_POLL_S)
    tell_skipped(reader)


@app.command()
def summary(
    *,
    agent: OnlyAgent = None,
    reason: OnlyReason = None,
    arm: OnlyArm = None,
    since: Since = None,
    session: OnlySession = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Count decisions by arm and reason: tokens, bytes, and what loads took.

    Examples:

      kvrelay decisions summary --since 1h

      kvrelay decisions summary --dir /var/log/kvrelay --json
    """
    where = log_directory(directory)
    wanted = _filter(agent, reason, arm, since, session)
    reader = DecisionReader(where)
    groups = summarise(filter(wanted.matches, reader.rows(wanted.since_s)))
    everything = total(groups.values())
    if as_json:
        content = {
            "directory": str(where),
            "skipped": reader.skipped,
            "groups": [
                {"arm": arm, "reason": reason, **group.to_dict()}
                for (arm, reason), group in groups.items()
            ],
            "total": everything.to_dict(),
        }
        print(json.dumps(content, indent=1))
        return
    if not groups:
        err.print(_nothing(where), highlight=False, soft_wrap=True)
    else:
        out.print(_table(groups, everything))
    tell_skipped(reader)


def log_directory(given: Path | None) -> Path:
    """The log that is meant.

    Raises:
        ConfigError: `--dir` is no folder that can be read.
        LifecycleError: there is no cluster, or it keeps no log.
    """
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"--dir {given}: no such folder; give that of a decision log")
        return _readable(given)
    sessions = [session for session in load_sessions() if session.ready]
    if not sessions:
        raise LifecycleError(
            "nothing is running here; start a cluster with kvrelay serve, or name the folder of a "
            "log with --dir"
        )
    if not sessions[-1].decisions:
        raise LifecycleError(
            "the running cluster keeps no log of decisions; set telemetry.decisions.max_bytes "
            "above 0 and start it anew"
        )
    return _readable(Path(sessions[-1].decisions))


def _readable(folder: Path) -> Path:
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{folder}: cannot be read; only the user whose engines write it may")
    return folder


def _filter(
    agent: str | None,
    reason: Reason | None,
    arm: Arm | None,
    since: str | None,
    session: str | None,
) -> Filter:
    since_s = 0.0
    if since is not None:
        match = _DURATION.fullmatch(since)
        if match is None:
            raise ConfigError(f"--since {since}: not a duration; write for example 90s, 10m or 2h")
        since_s = time.time() - float(match[1]) * _SECONDS[match[2]]
    return Filter(agent=agent, reason=reason, arm=arm, session_id=session, since_s=since_s)


def _nothing(where: Path) -> str:
    """Why there is nothing to show."""
    if segments(where):
        return f"no decision in {where} matches; leave out a filter"
    return (
        f"no decisions in {where} yet; send a request to an agent with relay "
        "(of agents on other nodes, that node has the log)"
    )


def tell_skipped(reader: DecisionReader) -> None:
    """Say what of the log could not be read, if anything."""
    if reader.skipped:
        err.print(
            f"skipped {reader.skipped}: torn lines, damaged files, or of another version",
            style="yellow",
        )


def _show_json(row: Row) -> None:
    print(json.dumps(row), flush=True)


def _show_line(row: Row) -> None:
    _print(
        _LINE.format(
            datetime.fromtimestamp(row["time_s"]).strftime("%H:%M:%S"),
            row["agent"],
            row["decision.arm"],
            row["reason"],
            *(row[f"{part}_tokens"] for part in ("prompt", "local", "relayed", "recomputed")),
            f"{row['num_bytes'] / 1e6:.1f}",
            f"{row['load_s']:.3f}" if row["load_s"] else "-",
            row["response_id"],
        )
    )


def _print(line: str) -> None:
    out.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(groups: dict[tuple[str, str], Group], everything: Group) -> Table:
    rows = [(*names, group.to_dict()) for names, group in groups.items()]
    rows.append(("", "total", everything.to_dict()))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("arm", "reason"):
        table.add_column(name, no_wrap=True)
    spreads = {"load_s": "load s", "first_token_s": "first token s"}
    spreads |= {"predicted_s": "predicted s", "realised_s": "realised s"}
    shown = {name: title for name, title in spreads.items() if rows[-1][2][name]}
    counts = ("requests", "prompt\ntokens", "local", "relayed", "recom-\nputed", "MB")
    for name in (*counts, *(f"{title}\nmedian / p95" for title in shown.values())):
        table.add_column(name, justify="right")
    for i, (arm, reason, figures) in enumerate(rows):
        table.add_row(
            arm,
            reason,
            f"{figures['requests']:,}",
            *(f"{figures[f'{p}_tokens']:,}" for p in ("prompt", "local", "relayed", "recomputed")),
            f"{figures['num_bytes'] / 1e6:,.1f}",
            *(_spread(figures[name]) for name in shown),
            style="bold" if i == len(rows) - 1 else None,
        )
    return table


def _spread(spread: dict[str, Any] | None) -> str:
    return f"{spread['median']:.3f} / {spread['p95']:.3f}" if spread else "-"
