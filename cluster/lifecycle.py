"""Starting a cluster, waiting until it serves, and leaving nothing behind.

    with running(config) as session:
        ... session.url serves ...

Ray is the one that `RAY_ADDRESS` names, or else a local one that lives and dies with the
`with` block: its processes, its temporary folder and its shared memory are gone afterwards,
also if the block was left by a signal (`signals_as_exit`). A joined Ray is left as it was.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from kvrelay.cluster import joined, preflight
from kvrelay.cluster.config import ClusterConfig
from kvrelay.cluster.errors import LifecycleError
from kvrelay.cluster.processes import (
    MARKER,
    end_processes,
    marked_processes,
    remove_shared_memory,
    shared_memory_of,
)
from kvrelay.cluster.scrape import metrics_urls
from kvrelay.cluster.session import (
    Session,
    cache_dir,
    load_sessions,
    make_temp_dir,
    sessions_dir,
    temp_environment,
)
from kvrelay.cluster.startup import APP_NAME, Progress, Reporter, deploy

logger = logging.getLogger(__name__)
_SHUTDOWN_STEP_S = 30.0
_ENGINE_END_S = 5.0  # after its replica has ended
_POLL_S = 0.2


class Stopped(BaseException):
    """A signal asked this process to end; not an error, so that no `except` takes it for one."""


@contextlib.contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP unwind the stack, once; later ones do not disturb it."""

    def leave(signum: int, _: FrameType | None) -> None:
        for each in previous:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(signum).name)

    previous: dict[signal.Signals, Any] = {}
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if each is signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN:
            continue  # started by nohup
        previous[each] = signal.signal(each, leave)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def running(config: ClusterConfig, progress: Progress | None = None) -> Iterator[Session]:
    """Serve a configuration for the time of the block.

    Args:
        config: what to serve.
        progress: told how far the start has come, about once a second.

    Raises:
        LifecycleError: the port, the memory or Ray does not allow it, or an engine failed.
        ConfigError, ModelError: found when the application is built.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:  # a joined one may be on other machines, which have other memory
        preflight.check_port(config.http)
        preflight.check_memory(config)
        preflight.check_shared_memory(config)
        preflight.check_nodes(config, ())
    tell = Reporter(config, progress)
    session = _new_session(config, owns_ray=not address)
    leaving: list[Callable[[], Any]] = []
    try:
        session.save()
        with _environment(session):
            tell("starting Ray" if session.owns_ray else "joining Ray")
            session = _connect_ray(config, session, address)
            leaving = _own_leaving() if session.owns_ray else joined.enter(config).leaving()
            try:
                deploy(config, tell)
                if not session.owns_ray:
                    joined.check_endpoint(session.url)
            except LifecycleError as error:
                raise LifecycleError(f"{error.message}{_keep_logs(session)}") from error
            shared = shared_memory_of(marked_processes(session.id))
            session = replace(
                session, ready=True, shared_memory=tuple(sorted(shared)), metrics=metrics_urls()
            )
            session.save()
            yield session
    finally:
        _tear_down(session, leaving)


def stop(session: Session, grace_s: float = 60.0) -> None:
    """End a cluster that another process started; harmless if it has ended already.

    Raises:
        LifecycleError: it does not end.
    """
    owner = session.owner()
    if owner is not None and owner.pid != os.getpid():
        owner.terminate()
        try:
            owner.wait(grace_s)
        except psutil.TimeoutExpired:
            owner.kill()
    if session.owns_ray:
        _remove_leftovers(session)
    session.remove()
    if session.owns_ray and (left := marked_processes(session.id)):
        pids = ", ".join(str(process.pid) for process in left)
        raise LifecycleError(f"processes {pids} of the cluster do not end; see `ps {pids}`")


def stop_all() -> int:
    """End every cluster on record; answers how many there were."""
    sessions = load_sessions()
    for session in sessions:
        stop(session)
    return len(sessions)


def _new_session(config: ClusterConfig, owns_ray: bool) -> Session:
    host = "127.0.0.1" if config.http.host in {"0.0.0.0", "::"} else config.http.host
    given = None if owns_ray else os.environ.get(MARKER)
    return Session(
        id=given or secrets.token_hex(8),
        pid=os.getpid(),
        pid_created_s=psutil.Process().create_time(),
        url=f"http://{host}:{config.http.port}/v1",
        agents=tuple(agent.name for agent in config.agents),
        ray_token=secrets.token_hex(32) if owns_ray else "",
        owns_ray=owns_ray,
        temp_dir=make_temp_dir() if owns_ray else "",
    )


@contextlib.contextmanager
def _environment(session: Session) -> Iterator[None]:
    """What Ray's processes inherit, and a working directory that is not the caller's.

    A token in the environment keeps Ray from writing one into the home directory. Workers
    start in the driver's directory: in a checkout of kvrelay, `import agents` would find
    the project's folder instead of whatever package of that name is installed.
    """
    values = {MARKER: session.id, "RAY_USAGE_STATS_ENABLED": "0"}
    if session.owns_ray:
        values |= {"RAY_AUTH_TOKEN": session.ray_token, **temp_environment(session.temp_dir)}
    before = {name: os.environ.get(name) for name in values}
    folder = Path.cwd()
    os.environ.update(values)
    os.chdir(session.temp_dir or sessions_dir())
    try:
        yield
    finally:
        os.chdir(folder)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _connect_ray(config: ClusterConfig, session: Session, address: str | None) -> Session:
    import ray

    options: dict[str, Any] = {"address": address}
    if session.owns_ray:
        options = {
            "address": "local",
            "num_cpus": math.ceil(preflight.local_cpus(config)),
            "include_dashboard": False,
            "object_store_memory": preflight.OBJECT_STORE_BYTES,
            "_temp_dir": session.temp_dir,
        }
    else:
        joined.use_token()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        context = ray.init(
            namespace=APP_NAME, log_to_driver=False, logging_level=logging.ERROR, **options
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"join the Ray at {address}" if address else "start Ray"
        hint = "check RAY_ADDRESS" if address else f"is {session.temp_dir} writable?"
        raise LifecycleError(f"cannot {where}: {_first_line(error)}; {hint}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in handlers.items():
                signal.signal(each, handler)  # ray.init puts its own there
    connected = replace(
        session,
        ray_address=context.address_info["address"],
        decisions=_decisions_directory(config),
    )
    connected.save()
    return connected


def _decisions_directory(config: ClusterConfig) -> str:
    from kvrelay.relay.decisions.log import default_directory

    log = config.telemetry.decisions
    return (log.directory or str(default_directory())) if log.max_bytes else ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _tear_down(session: Session, leaving: list[Callable[[], Any]]) -> None:
    """Undo what `running` did, however far it came: first these steps, while Ray is there."""
    # What is mapped now, and what was at the start: an engine that was killed maps nothing.
    shared = shared_memory_of(marked_processes(session.id)) | set(session.shared_memory)
    _leave_ray(leaving)
    if session.owns_ray:
        _remove_leftovers(replace(session, shared_memory=tuple(shared)))
    else:
        _remove_unused(session.id, shared)
    session.remove()


def _own_leaving() -> list[Callable[[], Any]]:
    from ray import serve

    return [partial(serve.delete, APP_NAME), _shut_down_stores]


def _leave_ray(leaving: list[Callable[[], Any]]) -> None:
    """Our own Ray ends; a joined one keeps running without our application."""
    import ray

    if not ray.is_initialized():
        return
    # Where Serve ends, Ray tells on standard output that its controller was killed.
    with contextlib.redirect_stdout(io.StringIO()):
        for step in [*leaving, ray.shutdown]:
            # A cluster that is damaged may not answer; what then remains is ended by force.
            thread = threading.Thread(target=_quietly, args=(step,), daemon=True)
            thread.start()
            thread.join(_SHUTDOWN_STEP_S)


def _shut_down_stores() -> None:
    from kvrelay.relay.actor import shutdown_stores

    shutdown_stores()


def _quietly(step: Callable[[], Any]) -> None:
    try:
        step()
    except Exception as error:
        logger.debug("while shutting down: %s", error)


def _keep_logs(session: Session) -> str:
    """Save the logs of a start that failed, only the latest; where, as the message's end."""
    logs = Path(session.temp_dir) / "session_latest" / "logs"
    if not session.owns_ray or not logs.is_dir():
        return ""
    kept = cache_dir() / "logs"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(logs, kept, ignore_dangling_symlinks=True)
    return f"; logs: {kept}"


def _remove_unused(session_id: str, shared: set[str]) -> None:
    """Remove shared memory of engines that have ended in a Ray that goes on."""
    deadline_s = time.monotonic() + _ENGINE_END_S
    while shared and time.monotonic() < deadline_s:
        unused = shared - shared_memory_of(marked_processes(session_id))
        remove_shared_memory(unused)
        if shared := shared - unused:
            time.sleep(_POLL_S)


def _remove_leftovers(session: Session) -> None:
    """End the remaining processes, then remove their shared memory and files."""
    shared = shared_memory_of(marked_processes(session.id)) | set(session.shared_memory)
    end_processes(session.id)
    remove_shared_memory(shared)
    if session.temp_dir:
        shutil.rmtree(session.temp_dir, ignore_errors=True)
