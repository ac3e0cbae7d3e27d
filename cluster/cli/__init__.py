"""The `kvrelay` command.

Each file here holds the commands of one subject. Other packages add a group of commands (a typer
app) or one command (a function) by an entry point in the group `kvrelay.commands`, as kvrelay's own
benchmarks do.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from kvrelay.agents.errors import AgentError
from kvrelay.cluster.cli import calibrate, check, decisions, demo, doctor, model, payoff, serve
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.errors import ConfigError, KvrelayError
from kvrelay.cluster.lifecycle import Stopped

EXIT_FAILURE, EXIT_BAD_INPUT = 1, 2

_HELP = """Agents on Ray Serve that hand over KV caches where that pays.

Begin with:

  kvrelay demo                     three agents work on a file, with relay and without

  kvrelay serve CONFIG             an OpenAI endpoint; an agent is a `model`

  kvrelay check CONFIG             what is wrong with a configuration

Examples of a configuration: cluster/configs/ in the sources. RAY_ADDRESS names the Ray to
join; without it a local one is started and ended again.
"""


def make_app() -> typer.Typer:
    """The command with everything that is installed."""
    app = typer.Typer(
        name="kvrelay",
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    app.command()(serve.serve)
    app.command()(serve.status)
    app.command()(serve.stop)
    app.command()(demo.demo)
    app.command()(check.check)
    app.command()(doctor.doctor)
    app.command()(payoff.payoff)
    app.command()(calibrate.calibrate)
    app.add_typer(decisions.app, name="decisions")
    app.add_typer(model.app, name="model")
    for entry in entry_points(group="kvrelay.commands"):
        try:
            loaded = entry.load()
        except ImportError as error:
            err.print(f"[yellow]kvrelay {entry.name} is not available:[/] {error}", highlight=False)
            continue
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=entry.name)
        else:
            app.command(entry.name)(loaded)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"kvrelay {version('kvrelay')}", highlight=False)
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="what is installed", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command; errors become one line and an exit status."""
    # Imported on the way, vLLM would write about this machine to standard output.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        make_app()()
    except (KvrelayError, AgentError) as error:
        err.print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILURE)
    except Stopped as stopped:
        sys.exit(128 + signal.Signals[str(stopped)])


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
