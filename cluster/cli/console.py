"""What commands print with: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from kvrelay.cluster.startup import Progress, Startup

# Where there is no terminal to fit into, no column of a table is to be cut.
_FILE_WIDTH = 160
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH)
err = Console(stderr=True)


@contextlib.contextmanager
def startup_display() -> Iterator[Progress]:
    """Shows a start: a live picture on a terminal, elsewhere a line for each change."""
    if not err.is_terminal:
        yield _LinePrinter()
        return
    with Live(console=err, refresh_per_second=8, transient=True) as live:
        spinner = Spinner("dots")

        def show(startup: Startup) -> None:
            head = Text.assemble((startup.phase, "bold"), f"  {startup.elapsed_s:.0f} s")
            spinner.update(text=head)
            live.update(Group(spinner, *(_agent_line(*item) for item in startup.agents.items())))

        yield show


def _agent_line(name: str, replicas: tuple[int, int]) -> Text:
    running, wanted = replicas
    ready = running >= wanted
    mark, style = ("✓", "green") if ready else ("·", "dim")
    count = "" if wanted == 1 else f" {running}/{wanted}"
    return Text(f"  {mark} {name}{count}", style=style)


class _LinePrinter:
    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, startup: Startup) -> None:
        ready = sum(running >= wanted for running, wanted in startup.agents.values())
        if (startup.phase, ready) == self._last:
            return
        self._last = (startup.phase, ready)
        count = f" {ready}/{len(startup.agents)}" if "engines" in startup.phase else ""
        err.print(f"{startup.elapsed_s:4.0f} s  {startup.phase}{count}", highlight=False)
