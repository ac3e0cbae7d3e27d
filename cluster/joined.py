"""Our application in a Ray that others have started: what is checked before, what is left after.

Other applications may be served there, and Serve itself has one HTTP port for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from kvrelay.cluster import preflight
from kvrelay.cluster.config import NODE_LABEL, ClusterConfig
from kvrelay.cluster.errors import LifecycleError
from kvrelay.cluster.startup import AGENT_PREFIX, APP_NAME

_ANYWHERE = {"0.0.0.0", "::"}
_ENDPOINT_TIMEOUT_S = 15.0
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Guest:
    """Our place in somebody's Ray.

    Attributes:
        serve_ran: whether Serve was there before us, and so stays when we leave.
    """

    serve_ran: bool

    def leaving(self) -> list[Callable[[], Any]]:
        """What undoes a deployment, in order."""
        return [_delete_application, _end_unused_stores, self._end_unused_serve]

    def _end_unused_serve(self) -> None:
        from ray import serve

        if not self.serve_ran and not serve.status().applications:
            serve.shutdown()


def use_token() -> None:
    """Let Ray use the token of the environment or the home directory, if there is one.

    It does so by itself only for a cluster that it has started or found, not for an address.
    """
    from ray._private.authentication import authentication_token_setup as setup

    setup.logger.setLevel(logging.ERROR)  # it would announce the token
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def enter(config: ClusterConfig) -> Guest:
    """Look whether the application can be served in the Ray that this process has joined.

    Raises:
        LifecycleError: a node, the application's name or where Serve listens speaks against it.
    """
    import ray
    from ray import serve
    from ray.serve.context import _get_global_client

    alive = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    preflight.check_nodes(config, {each[NODE_LABEL] for each in alive if NODE_LABEL in each})
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        preflight.check_port(config.http)
        return Guest(serve_ran=False)
    if APP_NAME in serve.status().applications:
        raise LifecycleError(
            f"this Ray already serves an application named '{APP_NAME}'; end that one first "
            "(kvrelay stop, where it was started)"
        )
    there = client.http_config
    if there.port != config.http.port or there.host not in {config.http.host, *_ANYWHERE}:
        raise LifecycleError(
            f"Serve runs in this Ray already and listens on {there.host}:{there.port}, not on "
            f"{config.http.host}:{config.http.port}; set http.host and http.port to that"
        )
    if config.operator.open and there.host in _ANYWHERE:
        raise LifecycleError(
            f"operator.open: Serve in this Ray listens on {there.host}, for everybody; "
            "give operator.token_sha256 instead"
        )
    return Guest(serve_ran=True)


def check_endpoint(url: str) -> None:
    """Fail if the endpoint cannot be reached from here; it may lie on other nodes only.

    Raises:
        LifecycleError: saying where it is.
    """
    # Ray sets the level of the root logger, and httpx would then tell of every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    deadline_s = time.monotonic() + _ENDPOINT_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{url}/models", timeout=_ANSWER_TIMEOUT_S, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(_POLL_S)
    raise LifecycleError(
        f"the agents are up, but {url} does not answer on this machine: Serve listens on the "
        "Ray head and on nodes with agents; run this on one of them"
    )


def _delete_application() -> None:
    from ray import serve

    serve.delete(APP_NAME)


def _end_unused_stores() -> None:
    """End the stores, and free their memory, unless another application's agents use them."""
    from ray import serve

    from kvrelay.relay.actor import shutdown_stores

    deployments = [name for app in serve.status().applications.values() for name in app.deployments]
    if not any(name.startswith(AGENT_PREFIX) for name in deployments):
        shutdown_stores()
