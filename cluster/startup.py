"""Bringing an application up: telling how far it has come, and why it will not."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvrelay.cluster.config import ClusterConfig
from kvrelay.cluster.errors import LifecycleError

APP_NAME = "kvrelay"
AGENT_PREFIX = "agent:"  # of an agent's Serve deployment
POLL_S = 1.0
START_TIMEOUT_S = 900.0
# Serve's own words for replicas that no node has room for; Ray would wait without end.
_NO_ROOM = re.compile(r"to be scheduled\b.* for each replica: (.+?), total resources")
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception)\b.*: ")
_LONGEST_CAUSE = 500


@dataclass(frozen=True, slots=True)
class Startup:
    """How far a start has come.

    Attributes:
        phase: what is being done.
        agents: replicas ready and wanted, by agent.
        elapsed_s: since the start began.
    """

    phase: str
    agents: dict[str, tuple[int, int]]
    elapsed_s: float


Progress = Callable[[Startup], None]


class Reporter:
    """Tells the caller's progress function how far the start has come."""

    def __init__(self, config: ClusterConfig, progress: Progress | None) -> None:
        self._progress = progress
        self._started_s = time.monotonic()
        self._agents = {a.name: (0, config.num_replicas(a)) for a in config.agents}

    def __call__(self, phase: str, running: dict[str, int] | None = None) -> None:
        for name, count in (running or {}).items():
            self._agents[name] = (count, self._agents[name][1])
        if self._progress is not None:
            self._progress(Startup(phase, dict(self._agents), self.elapsed_s))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


def deploy(config: ClusterConfig, tell: Reporter) -> None:
    """Build the application and wait until every engine serves; Ray is connected already.

    Raises:
        LifecycleError: an engine does not come up; with its own reason.
        ConfigError, ModelError: found when the application is built.
    """
    from ray import serve

    tell("preparing models")
    from kvrelay.cluster.app import application

    # Serve announces every deployment's options at INFO.
    logging.getLogger("ray.serve").setLevel(config.telemetry.log_level)
    ours = application(config)
    tell("starting Serve")
    serve.start(http_options={"host": config.http.host, "port": config.http.port})
    serve.run_many(
        [serve.RunTarget(ours, name=APP_NAME, route_prefix="/")],
        wait_for_applications_running=False,
        wait_for_ingress_deployment_creation=False,
    )
    waiting = ""
    while tell.elapsed_s < START_TIMEOUT_S:
        status = serve.status().applications[APP_NAME]
        waiting = _without_room(status)
        phase = f"loading engines; waiting for room for {waiting}" if waiting else "loading engines"
        tell(phase, {a.name: _replicas_running(status, a.name) for a in config.agents})
        if status.status.value == "RUNNING":
            return
        if cause := _failure(status):
            raise LifecycleError(cause)
        time.sleep(POLL_S)
    late = f"the engines did not load within {START_TIMEOUT_S:.0f} s"
    if waiting:
        late += (
            f": no node of the Ray cluster has room for {waiting}; add nodes, or lower num_cpus, "
            "num_gpus or replicas (`ray status` tells what is free)"
        )
    raise LifecycleError(late)


def _replicas_running(status: Any, agent: str) -> int:
    deployment = status.deployments.get(AGENT_PREFIX + agent)
    return int(deployment.replica_states.get("RUNNING", 0)) if deployment else 0


def _without_room(status: Any) -> str:
    """Deployments whose replicas no node can take, with what each replica needs; else empty."""
    found = (
        (name, _NO_ROOM.search(deployment.message or ""))
        for name, deployment in status.deployments.items()
    )
    return ", ".join(f"{name} ({match[1]})" for name, match in found if match)


def _failure(status: Any) -> str | None:
    """Why the application will not come up, in one line; None while it still may."""
    for name, deployment in status.deployments.items():
        message = deployment.message
        if deployment.status.value == "DEPLOY_FAILED" or "failed to start" in message:
            return f"{name} did not start: {_last_cause(message)}"
    if status.status.value == "DEPLOY_FAILED":
        return f"the application did not start: {_last_cause(status.message)}"
    return None


def _last_cause(message: str) -> str:
    """The exception that a traceback ends with, in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    causes = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    # Where the first line only counts the errors, as pydantic's does, the next two say more.
    text = " ".join(lines[causes[-1] : causes[-1] + 3] if causes else lines[-1:])
    return text.partition(" [type=")[0][:_LONGEST_CAUSE] or "no reason given"
