"""`kvrelay bench`: the commands, and what they have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvrelay.cluster.errors import ConfigError

app = typer.Typer(
    help="Measure what relay costs and saves, on this machine, with real engines.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

JsonFile = Annotated[Path | None, typer.Option("--json", help="write meta and rows there")]
SamplesFile = Annotated[Path | None, typer.Option("--samples", help="write raw samples as JSONL")]
Repeats = Annotated[int, typer.Option(help="how often everything is measured", min=1)]
Seed = Annotated[int, typer.Option(help="of the prompts and of the order")]
Model = Annotated[str, typer.Option(help="`demo`, a folder or a Hugging Face id")]
Smoke = Annotated[bool, typer.Option("--smoke", help="only see that it works: small and quick")]
QuietWait = Annotated[
    float, typer.Option(help="seconds to wait, at most, for a quiet machine before each request")
]


def parse_lengths(text: str) -> list[int]:
    """`512,1024` as numbers, in order, each once.

    Raises:
        ConfigError: not a list of positive integers.
    """
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = []
    if not lengths or lengths[0] < 1:
        raise ConfigError(f"--tokens {text}: give lengths such as 512,1024")
    return lengths


@app.command()
def hit(
    *,
    tokens: Annotated[
        str, typer.Option(help="lengths of the shared prefix")
    ] = "512,1024,2048,4096,7900",
    repeats: Repeats = 5,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    peer: Annotated[
        bool, typer.Option("--peer", help="beside it vLLM's ExampleConnector on shared memory")
    ] = False,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
) -> None:
    """TTFT of a prefix that another agent has computed: relayed, recomputed, or at hand.

    Every request is a stream of one token at the HTTP endpoint, and is counted only if vLLM
    itself says that it reused exactly the tokens that it should.

    Examples:

      kvrelay bench hit --smoke

      kvrelay bench hit --tokens 512,1024,2048,4096,7900 --repeats 5 --peer --json hit.json
    """
    from kvrelay.bench import run_hit

    run_hit.main(
        run_hit.Options(
            lengths=tuple(parse_lengths("512,1024" if smoke else tokens)),
            repeats=1 if smoke else repeats,
            json_file=json_file,
            samples_file=samples_file,
            peer=peer,
            model=model,
            seed=seed,
            quiet_wait_s=quiet_wait,
            smoke=smoke,
        )
    )


@app.command()
def miss(
    *,
    tokens: Annotated[str, typer.Option(help="lengths of the prompts")] = "512,2048",
    repeats: Annotated[int, typer.Option(help="pairs per length, over all starts", min=1)] = 40,
    restarts: Annotated[int, typer.Option(help="starts of the engines", min=1)] = 3,
    alternations: Annotated[
        int, typer.Option(help="of saving and not saving beside a running request; 0: leave out")
    ] = 20,
    idle: Annotated[
        float, typer.Option(help="seconds over which idle CPU is counted; 0: leave out", min=0)
    ] = 20.0,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="exit 1 if the connector's own CPU share is too high")
    ] = False,
) -> None:
    """What the connector costs where nothing is found: never-seen prompts, with it and without.

    Also the connector's CPU beside TTFT, ITL of a request that runs while others are saved, and
    CPU when nothing is asked.

    Examples:

      kvrelay bench miss --smoke

      kvrelay bench miss --tokens 512,2048 --repeats 40 --json miss.json
    """
    from kvrelay.bench import run_miss

    run_miss.main(
        run_miss.Options(
            lengths=tuple(parse_lengths("512" if smoke else tokens)),
            repeats=3 if smoke else repeats,
            restarts=1 if smoke else restarts,
            alternations=2 if smoke else alternations,
            idle_s=3.0 if smoke else idle,
            json_file=json_file,
            samples_file=samples_file,
            model=model,
            seed=seed,
            quiet_wait_s=quiet_wait,
            smoke=smoke,
            gate=gate,
        )
    )


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
