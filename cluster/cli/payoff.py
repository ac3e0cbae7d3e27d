"""`kvrelay payoff`: what relay saves, read from the decision log."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.cli.decisions import Directory, log_directory, tell_skipped
from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.payoff_picture import draw
from kvrelay.cluster.payoff_rows import Row, interval_text, make_row, saving_text, verdict_text
from kvrelay.policies.assignment import Switchback
from kvrelay.policies.decision import Arm, Reason
from kvrelay.policies.observation import Observation, in_block, observation
from kvrelay.policies.payoff import ALPHA, OVERALL, Payoff
from kvrelay.relay.decisions.reader import DecisionReader
from kvrelay.relay.decisions.rows import to_record

_COLOURS = {"pays": "green", "does not pay": "red", "not known yet": "dim"}
_METHOD = """\
Saving: seconds of TTFT per request, recomputing less relaying; above 0 relay pays. From requests \
whose arm was drawn (AIPW, clustered by {clusters}). The interval of a line holds at every look \
with 95 %, for the window that it is about."""
_ANY = "any"


def payoff(
    *,
    directory: Directory = None,
    preferred: Annotated[
        str, typer.Option(help="only requests for which the policy wanted `relay` or `recompute`")
    ] = _ANY,
    hours: Annotated[float, typer.Option(help="what is older is forgotten", min=0.01)] = 24.0,
    switchback: Annotated[
        str | None, typer.Option(help="blocks of the whole cluster: BLOCK_S or BLOCK_S:BURN_IN_S")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the table there")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw it there, as .svg")] = None,
) -> None:
    """What relay saves per request, overall and by kind of request, with honest intervals.

    Only requests whose arm was drawn tell: the exploration share must be above 0. With
    `--switchback` only those count whose arm the whole cluster had in a block of time, as
    `relay.switchback_s` makes them: the effect of relay on everybody, shared queues and links
    included. Of each block the first quarter is left out, or so many seconds.

    Examples:

      kvrelay payoff

      kvrelay payoff --preferred relay --json payoff.json --picture payoff.svg

      kvrelay payoff --dir decisions --switchback 120:40
    """
    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(f"--picture {picture}: only .svg is drawn, which every browser opens")
    if preferred not in (_ANY, *Arm):
        raise ConfigError(f"--preferred {preferred}: known are any, relay, recompute")
    plan = None if switchback is None else parse_switchback(switchback)
    where = log_directory(directory)
    reader = DecisionReader(where)
    rows, counts = estimate(map(to_record, reader.rows()), preferred, 3600.0 * hours, plan)
    tell_skipped(reader)
    if not counts["counted"]:
        raise ConfigError(_nothing(where, counts))
    method = _METHOD.format(clusters="session" if plan is None else "pair of blocks")
    _show(rows, counts, method)
    if json_file is not None:
        meta = {**counts, "alpha": ALPHA, "window_s": 3600.0 * hours, "preferred": preferred}
        meta["switchback"] = switchback
        json_file.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    if picture is not None:
        picture.write_text(draw(rows, method), encoding="utf-8")
        err.print(f"drawn: {picture}", highlight=False)


def estimate(
    records: Iterable[Mapping[str, Any]],
    preferred: str,
    window_s: float,
    plan: Switchback | None = None,
) -> tuple[list[Row], Counter[str]]:
    """Rows of the table, `all` first, and how many records were read, counted, without first
    token, of blocks of the whole cluster.

    Args:
        records: in any order.
        preferred: `relay`, `recompute` or `any`.

    Raises:
        ConfigError: a record is not one.
    """
    names = ("read", "counted", "no_first_token", "in_blocks")
    counts: Counter[str] = Counter(dict.fromkeys(names, 0))
    found: list[Observation] = []
    turned_off: defaultdict[str, list[float]] = defaultdict(list)  # when, by stratum
    for record in records:
        counts["read"] += 1
        try:
            seen = observation(record)
        except ValueError as error:
            raise ConfigError(f"request {record.get('request_id')}: {error}") from None
        counts["no_first_token"] += record["first_token_s"] is None
        if seen is not None:
            counts["in_blocks"] += seen.pair is not None
            seen = _of_plan(seen, plan)
        if seen is not None and preferred in (_ANY, seen.preferred):
            found.append(seen)
            if record["decision"].get("reason") == Reason.STRATUM_OFF:
                for label in (OVERALL, seen.stratum.label):
                    turned_off[label].append(seen.time_s)
    result = Payoff(window_s=window_s)
    for seen in sorted(found, key=lambda each: each.time_s):
        result.observe(seen)
    counts["counted"] = len(found)
    rows = [
        make_row(label, each, sum(time_s >= each.since_s for time_s in turned_off[label]))
        for label, each in result.snapshot().items()
    ]
    return rows, counts


def _of_plan(seen: Observation, plan: Switchback | None) -> Observation | None:
    """A request if it got its arm by blocks as planned or, without a plan, by its session."""
    if plan is not None:
        return in_block(seen, plan)
    return seen if seen.pair is None else None


def parse_switchback(text: str) -> Switchback:
    """`120:40` as seconds of a block, as the cluster has them, and of its burn-in.

    Raises:
        ConfigError: another form, or impossible times.
    """
    try:
        block_s, colon, burn_in_s = text.partition(":")
        plan = Switchback.of_cluster(float(block_s))
        return replace(plan, burn_in_s=float(burn_in_s)) if colon else plan
    except ValueError as error:
        raise ConfigError(
            f"--switchback {text}: give BLOCK_S or BLOCK_S:BURN_IN_S, as 120:40 ({error})"
        ) from None


def _nothing(directory: Path, counts: Mapping[str, int]) -> str:
    remedy = "explore a share of sessions"
    if counts["in_blocks"]:
        remedy = "see --switchback for those of blocks of the whole cluster"
    return (
        f"{directory}: of {counts['read']:,} records none tells what relay saves: "
        f"no arm was drawn, or no first token came; {remedy}"
    )


def _show(rows: Sequence[Row], counts: Mapping[str, int], method: str) -> None:
    table = Table(title="what relay saves", title_justify="left", box=SIMPLE_HEAD)
    numbers = ("requests", "sessions", "saving", "interval", "turned off")
    for heading in ("requests of kind", *numbers, "verdict"):
        side = "right" if heading in numbers else "left"
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in rows:
        colour = _COLOURS[row["verdict"]]
        table.add_row(
            row["stratum"],
            f"{row['requests']:,}",
            f"{row['sessions']:,}",
            saving_text(row),
            interval_text(row),
            f"{row['off_requests']:,}",
            f"[{colour}]{verdict_text(row)}[/]",
        )
    out.print(table)
    out.print(method, style="dim", highlight=False, soft_wrap=True)
    read = f"{counts['counted']:,} of {counts['read']:,} records count"
    if counts["in_blocks"]:
        read += f"; {counts['in_blocks']:,} are of blocks of the whole cluster"
    if counts["no_first_token"]:
        read += f"; {counts['no_first_token']:,} had no first token"
    err.print(read, highlight=False)
