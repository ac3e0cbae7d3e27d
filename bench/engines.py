"""The clusters that benchmarks run, and proof that their engines are alike."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from kvrelay.agents.dtype import cpu_dtype
from kvrelay.bench.errors import BenchError, UnequalEngines
from kvrelay.cluster import preflight
from kvrelay.cluster.cli.console import startup_display
from kvrelay.cluster.config import ClusterConfig, load_config
from kvrelay.cluster.lifecycle import running
from kvrelay.cluster.processes import marked_processes
from kvrelay.cluster.session import Session

BLOCK_TOKENS = 128
MAX_MODEL_TOKENS = 8192
DTYPE = cpu_dtype()
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_SHM = Path("/dev/shm")
# One engine for all comparisons. ExampleConnector stores a prompt right only if it is computed
# in one step, hence a step as long as the longest prompt; and the KV cache is large enough
# that a step's blocks can all be held until they are saved.
ENGINE: dict[str, Any] = {
    "dtype": DTYPE,
    "max_model_len": MAX_MODEL_TOKENS,
    "max_num_batched_tokens": MAX_MODEL_TOKENS,
    "block_size": BLOCK_TOKENS,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**30,
    "enable_prompt_tokens_details": True,
}


def relaying(name: str, node: str | None = None) -> dict[str, Any]:
    """An agent with kvrelay's connector, on a node of that label."""
    agent = {"name": name, "model": "bench", "num_cpus": 0.5, "cpu_binding": all_cores()}
    return {**agent, "node": node}


def plain(name: str, node: str | None = None) -> dict[str, Any]:
    """An agent whose engine has no connector."""
    return {**relaying(name, node), "relay": False}


def peer(name: str, folder: Path) -> dict[str, Any]:
    """An agent with vLLM's ExampleConnector, which keeps files in `folder`."""
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return {**plain(name), "engine_kwargs": {"kv_transfer_config": connector}}


def cluster(
    model: str,
    agents: Sequence[Mapping[str, Any]],
    relay: Mapping[str, Any] | None = None,
    ingress_node: str | None = None,
    operator_sha256: str | None = None,
) -> ClusterConfig:
    """The configuration of a benchmark's cluster, on a free port; `relay` over the defaults."""
    return load_config(
        {
            "models": {"bench": {"source": model, "engine_kwargs": ENGINE}},
            "agents": list(agents),
            "relay": {"policy": "always", "capacity_bytes": "2GiB", **(relay or {})},
            "http": {"port": preflight.free_port(), "node": ingress_node},
            "operator": {"token_sha256": operator_sha256},
        }
    )


@contextlib.contextmanager
def started(config: ClusterConfig, own_machine: bool = True) -> Iterator[Session]:
    """Serve it for the time of the block.

    Args:
        config: what to serve.
        own_machine: whether all engines run on this machine, where they are found alike or the
            run ends. Processes of other machines cannot be looked at from here.
    """
    with contextlib.ExitStack() as display:
        progress = display.enter_context(startup_display())
        forget_ray_token()
        with running(config, progress) as session:
            display.close()
            if own_machine:
                check_alike(bindings(session), len(config.agents))
            yield session


@contextlib.contextmanager
def peer_folder() -> Iterator[Path]:
    """A folder in shared memory for the peer's files, gone afterwards.

    Raises:
        BenchError: there is no shared memory.
    """
    if not _SHM.is_dir():
        raise BenchError(f"--peer needs {_SHM}, where the peer keeps its files")
    folder = Path(tempfile.mkdtemp(prefix="kvrelay-bench-", dir=_SHM))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def empty(folder: Path) -> None:
    """Remove what the peer has stored so far."""
    for entry in folder.iterdir():
        shutil.rmtree(entry, ignore_errors=True)


def bindings(session: Session) -> dict[int, tuple[str, tuple[int, ...]]]:
    """How each engine process is bound, by pid: the setting, and the cores of its threads."""
    found = {}
    for process in marked_processes(session.id):
        with contextlib.suppress(psutil.Error, OSError):
            setting = process.environ().get(BINDING)
            if setting is not None and process.name().startswith("VLLM::Worker"):
                found[process.pid] = (setting, _thread_cores(process.pid))
    return found


def check_alike(found: Mapping[int, tuple[str, tuple[int, ...]]], num_engines: int) -> None:
    """Fail if engines that are to be compared do not have the same cores.

    Raises:
        UnequalEngines: their settings or their threads' cores differ.
        BenchError: not every engine was found.
    """
    if len(found) != num_engines:
        raise BenchError(f"found the bindings of {len(found)} engines, expected {num_engines}")
    if len(set(found.values())) > 1:
        kinds = "; ".join(
            sorted(f"{setting} on cores {cores}" for setting, cores in found.values())
        )
        raise UnequalEngines(f"the engines' threads are bound differently ({kinds})")


def forget_ray_token() -> None:
    """Ray reads its token once per process; the next local cluster has another one."""
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()


def _thread_cores(pid: int) -> tuple[int, ...]:
    """All cores that some thread of the process may run on."""
    cores: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(int(task.name))
    return tuple(sorted(cores))


def all_cores() -> str:
    """The cores that this process may run on, as vLLM's binding takes them."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
