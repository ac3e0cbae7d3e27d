"""The agent as a Serve deployment: ray.serve.llm's server with the agent's own manners.

A replica starts in this order: choose a dtype that the CPU is fast at, bind the engine's threads
to cores, get or create the node's KV store, put its address into the engine's connector settings,
start the engine, warm it up, and let the policy `cost` know what prefill takes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from kvrelay.agents.dtype import AUTO, cpu_dtype
from kvrelay.agents.probe import LENGTHS, warm_up
from kvrelay.agents.settings import AgentSettings
from kvrelay.relay.decisions.log import default_directory
from kvrelay.relay.decisions.reader import DecisionReader
from kvrelay.relay.settings import RelaySettings

logger = logging.getLogger(__name__)
_BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_MEASURED = "cost"  # the policy that decides by what the engine takes


class NoDownload(CallbackBase):
    """Skips Ray's download step, a process of its own per replica, for local models."""

    async def on_before_node_init(self) -> None:
        """Called by ray.serve.llm before it fetches a model."""
        self.ctx.run_init_node = False


class AgentServer(LLMServer):
    """One replica of one agent: a vLLM engine behind the OpenAI methods."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, llm_config: LLMConfig, *, agent: AgentSettings
    ) -> None:
        """Start the engine; returns when it can serve.

        Args:
            llm_config: the engine, as ray.serve.llm takes it.
            agent: relay and cores of this agent.
        """
        self._agent = agent
        self._decisions: Path | None = None  # where this engine's log lies
        await super().__init__(llm_config)

    async def start(self) -> None:
        """Prepare this node, start the engine, warm it up, measure it if its policy needs that."""
        self._choose_dtype()
        # vLLM takes the binding from the environment only, and its automatic choice gives
        # an engine with a connector other cores than one without.
        os.environ[_BINDING] = self._agent.cpu_binding or _own_cores()
        if self._agent.relay is not None:
            settings = _with_log(await asyncio.to_thread(_with_store, self._agent.relay))
            if settings.decisions_directory is not None:
                self._decisions = Path(settings.decisions_directory)
            self._llm_config.update_engine_kwargs(kv_transfer_config=connector_config(settings))
        await super().start()
        relay = self._agent.relay
        lengths = LENGTHS if relay is not None and relay.policy == _MEASURED else ()
        await warm_up(getattr(self.engine, "_engine_client", None), lengths)

    def _choose_dtype(self) -> None:
        """Have an engine on a CPU without bfloat16 compute in float32, unless told otherwise."""
        from vllm.platforms import current_platform

        if self._llm_config.engine_kwargs.get("dtype", AUTO) != AUTO:
            return
        if current_platform.is_cpu() and (dtype := cpu_dtype()) == "float32":
            logger.warning("this CPU is slow at bfloat16: %s computes in float32", self._agent.name)
            self._llm_config.update_engine_kwargs(dtype=dtype)

    async def decisions(self, answer: str) -> list[dict[str, Any]] | None:
        """The records of an answer of this agent, from this node's log; None if it keeps none.

        Args:
            answer: the id of the OpenAI response.
        """
        if self._decisions is None:
            return None
        reader = DecisionReader(self._decisions)
        return await asyncio.to_thread(reader.find, self._agent.name, answer)


def connector_config(settings: RelaySettings) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` for kvrelay's connector."""
    return {
        "kv_connector": "RelayConnector",
        "kv_connector_module_path": "kvrelay.relay.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings.to_extra_config(),
    }


def _with_store(settings: RelaySettings) -> RelaySettings:
    """The settings with the address of this node's store, which is started if need be."""
    from kvrelay.relay.actor import ensure_store

    return replace(settings, store=ensure_store(settings).address)


def _with_log(settings: RelaySettings) -> RelaySettings:
    """The settings with this replica's name, and the place of its log on this node, if any."""
    directory = None
    if settings.decisions_bytes:
        directory = settings.decisions_directory or str(default_directory())
    replica = serve.get_replica_context().replica_tag
    return replace(settings, replica=replica, decisions_directory=directory)


def _own_cores() -> str:
    """The cores this process may use, as vLLM's binding writes them: `0,1,2`."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
