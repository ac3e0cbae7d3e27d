"""How far a benchmark is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """A bar with the time left; the function it yields advances it.

    Where there is no terminal it prints a line at every tenth, with the time left.
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

    done, start_s = 0.0, time.monotonic()

    def advance(amount: float) -> None:
        nonlocal done
        before, done = done, done + amount
        if int(10 * done / total + 1e-6) > int(10 * before / total + 1e-6):
            left_s = (time.monotonic() - start_s) * max(0.0, total / done - 1)
            left = f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"
            err.print(f"{title}: {100 * done / total:.0f} %, {left}", highlight=False)

    return advance
