"""Builds the Serve application from a configuration.

serve run kvrelay.cluster.app:build config=demo.yaml
serve deploy / a RayService:  import_path: kvrelay.cluster.app:build, args: {config: ...}
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig, build_llm_deployment
from ray.serve.llm.ingress import make_fastapi_ingress

from kvrelay.agents.deployment import AgentServer, NoDownload
from kvrelay.agents.prompt import AgentDefaults
from kvrelay.agents.settings import AgentSettings
from kvrelay.cluster.access import Access, make_access
from kvrelay.cluster.config import NODE_LABEL, AgentConfig, ClusterConfig, load_config
from kvrelay.cluster.embedding import check_embedding
from kvrelay.cluster.engine_kwargs import check_engine_kwargs
from kvrelay.cluster.errors import ConfigError, ModelError
from kvrelay.cluster.front import AgentFront, FrontSettings
from kvrelay.cluster.ingress import ENDPOINTS, AgentIngress, make_api
from kvrelay.cluster.model import ensure_model
from kvrelay.cluster.startup import AGENT_PREFIX
from kvrelay.relay.settings import RelaySettings


def build(args: Mapping[str, Any]) -> serve.Application:
    """The Serve application of a whole cluster.

    Args:
        args: the configuration itself, or `{"config": PATH}`.

    Raises:
        ConfigError: the configuration cannot work, or needs what is not installed.
        ModelError: a model is not there and cannot be fetched.
    """
    config = load_config(args["config"] if set(args) == {"config"} else args)
    if config.operator.open:
        raise ConfigError(
            "operator.open: only with `kvrelay serve`, which sees to it that nobody else reaches "
            "the endpoint; give operator.token_sha256 instead"
        )
    return application(config)


def application(config: ClusterConfig) -> serve.Application:
    """As `build`, for a caller who lets Serve listen where the configuration says."""
    access = make_access(config)
    check_engine_kwargs(config)
    if config.relay.embedding_model is not None:
        check_embedding()
    sources = _model_sources(config)
    agents = {a.name: _agent(config, a, sources[a.model]) for a in config.agents}
    created_s = int(time.time())
    cards = {a.name: _card(config, a, created_s) for a in config.agents}
    ingress = make_fastapi_ingress(AgentIngress, endpoint_map=ENDPOINTS, app=make_api())
    # The ingress waits for engines and computes next to nothing: no core is set aside for it.
    actor: dict[str, Any] = {"num_cpus": 0}
    if config.http.node is not None:
        actor["label_selector"] = {NODE_LABEL: config.http.node}
    deployment = serve.deployment(
        ingress, name="ingress", max_ongoing_requests=1024, ray_actor_options=actor
    )
    settings = _front_settings(config, access)
    return deployment.bind(llm_deployments=agents, model_cards=cards, settings=settings)


def _front_settings(config: ClusterConfig, access: Access) -> FrontSettings:
    agents = {
        agent.name: AgentFront(
            defaults=AgentDefaults(agent.system_prompt, agent.sampling.given()),
            model=agent.model,
            relays=config.relays(agent),
            pool=_pool(config, agent),
        )
        for agent in config.agents
    }
    relay = config.relay
    return FrontSettings(agents, relay.routing, relay.embedding_model, relay.prediction, access)


def _pool(config: ClusterConfig, agent: AgentConfig) -> str | None:
    """What agents have in common that can serve each other's requests: model and engine."""
    if not config.relays(agent):
        return None
    engine = [agent.model, agent.num_gpus, config.engine_kwargs(agent)]
    return json.dumps(engine, sort_keys=True, default=str)


def _model_sources(config: ClusterConfig) -> dict[str, Path | str]:
    """Where each model is; only those that an agent uses are made ready."""
    used = {agent.model for agent in config.agents}
    sources = {}
    for name, model in config.models.items():
        if name not in used:
            continue
        try:
            sources[name] = ensure_model(model.source)
        except ModelError as error:
            raise ModelError(f"models.{name}.source: {error.message}") from None
    return sources


def _agent(config: ClusterConfig, agent: AgentConfig, source: Path | str) -> serve.Application:
    return build_llm_deployment(
        _llm_config(config, agent, source),
        name_prefix=AGENT_PREFIX,
        deployment_cls=AgentServer,
        bind_kwargs={"agent": _settings(config, agent)},
    )


def _settings(config: ClusterConfig, agent: AgentConfig) -> AgentSettings:
    return AgentSettings(
        name=agent.name,
        relay=_relay_settings(config, agent) if config.relays(agent) else None,
        cpu_binding=agent.cpu_binding,
    )


def _relay_settings(config: ClusterConfig, agent: AgentConfig) -> RelaySettings:
    log = config.telemetry.decisions
    return replace(
        config.relay.settings(agent.name),
        decisions_directory=log.directory,
        decisions_bytes=log.max_bytes,
    )


def _llm_config(config: ClusterConfig, agent: AgentConfig, source: Path | str) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": agent.name, "model_source": str(source)},
        engine_kwargs=config.engine_kwargs(agent),
        deployment_config=_deployment_options(config, agent),
        placement_group_config=_placement(agent),
        runtime_env={"env_vars": _engine_environment(config, source)},
        callback_config=_callback(source),
        # Ray holds streamed chunks back for 50 ms by default, and TTFT with them.
        experimental_configs={"stream_batching_interval_ms": 0},
    )


def _callback(source: Path | str) -> dict[str, Any]:
    return {"callback_class": NoDownload} if isinstance(source, Path) else {}


def _deployment_options(config: ClusterConfig, agent: AgentConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": 0},
        "logging_config": {"log_level": config.telemetry.log_level, "enable_access_log": False},
    }
    if agent.node is not None:
        # One selector stands for all bundles, so for every worker of the engine.
        options["placement_group_bundle_label_selector"] = [{NODE_LABEL: agent.node}]
    if agent.autoscaling is None:
        return {**options, "num_replicas": config.num_replicas(agent)}
    scaling = agent.autoscaling
    options["autoscaling_config"] = {
        "min_replicas": scaling.min,
        "max_replicas": scaling.max,
        "target_ongoing_requests": scaling.target_ongoing_requests,
    }
    return options


def _placement(agent: AgentConfig) -> dict[str, Any]:
    """What Ray reserves: on the CPU one bundle, since the engine's workers are its children."""
    if agent.num_gpus == 0:
        return {"bundles": [{"CPU": agent.num_cpus}]}
    return {"bundle_per_worker": {"CPU": agent.num_cpus, "GPU": agent.num_gpus}}


def _engine_environment(config: ClusterConfig, source: Path | str) -> dict[str, str]:
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": config.telemetry.log_level,
    }
    if isinstance(source, Path):
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return environment


def _card(config: ClusterConfig, agent: AgentConfig, created_s: int) -> dict[str, Any]:
    """What `/v1/models` says about an agent."""
    return {
        "id": agent.name,
        "object": "model",
        "created": created_s,
        "owned_by": "kvrelay",
        "model": config.models[agent.model].source,
        "max_model_len": config.engine_kwargs(agent).get("max_model_len"),
        "relay": config.relays(agent),
    }
