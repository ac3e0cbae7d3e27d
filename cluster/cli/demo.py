"""`kvrelay demo`: what relay saves, on a real file, in a table."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kvrelay.agents.workflow import Pipeline, Step, StepResult
from kvrelay.cluster import preflight
from kvrelay.cluster.access import client_key
from kvrelay.cluster.cli.console import err, out, startup_display
from kvrelay.cluster.cli.serve import with_port
from kvrelay.cluster.config import ClusterConfig, load_config
from kvrelay.cluster.errors import ConfigError, KvrelayError
from kvrelay.cluster.facts import machine_facts
from kvrelay.cluster.lifecycle import running, signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay import store

CONTEXT_TOKENS = 2400
OUTPUT_TOKENS = 40
_CONFIG = Path(__file__).parents[1] / "configs" / "demo.yaml"
_METHOD = """\
Both runs have the same prompts, token for token: the second is given the outputs of the first. \
Their cache salts differ, so that neither finds what the other computed; a run over other text \
of the same length went before. TTFT is the client's: from sending a request for one token to \
having the answer."""


def demo(
    file: Annotated[
        Path | None, typer.Option(help="text that the agents read; default: a source file")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the table there as JSON")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="whose agents take the steps, in order")
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="how much of the file is read", min=1)
    ] = CONTEXT_TOKENS,
) -> None:
    """Let the agents work on a file, once with relay and once without, and show the difference.

    Starts its own local cluster on a free port and ends it. Exit status 0 if every step ran
    and KV was relayed. With tenants in the configuration, OPENAI_API_KEY must be a key of one.

    Examples:

      kvrelay demo

      kvrelay demo --file notes.md --json demo.json
    """
    started = datetime.now(UTC)
    for name in ("httpx", "httpx2"):  # Ray has INFO shown
        logging.getLogger(name).setLevel(logging.WARNING)
    text, title = _read_input(file)
    settings = load_config(config or _CONFIG)
    settings = with_port(settings, preflight.free_port(settings.http.host))
    model = _common_model(settings)
    client_key(settings)  # says what is missing before anything starts
    source = ensure_model(model, lambda line: err.print(line, highlight=False))
    with signals_as_exit(), ExitStack() as display:
        progress = display.enter_context(startup_display())
        with running(settings, progress) as session:
            display.close()
            relayed, recomputed = _work(settings, session.url, source, text, tokens)
            err.print("stopping")
    rows = [_row(*pair) for pair in zip(relayed, recomputed, strict=True)]
    _show(rows, relayed, title)
    if json_file is not None:
        meta = {**machine_facts(), "model": model, "input": title, "started": started.isoformat()}
        json_file.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    if not any(row["relayed_tokens"] for row in rows):
        reasons = ", ".join(sorted({str(row["reason"]) for row in rows}))
        raise KvrelayError(f"nothing was relayed (reasons: {reasons})")


def _read_input(file: Path | None) -> tuple[str, str]:
    if file is None:
        source = Path(store.__file__)
        return source.read_text(encoding="utf-8"), f"kvrelay's {source.parent.name}/{source.name}"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {file}: cannot be read as text: {error}") from None
    if not text.strip():
        raise ConfigError(f"--file {file}: is empty")
    return text, str(file)


def _common_model(config: ClusterConfig) -> str:
    """The one model of all agents: token ids mean nothing to another one."""
    models = {agent.model for agent in config.agents}
    if len(models) > 1:
        raise ConfigError(f"agents: the demo needs all agents on one model, got {sorted(models)}")
    return config.models[models.pop()].source


def _work(
    config: ClusterConfig, url: str, model: Path | str, text: str, tokens: int
) -> tuple[list[StepResult], list[StepResult]]:
    """Run the pipeline with relay, then without."""
    from openai import OpenAI  # late: it takes a second that --help need not

    from kvrelay.agents.layout import ChatLayout

    layout = ChatLayout.load(model)
    context = layout.truncate(text, tokens)
    steps = [Step(a.name, a.system_prompt or "Continue.", OUTPUT_TOKENS) for a in config.agents]
    with OpenAI(base_url=url, api_key=client_key(config), timeout=300, max_retries=0) as client:
        pipeline = Pipeline(steps, client, layout)
        with err.status("warming up"):
            pipeline.run(" ".join(reversed(context.split(" "))), cache_salt="warm-up")
        with err.status("working with relay"):
            relayed = pipeline.run(context, cache_salt="with-relay")
        with err.status("working without relay"):
            recomputed = pipeline.run(
                context, relay=False, cache_salt="without-relay", replay=relayed
            )
    return relayed, recomputed


def _row(relayed: StepResult, recomputed: StepResult) -> dict[str, Any]:
    return {
        "agent": relayed.agent,
        "tokens": relayed.prompt_tokens,
        "local_tokens": relayed.local_tokens,
        "relayed_tokens": relayed.relayed_tokens,
        "recomputed_tokens": relayed.recomputed_tokens,
        "reason": relayed.reason,
        "relay_ttft_s": _sample(relayed.ttft_s),
        "recompute_ttft_s": _sample(recomputed.ttft_s),
        "ratio": round(recomputed.ttft_s / relayed.ttft_s, 2),
    }


def _sample(*values: float) -> dict[str, float]:
    summary = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, 4) for name, value in summary.items()} | {"n": len(values)}


def _show(rows: Sequence[dict[str, Any]], results: Sequence[StepResult], title: str) -> None:
    heading = f"{len(rows)} agents on {title}: tokens, and TTFT in seconds"
    table = Table(title=heading, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("agent", no_wrap=True)
    for name in ("prompt", "local", "relayed", "recom-\nputed"):
        table.add_column(name, justify="right")
    table.add_column("why", no_wrap=True)
    for name in ("TTFT,\nrelay", "TTFT,\nwithout", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["agent"],
            str(row["tokens"]),
            *(_count(row[f"{name}_tokens"]) for name in ("local", "relayed", "recomputed")),
            row["reason"] or "no connector",
            f"{row['relay_ttft_s']['median']:.3f}",
            f"{row['recompute_ttft_s']['median']:.3f}",
            f"{row['ratio']:.1f}",
        )
    for result in results:
        text = " ".join(result.text.split())
        out.print(Text.assemble((f"{result.agent}: ", "bold"), text))
    out.print()
    out.print(table)
    out.print(_METHOD, style="dim", highlight=False)


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else str(tokens)
