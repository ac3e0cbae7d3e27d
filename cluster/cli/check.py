"""`kvrelay check`."""

from __future__ import annotations

from rich.table import Table

from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import out
from kvrelay.cluster.cli.serve import ConfigPath
from kvrelay.cluster.config import ClusterConfig, load_config
from kvrelay.relay.memory import available_bytes


def check(config: ConfigPath) -> None:
    """Check CONFIG without starting anything; every problem is named with its path.

    Exit status 0 if it can work, 2 if not.

    Example:

      kvrelay check cluster/configs/demo.yaml
    """
    settings = load_config(config)
    from kvrelay.cluster.engine_kwargs import check_engine_kwargs  # imports vLLM: seconds

    check_engine_kwargs(settings)
    out.print(_table(settings))
    needed, free = preflight.needed_bytes(settings), available_bytes()
    verdict = "[green]fits[/]" if needed <= free else "[yellow]does not fit on this machine[/]"
    gib = f"{needed / preflight.GIB:.1f} GiB of memory needed, {free / preflight.GIB:.1f} free"
    out.print(f"{gib}: {verdict}", highlight=False)
    out.print("[bold green]ok[/]")


def _table(config: ClusterConfig) -> Table:
    table = Table("agent", "model", "replicas", "device", "relay", "engine arguments")
    for agent in config.agents:
        arguments = ", ".join(f"{k}={v}" for k, v in config.engine_kwargs(agent).items())
        replicas = str(config.num_replicas(agent))
        if agent.autoscaling is not None:
            replicas = f"{agent.autoscaling.min}-{agent.autoscaling.max}"
        relay = config.relay.policy if config.relays(agent) else "off"
        device = f"{agent.num_gpus:g} GPU" if agent.num_gpus else "CPU"
        table.add_row(agent.name, agent.model, replicas, device, relay, arguments)
    return table
