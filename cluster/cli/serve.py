"""`kvrelay serve`, `status` and `stop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from kvrelay.cluster.access import KEY_VARIABLE, NO_KEY, OPEN_WARNING
from kvrelay.cluster.cli.console import err, out, startup_display
from kvrelay.cluster.config import ClusterConfig, TenantsConfig, load_config
from kvrelay.cluster.errors import LifecycleError
from kvrelay.cluster.lifecycle import Stopped, running, signals_as_exit, stop_all
from kvrelay.cluster.scrape import Figures, scrape
from kvrelay.cluster.session import Session, load_sessions, sessions_dir
from kvrelay.cluster.startup import START_TIMEOUT_S

ConfigPath = Annotated[Path, typer.Argument(help="configuration file (YAML)", metavar="CONFIG")]
Port = Annotated[int | None, typer.Option(help="listen here instead of http.port", min=1)]
_POLL_S = 0.2


def serve(
    config: ConfigPath,
    port: Port = None,
    detach: Annotated[bool, typer.Option(help="return when it serves; end it by `stop`")] = False,
) -> None:
    """Serve the agents of CONFIG at an OpenAI endpoint until Ctrl-C.

    Examples:

      kvrelay serve cluster/configs/demo.yaml

      kvrelay serve my.yaml --port 8080 --detach; kvrelay status; kvrelay stop
    """
    settings = with_port(load_config(config), port)
    if settings.operator.open:
        err.print(f"[bold red]warning:[/] {OPEN_WARNING}", highlight=False)
    if detach:
        _print_usage(_start_detached(config, port), settings.tenants)
        return
    ready = False
    try:
        with signals_as_exit(), ExitStack() as display:
            progress = display.enter_context(startup_display())
            with running(settings, progress) as session:
                ready = True
                display.close()
                _print_usage(session, settings.tenants)
                err.print("Ctrl-C ends it.")
                signal.pause()
    except Stopped:
        if not ready:
            raise
    err.print("stopped")


def with_port(config: ClusterConfig, port: int | None) -> ClusterConfig:
    """The configuration, listening on another port if one is given."""
    if port is None:
        return config
    return config.model_copy(update={"http": config.http.model_copy(update={"port": port})})


def _print_usage(session: Session, tenants: TenantsConfig | None) -> None:
    out.print(f"[bold green]serving[/] {', '.join(session.agents)} at [bold]{session.url}[/]\n")
    example = usage(session.url, session.agents[0], tenants)
    out.print(example, highlight=False, markup=False, soft_wrap=True)


def usage(url: str, agent: str, tenants: TenantsConfig | None) -> str:
    """How to ask an agent, by curl and from Python, with what tells the tenant."""
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": "Hello"}]})
    first, header, arguments = "", "", f'base_url="{url}", api_key="{NO_KEY}"'
    if tenants is not None and tenants.trusted_header is not None:
        header = f" -H '{tenants.trusted_header}: TENANT'"
        arguments += f', default_headers={{"{tenants.trusted_header}": "TENANT"}}'
    elif tenants is not None:
        first = f"export {KEY_VARIABLE}=...  # a tenant's API key, see tenants.api_keys\n\n"
        header = f' -H "Authorization: Bearer ${KEY_VARIABLE}"'
        arguments = f'base_url="{url}"'  # the client takes the variable by itself
    return f"""\
{first}curl {url}/chat/completions -H 'Content-Type: application/json'{header} -d '{body}'

from openai import OpenAI
client = OpenAI({arguments})
answer = client.chat.completions.create(
    model="{agent}", messages=[{{"role": "user", "content": "Hello"}}]
)
print(answer.choices[0].message.content)
print(answer.kv_transfer_params)  # where the prompt's KV came from
"""


def _start_detached(config: Path, port: int | None) -> Session:
    """Start `kvrelay serve` as a process of its own and wait until it serves."""
    command = [sys.executable, "-m", "kvrelay.cluster.cli", "serve", str(config)]
    command += [] if port is None else ["--port", str(port)]
    folder = sessions_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(suffix=".log", dir=folder)
    log = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as sink:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        session = _wait_for(child)
        log.rename(session.log_path())
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    return session


def _wait_for(child: subprocess.Popen[bytes]) -> Session:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    try:
        with err.status("starting"):
            while time.monotonic() < deadline_s:
                for session in load_sessions():
                    if session.pid == child.pid and session.ready:
                        return session
                if child.poll() is not None:
                    raise LifecycleError(
                        f"it did not start (exit status {child.returncode}); "
                        "run the same command without --detach to see why"
                    )
                time.sleep(_POLL_S)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    raise LifecycleError(f"it did not start within {START_TIMEOUT_S:.0f} s")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Show what kvrelay has started on this machine.

    States: `serving`, `starting`, `unreachable` (runs, but does not answer) and `dead` (its
    owner was killed; `kvrelay stop` removes what it left).

    Below, what their metrics say: requests since the engines began, and what stores hold now.
    Processes hand metrics on every 10 s.
    """
    rows = [_describe(session) for session in load_sessions()]
    if as_json:
        out.print_json(json.dumps({"clusters": rows}))
        return
    if not rows:
        out.print("nothing is running")
        return
    table = Table("state", "endpoint", "agents", "pid", "Ray")
    for row in rows:
        ray = "own" if row["owns_ray"] else row["ray_address"]
        table.add_row(row["state"], row["url"], ", ".join(row["agents"]), str(row["pid"]), ray)
    out.print(table)
    if told := [row for row in rows if row["metrics"]]:
        out.print()
        out.print(_metrics_table(told))
    for url in (url for row in rows for url in row["silent_metrics"]):
        err.print(f"no metrics from {url}", style="yellow", highlight=False, soft_wrap=True)


def _metrics_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("pid", box=None, padding=(0, 2, 0, 0))
    counts = ("requests", "relayed", "fell\nback", "MB\nrelayed", "store MB", "leases", "evicted")
    for name in counts:
        table.add_column(name, justify="right")
    for row in rows:
        told: Figures = row["metrics"]
        used, room = (sum(told[f"store_{part}_bytes"].values()) for part in ("used", "capacity"))
        table.add_row(
            str(row["pid"]),
            f"{sum(told['requests'].values()):,.0f}",
            f"{told['requests'].get('relayed', 0):,.0f}",
            f"{sum(told['fallbacks'].values()):,.0f}",
            f"{sum(told['transfer_bytes'].values()) / 1e6:,.1f}",
            f"{used / 1e6:,.1f} of {room / 1e6:,.0f}",
            f"{told['store_leases']:,.0f}",
            f"{sum(told['store_evictions'].values()):,.0f}",
        )
    return table


def _describe(session: Session) -> dict[str, Any]:
    pages = session.metrics if session.owner() is not None else ()
    figures, silent = scrape(pages)
    return {
        "id": session.id,
        "state": _state(session),
        "url": session.url,
        "agents": list(session.agents),
        "pid": session.pid,
        "owns_ray": session.owns_ray,
        "ray_address": session.ray_address,
        "metrics": figures if len(silent) < len(pages) else None,
        "silent_metrics": silent,
    }


def _state(session: Session) -> str:
    if session.owner() is None:
        return "dead"
    if not session.ready:
        return "starting"
    try:
        answer = httpx.get(f"{session.url}/models", timeout=2, trust_env=False)
    except httpx.HTTPError:
        return "unreachable"
    return "serving" if answer.is_success else "unreachable"


def stop() -> None:
    """End everything that kvrelay has started, and nothing else.

    A Ray cluster that was joined by RAY_ADDRESS goes on without kvrelay's application.
    """
    count = stop_all()
    out.print(f"stopped {count}" if count else "nothing was running")
