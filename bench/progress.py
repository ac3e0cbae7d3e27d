"""How far a benchmark is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """A bar with the time left; the function it yields advances it.

    Where there is no terminal it prints a line at every tenth.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from kvrelay.cluster.cli.console import err

    if not err.is_terminal:
        yield _tenths(title, total)
        return
    columns = (TextColumn(title), BarColumn(), TimeElapsedColumn(), TextColumn("left"), Remaining())
    with Progress(*columns, console=err, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)


def _tenths(title: str, total: float) -> Callable[[float], None]:
    from kvrelay.cluster.cli.console import err

    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done
        before, done = done, done + amount
        if int(10 * done / total + 1e-6) > int(10 * before / total + 1e-6):
            err.print(f"{title}: {100 * done / total:.0f} %", highlight=False)

    return advance
