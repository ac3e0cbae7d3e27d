"""`kvrelay model`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.model import ensure_model

app = typer.Typer(help="Make models ready.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make models ready."""


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="`demo`, a folder, or a Hugging Face id")],
) -> None:
    """Make a model ready and print where it is.

    Example:

      kvrelay model fetch demo
    """
    where = ensure_model(name, lambda line: err.print(line, highlight=False))
    out.print(str(where), highlight=False, soft_wrap=True)
