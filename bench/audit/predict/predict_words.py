"""A prediction for a reader: what was measured, a line for each link, and what of it is a guess."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvrelay.cluster.cli.console import out

Row = Mapping[str, Any]

_NUMBERS = ("wire /\nprefill", "fixed cost,\ntokens", "pays from,\ntokens", "95 %")
_LEGEND = """\
Wire / prefill: seconds that a token's KV is on the wire per second that computing it takes; above \
about 1 relay can hardly pay. Fixed cost: what a relay takes besides, in tokens of prefill. Both \
are about a prefix that the engine does not have and another one does."""


def show(found: Row, any_link: bool) -> None:
    """Print what `kvrelay predict --json` would, in words and a table.

    Args:
        found: that.
        any_link: whether no link was asked for, and the usual ones are shown.
    """
    _say(_engine_words(found["engine"]))
    _say(f"KV: {found['kv']['bytes_per_token']:,.0f} bytes a token ({found['kv']['words']})")
    _say(f"law: {found['audit']['analysis']}{_question(found['audit']['meta'])}")
    out.print(_table(found["rows"]))
    for row in found["rows"]:
        _say(f"{row['link']}, {row['load']}: {row['words']}")
        for text in _savings(row):
            _say(f"  {text}", dim=True)
    _say("")
    _tell_extrapolated(found["rows"])
    _say(_LEGEND, dim=True)
    if any_link:
        _say("No link was given: give --link-gbit and --rtt-ms, or --links, for yours.", dim=True)


def _engine_words(engine: Row) -> str:
    low, high = engine["tokens"]
    return (
        f"prefill of {engine['model']}: {1e3 * engine['fixed_s']:.1f} ms + "
        f"{1e6 * engine['per_token_s']:.1f} us a token + {1e9 * engine['per_token_squared_s']:.2f} "
        f"ns a token squared; {engine['samples']} prompts of {low:,} to {high:,} tokens, off by "
        f"{100 * engine['off']:.1f} % (median)"
    )


def _question(meta: Row) -> str:
    return f", an audit of {meta['rows']:,} requests" if isinstance(meta.get("rows"), int) else ""


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("link")
    table.add_column("load")
    for heading in _NUMBERS:
        table.add_column(heading, justify="right")
    table.add_column("within what was measured")
    for row in rows:
        table.add_row(
            row["link"],
            row["load"],
            f"{row['wire_over_prefill']:.3g}",
            f"{row['fixed_cost_tokens']:,.0f}",
            _from(row),
            f"{_bound(row['low'])} to {_bound(row['high'])}",
            "no" if row["extrapolated"] else "yes",
        )
    return table


def _from(row: Row) -> str:
    if not row["within_context"]:
        return "beyond context"
    if row["tokens_at_break_even"] is None:
        return "any" if row["pays"] == "always" else "never"
    return f"{row['tokens_at_break_even']:,.0f}"


def _bound(tokens: float | None) -> str:
    return "never" if tokens is None else f"{tokens:,.0f}"


def _savings(row: Row) -> list[str]:
    """The time to the first token both ways, at the shortest and the longest length timed."""
    timed = [each for each in row["at"] if each["measured"]] or row["at"][:1]
    shown = [timed[0], timed[-1]] if len(timed) > 1 else timed
    return [_saving(each) for each in shown]


def _saving(each: Row) -> str:
    recompute_s = each["recompute_s"]
    relay_ms, least, most = (
        1e3 * (recompute_s - each[name]) for name in ("saving_s", "high", "low")
    )
    return (
        f"{each['tokens']:,} tokens: {1e3 * recompute_s:,.0f} ms recomputed, {relay_ms:,.0f} ms "
        f"relayed [{least:,.0f}, {most:,.0f}]"
    )


def _tell_extrapolated(rows: Sequence[Row]) -> None:
    if not any(row["extrapolated"] for row in rows):
        _say("All of this lies within what the audit and the probe have measured.")
        return
    _say("Extrapolated, so a guess and no measurement:")
    where: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for text in row["extrapolated"]:
            where[text].append(f"{row['link']}, {row['load']}")
    for text, names in where.items():
        _say(f"  {text}" if len(names) == len(rows) else f"  {'; '.join(names)}: {text}")


def _say(text: str, dim: bool = False) -> None:
    out.print(text, style="dim" if dim else None, highlight=False, markup=False, soft_wrap=True)
