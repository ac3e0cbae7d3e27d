"""The configuration file: what is served, by which agents, and how KV is relayed.

Everything is checked when the file is read, and every problem is reported at once with the
path of its field: `agents[1].model: unknown model 'x'; known: demo`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from kvrelay.agents.settings import SamplingDefaults
from kvrelay.cluster.config_errors import all_problems, describe, read_yaml
from kvrelay.policies import parse_policy
from kvrelay.relay.settings import RelaySettings

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6}
_UNITS |= {"GB": 10**9, "TB": 10**12, "B": 1}
DEFAULT_KV_CACHE_BYTES = 512 * 2**20
SMALLEST_LOG_BYTES = 2**20
# A colon marks a LoRA adapter and `--` stands for `/` in Ray's model ids.
_NAME = r"^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$"
# `node` fields name a Ray node by the value of this label; Ray takes Kubernetes' syntax.
NODE_LABEL = "kvrelay/node"
_LABEL_VALUE = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_SHA256 = r"^[0-9a-f]{64}$"


def parse_bytes(value: object) -> int:
    """A number of bytes, as an integer or with a unit: `512MiB`, `2GiB`, `1.5 GB`.

    Raises:
        ValueError: not a size, or not positive.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        num_bytes = value
    elif isinstance(value, str):
        text = value.strip()
        unit = next((u for u in sorted(_UNITS, key=len, reverse=True) if text.endswith(u)), "")
        try:
            num_bytes = int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
        except (ValueError, OverflowError):
            raise ValueError(f"'{value}' is not a size; write for example 512MiB or 2GiB") from None
    else:
        raise ValueError(f"{value!r} is not a size; write for example 512MiB or 2GiB")
    if num_bytes <= 0:
        raise ValueError(f"a size must be positive, got '{value}'")
    return num_bytes


def _parse_bytes_or_none(value: object) -> int:
    """As `parse_bytes`, but 0 is a size too."""
    off = value == "0" or (value == 0 and not isinstance(value, bool))
    return 0 if off else parse_bytes(value)


def _check_log_size(value: int) -> int:
    if 0 < value < SMALLEST_LOG_BYTES:
        raise ValueError(f"a log needs at least 1MiB, got {value} bytes; 0 keeps none")
    return value


def _check_absolute(value: str) -> str:
    if not Path(value).is_absolute():
        raise ValueError(f"'{value}' is not an absolute path, which every node needs")
    return value


def _check_policy(value: str) -> str:
    parse_policy(value)
    return value


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
ByteSizeOrNone = Annotated[int, BeforeValidator(_parse_bytes_or_none)]
PolicyName = Annotated[str, AfterValidator(_check_policy)]
LogSize = Annotated[ByteSizeOrNone, AfterValidator(_check_log_size)]
LogDirectory = Annotated[str, AfterValidator(_check_absolute)]


class _Strict(BaseModel):
    """Unknown keys are errors, and what was read is not changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _with_byte_sizes(engine_kwargs: dict[str, Any]) -> dict[str, Any]:
    if "kv_cache_memory_bytes" not in engine_kwargs:
        return engine_kwargs
    size = engine_kwargs["kv_cache_memory_bytes"]
    return {**engine_kwargs, "kv_cache_memory_bytes": parse_bytes(size)}


EngineKwargs = Annotated[dict[str, Any], AfterValidator(_with_byte_sizes)]


class ModelConfig(_Strict):
    """One model that agents can run.

    Attributes:
        source: `demo`, a Hugging Face id, or the path of a folder.
        engine_kwargs: vLLM engine arguments for every agent on this model.
    """

    source: str = Field(min_length=1)
    engine_kwargs: EngineKwargs = {}


class AutoscalingConfig(_Strict):
    """How many replicas an agent has, by load.

    Attributes:
        min: fewest replicas.
        max: most replicas.
        target_ongoing_requests: requests in flight per replica that Serve aims at.
    """

    min: int = Field(default=1, ge=0)
    max: int = Field(ge=1)
    target_ongoing_requests: float = Field(default=8, gt=0)

    @model_validator(mode="after")
    def _check_order(self) -> AutoscalingConfig:
        if self.max < self.min:
            raise ValueError(f"max is {self.max}, below min {self.min}")
        return self


class AgentConfig(_Strict):
    """One agent: a `model` name at the endpoint, with an engine of its own.

    Attributes:
        name: what callers put into `model`.
        model: key into `models`.
        system_prompt: used where a chat brings none.
        sampling: used where a request brings none.
        replicas: fixed number of replicas.
        autoscaling: instead of `replicas`.
        engine_kwargs: vLLM engine arguments, over those of the model.
        num_cpus: Ray CPUs that a replica reserves; a bookkeeping figure, not a limit.
        num_gpus: Ray GPUs per engine worker; 0 runs on the CPU.
        cpu_binding: cores of the engine's threads, such as `0-3`; default: all that the
            replica may use. CPU engines only.
        node: only on Ray nodes that carry the label `kvrelay/node` with this value (`ray start
            --labels kvrelay/node=VALUE`, or `labels` of a KubeRay group); default: on any.
        relay: False gives this agent an engine without connector.
    """

    name: str = Field(pattern=_NAME)
    model: str
    system_prompt: str | None = None
    sampling: SamplingDefaults = SamplingDefaults()
    replicas: int | None = Field(default=None, ge=1)
    autoscaling: AutoscalingConfig | None = None
    engine_kwargs: EngineKwargs = {}
    num_cpus: float = Field(default=1, gt=0)
    num_gpus: float = Field(default=0, ge=0)
    cpu_binding: str | None = Field(default=None, pattern=r"^[0-9,-]+$")
    node: str | None = Field(default=None, pattern=_LABEL_VALUE)
    relay: bool = True

    @model_validator(mode="after")
    def _check_replicas(self) -> AgentConfig:
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError("give either replicas or autoscaling, not both")
        return self


class RelayConfig(_Strict):
    """How KV moves between agents.

    Attributes:
        enabled: False gives every agent a plain engine.
        capacity_bytes: shared memory of each node's store, such as `2GiB`.
        encoded_bytes: memory of each node's store, besides, for blocks that `capacity_bytes` has
            no room for: a quarter shorter, and slower to load. None by default: whoever has sized
            a machine or a container for the one must not find it full hours later.
        policy: `cost`, by default: what measured costs of this engine say is cheaper; or a rule:
            `always`, `never`, `min_tokens:N`, `floor_and_queue:N,LOADS`, `similarity:0.85,0.90`,
            which goes by the cosine of `embedding_model`: for KV on this node, and on others.
        exploration: share of sessions to which `cost` gives the other arm by lot, to notice when
            costs change, and where relay does not pay; while it knows too little, more. 0: none.
        switchback_s: for an experiment with `cost`: all agents relay whatever they can, or nothing,
            in turns of so many seconds, which `kvrelay payoff --switchback` compares; 0: no turns.
        queue_weight: what a second that a request behind waits weighs for `cost`, against one
            of the request's own.
        load_deadline_s: a load that takes longer is given up and recomputed.
        load_patience: with `cost` a load is given up earlier, after so many times what it is
            predicted to take at most, but no earlier than after 2 seconds.
        max_loads_in_flight: concurrent loads per engine; beyond it requests recompute.
        transport: between nodes, `nixl` or `plasma`; by default what proves fastest.
        codec: between nodes, `raw`, `lz4` or `split`; by default what proves fastest.
        routing: `named` sends a request to the agent that it names; `owner_affinity` to the one
            that has its prefix, if that has the same model and engine arguments and is not busy.
        prediction: `declared` lets a request say which agent will go on with its prompt (`next`,
            beside `mode`); `observed` also expects what has mostly come next so far. The KV is then
            fetched ahead by the node of that agent, if that is expected to save more than it costs.
        embedding_model: measures how alike prompts are, beside their words: `minilm`, the name of
            a sentence-transformers model, or a folder. Each text costs the ingress tens of
            milliseconds of CPU; needs `pip install 'kvrelay[embed]'`. None by default.
    """

    enabled: bool = True
    capacity_bytes: ByteSize = 2 * 2**30
    encoded_bytes: ByteSizeOrNone = 0
    policy: PolicyName = "cost"
    exploration: float = Field(default=0.01, ge=0, le=0.5)
    switchback_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    queue_weight: float = Field(default=0.5, ge=0)
    load_deadline_s: float = Field(default=2.0, gt=0)
    load_patience: float = Field(default=3.0, ge=1)
    max_loads_in_flight: int = Field(default=8, ge=1)
    transport: Literal["nixl", "plasma"] | None = None
    codec: Literal["raw", "lz4", "split"] | None = None
    routing: Literal["named", "owner_affinity"] = "named"
    prediction: Literal["none", "declared", "observed"] = "none"
    embedding_model: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _check_similarity(self) -> RelayConfig:
        if self.policy.startswith("similarity:") and self.embedding_model is None:
            raise ValueError(f"policy '{self.policy}' needs embedding_model, such as minilm")
        return self

    @model_validator(mode="after")
    def _check_switchback(self) -> RelayConfig:
        if 0 < self.switchback_s < 1:
            raise ValueError("switchback_s must be 0 or at least 1")
        if self.switchback_s and self.policy != "cost":
            raise ValueError(f"switchback_s needs the policy cost, not '{self.policy}'")
        return self

    @model_validator(mode="after")
    def _check_prediction(self) -> RelayConfig:
        if self.prediction != "none" and self.routing == "owner_affinity":
            raise ValueError(
                "prediction brings KV to the agent that comes next, routing owner_affinity takes "
                "requests to the KV: give one of them"
            )
        return self

    def settings(self, agent: str) -> RelaySettings:
        """The connector's settings for one agent, without the node's store address."""
        return RelaySettings(
            policy=self.policy,
            exploration=self.exploration,
            switchback_s=self.switchback_s,
            queue_weight=self.queue_weight,
            capacity_bytes=self.capacity_bytes,
            encoded_bytes=self.encoded_bytes,
            load_deadline_s=self.load_deadline_s,
            load_patience=self.load_patience,
            max_loads_in_flight=self.max_loads_in_flight,
            transport=self.transport,
            codec=self.codec,
            agent=agent,
        )


class DecisionsConfig(_Strict):
    """The log of what was decided for each request, see `kvrelay decisions`.

    Attributes:
        directory: on each node with agents, an absolute path; by default in the folder of the
            node's Ray, and gone with it.
        max_bytes: what it may hold on a node; the oldest records go first. 0 keeps no log.
    """

    directory: LogDirectory | None = None
    max_bytes: LogSize = 64 * 2**20


class TelemetryConfig(_Strict):
    """What is logged: `log_level` is that of the engines and of Serve."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"
    decisions: DecisionsConfig = DecisionsConfig()


class OperatorConfig(_Strict):
    """Who may use modes that tell of others or cost them something: whoever sends the operator's
    token in the header `X-Kvrelay-Operator`. Nobody, unless one of these is given.

    Attributes:
        token_sha256: SHA-256 of the token, in hex: `printf %s "$TOKEN" | sha256sum`.
        token_env: instead, the environment variable that holds the token where the application
            is built.
        open: instead, everybody may; for demonstrations at a loopback address.
    """

    token_sha256: str | None = Field(default=None, pattern=_SHA256)
    token_env: str | None = Field(default=None, min_length=1)
    open: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _check_one(self) -> OperatorConfig:
        if (self.token_sha256 is not None) + (self.token_env is not None) + self.open > 1:
            raise ValueError("give one of token_sha256, token_env and open, not several")
        return self


class TenantKey(_Strict):
    """An API key of a tenant, which may have several.

    Attributes:
        name: the tenant.
        api_key_sha256: SHA-256 of the key, in hex: `printf %s "$KEY" | sha256sum`.
    """

    name: str = Field(min_length=1)
    api_key_sha256: str = Field(pattern=_SHA256)


class TenantsConfig(_Strict):
    """Who shares KV with whom: requests of one tenant only, neither in an engine's own prefix cache
    nor by relay. Without it all requests are of one tenant.

    Attributes:
        api_keys: the tenant is told by `Authorization: Bearer KEY`.
        trusted_header: instead, a gateway names it in this header. Whoever reaches the endpoint
            past the gateway may name any.
    """

    api_keys: list[TenantKey] = []
    trusted_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]+$")

    @model_validator(mode="after")
    def _check_one(self) -> TenantsConfig:
        if bool(self.api_keys) == (self.trusted_header is not None):
            raise ValueError("give either api_keys or trusted_header")
        digests = [key.api_key_sha256 for key in self.api_keys]
        for i, digest in enumerate(digests):
            if (first := digests.index(digest)) != i:
                raise ValueError(f"api_keys[{i}] is the same key as api_keys[{first}]")
        return self


class HttpConfig(_Strict):
    """Where the endpoint listens.

    Attributes:
        host, port: on the Ray head and on every node with an agent.
        node: as `agents[].node`, for the ingress that hands requests on to the agents.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    node: str | None = Field(default=None, pattern=_LABEL_VALUE)


class ClusterConfig(_Strict):
    """A whole configuration file."""

    models: dict[str, ModelConfig] = Field(min_length=1)
    agents: list[AgentConfig] = Field(min_length=1)
    relay: RelayConfig = RelayConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    http: HttpConfig = HttpConfig()
    operator: OperatorConfig = OperatorConfig()
    tenants: TenantsConfig | None = None

    def engine_kwargs(self, agent: AgentConfig) -> dict[str, Any]:
        """vLLM's arguments for an agent's engine: the agent's over its model's.

        A CPU engine gets a KV cache of 512 MiB unless told otherwise: vLLM's own default is
        92 % of the machine's memory for each engine.
        """
        merged = {**self.models[agent.model].engine_kwargs, **agent.engine_kwargs}
        if agent.num_gpus == 0:
            merged.setdefault("kv_cache_memory_bytes", DEFAULT_KV_CACHE_BYTES)
        return merged

    def relays(self, agent: AgentConfig) -> bool:
        """Whether this agent's engine gets kvrelay's connector."""
        return (
            self.relay.enabled
            and agent.relay
            and "kv_transfer_config" not in self.engine_kwargs(agent)
        )

    def num_replicas(self, agent: AgentConfig) -> int:
        """Replicas at start."""
        if agent.autoscaling is not None:
            return agent.autoscaling.min
        return agent.replicas or 1


def load_config(source: str | Path | Mapping[str, Any]) -> ClusterConfig:
    """Read and check a configuration.

    Args:
        source: path of a YAML file, or its content.

    Raises:
        ConfigError: the file cannot be read, or it names every field that cannot work.
    """
    name = "config" if isinstance(source, Mapping) else str(source)
    content = (
        source
        if isinstance(source, Mapping)
        else read_yaml(Path(source), "cluster/configs/", "the keys models and agents")
    )
    try:
        config = ClusterConfig.model_validate(content)
    except ValidationError as error:
        problems = describe(error, ClusterConfig) + _cross_problems(content)
        raise all_problems(name, problems) from None
    if problems := _cross_problems(content):
        raise all_problems(name, problems)
    return config


def _cross_problems(content: Mapping[str, Any]) -> list[str]:
    """What concerns several fields: unknown models, names used twice, an open door.

    Works on the raw content so that it is reported beside the other problems.
    """
    problems, seen = _open_problems(content), dict[str, int]()
    models, agents = content.get("models"), content.get("agents")
    if not isinstance(models, Mapping) or not isinstance(agents, list):
        return problems
    for i, agent in enumerate(agents):
        if not isinstance(agent, Mapping):
            continue
        model, name = agent.get("model"), agent.get("name")
        if isinstance(model, str) and model not in models:
            known = ", ".join(sorted(map(str, models))) or "none"
            problems.append(f"agents[{i}].model: unknown model '{model}'; known: {known}")
        if isinstance(name, str) and seen.setdefault(name, i) != i:
            problems.append(f"agents[{i}].name: '{name}' is already used by agents[{seen[name]}]")
    return problems


def _open_problems(content: Mapping[str, Any]) -> list[str]:
    operator, http = content.get("operator"), content.get("http") or {}
    if not isinstance(operator, Mapping) or operator.get("open") is not True:
        return []
    host = http.get("host", HttpConfig().host) if isinstance(http, Mapping) else None
    if host == "localhost":
        return []
    try:
        if ipaddress.ip_address(str(host)).is_loopback:
            return []
    except ValueError:
        pass
    return [
        f"operator.open: only where http.host is a loopback address such as 127.0.0.1, not "
        f"'{host}'; give operator.token_sha256 instead"
    ]
