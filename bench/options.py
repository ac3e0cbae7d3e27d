"""Options that commands of `kvrelay bench` have in common, and how lists in them are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvrelay.cluster.errors import ConfigError

JsonFile = Annotated[Path | None, typer.Option("--json", help="write meta and rows there")]
SamplesFile = Annotated[Path | None, typer.Option("--samples", help="write raw samples as JSONL")]
Repeats = Annotated[int, typer.Option(help="how often everything is measured", min=1)]
Seed = Annotated[int, typer.Option(help="of the prompts and of the order")]
Model = Annotated[str, typer.Option(help="`demo`, a folder or a Hugging Face id")]
Smoke = Annotated[bool, typer.Option("--smoke", help="only see that it works: small and quick")]
QuietWait = Annotated[
    float, typer.Option(help="seconds to wait, at most, for a quiet machine before each request")
]
# Of the cells of `bench policies`.
Loads = Annotated[str, typer.Option(help="of: idle, busy, tail (p95 of busy), partial (plans)")]
CellLinks = Annotated[str, typer.Option(help="where A is: `same-node`, or RATE or RATE-RTT")]
Lengths = Annotated[str, typer.Option(help="lengths of the prompts")]
Shared = Annotated[str, typer.Option(help="fractions of a prompt that A has computed")]


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


def parse_fractions(text: str) -> list[float]:
    """`0,0.5` as fractions of a prompt, in order, each once.

    Raises:
        ConfigError: one of them is none.
    """
    try:
        fractions = sorted({float(part) for part in text.split(",")})
    except ValueError:
        fractions = []
    if not fractions or not 0 <= fractions[0] <= fractions[-1] < 1:
        raise ConfigError(f"--shared {text}: give fractions from 0 to below 1, such as 0.5,0.95")
    return fractions
