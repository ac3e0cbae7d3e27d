"""The configuration: what it accepts, and how it says what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from kvrelay.cluster import config as config_module
from kvrelay.cluster.config import load_config, parse_bytes
from kvrelay.cluster.errors import ConfigError

EXAMPLES = sorted((Path(config_module.__file__).parent / "configs").glob("*.yaml"))
KEY = {"name": "a", "api_key_sha256": "0" * 64}


def base(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "models": {"demo": {"source": "demo"}},
        "agents": [{"name": "a", "model": "demo"}, {"name": "b", "model": "demo"}],
    }
    return {**content, **changes}


def problems(content: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(content)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    assert load_config(path).agents


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_round_trip(path: Path) -> None:
    config = load_config(path)
    assert load_config(config.model_dump()) == config


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("512MiB", 2**29), ("2GiB", 2**31), ("1.5 GiB", 3 * 2**29), ("10kB", 10_000), (7, 7)],
)
def test_sizes(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "many", "-1GiB", 0, True, None, "1e999GiB", "nan"])
def test_sizes_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zzz": 1}, "zzz: unknown key; known: models, agents, relay, telemetry, http, "),
        ({"relay": {"polcy": "x"}}, "relay.polcy: unknown key; did you mean 'policy'?"),
        ({"relay": {"policy": "maybe"}}, "relay.policy: "),
        (
            {"relay": {"policy": "similarity:0.85,0.90"}},
            "relay: policy 'similarity:0.85,0.90' needs embedding_model, such as minilm",
        ),
        (
            {"relay": {"switchback_s": 60, "policy": "always"}},
            "relay: switchback_s needs the policy cost, not 'always'",
        ),
        ({"relay": {"switchback_s": 0.5, "policy": "cost"}}, "relay: switchback_s must be 0 or "),
        ({"relay": {"embedding_model": ""}}, "relay.embedding_model: "),
        ({"relay": {"capacity_bytes": "0"}}, "relay.capacity_bytes: a size must be positive"),
        ({"relay": {"encoded_bytes": -1}}, "relay.encoded_bytes: a size must be positive"),
        ({"relay": {"encoded_bytes": False}}, "relay.encoded_bytes: false is not a size"),
        ({"relay": {"load_deadline_s": 0}}, "relay.load_deadline_s: "),
        ({"http": {"port": 70000}}, "http.port: "),
        ({"http": {"node": "a b"}}, "http.node: a label's value is up to 63 letters"),
        ({"models": {}}, "models: "),
        ({"agents": []}, "agents: "),
        ({"models": {"demo": {}}}, "models.demo.source: missing"),
        ({"telemetry": {"log_level": "LOUD"}}, "telemetry.log_level: "),
        ({"operator": {"token": "x"}}, "operator.token: unknown key; did you mean 'token_env'?"),
        ({"operator": {"token_sha256": "plain"}}, "operator.token_sha256: a SHA-256 is 64 "),
        ({"operator": {"token_env": "A", "open": True}}, "operator: give one of token_sha256, "),
        ({"operator": {"open": "true"}}, "operator.open: "),
        ({"tenants": {}}, "tenants: give either api_keys or trusted_header"),
        ({"tenants": {"api_keys": []}}, "tenants: give either api_keys or trusted_header"),
        ({"tenants": {"api_keys": [KEY], "trusted_header": "X-A"}}, "tenants: give either "),
        ({"tenants": {"api_keys": [KEY, KEY]}}, "tenants: api_keys[1] is the same key as "),
        ({"tenants": {"api_keys": [{"name": "a"}]}}, "tenants.api_keys[0].api_key_sha256: missing"),
        ({"tenants": {"api_keys": [{**KEY, "name": ""}]}}, "tenants.api_keys[0].name: "),
        (
            {"tenants": {"api_keys": [{**KEY, "api_key_sha256": "plain"}]}},
            "tenants.api_keys[0].api_key_sha256: a SHA-256 is 64 hex digits",
        ),
        ({"tenants": {"trusted_header": "X Tenant"}}, "tenants.trusted_header: the name of a "),
        (
            {"telemetry": {"decisions": {"directory": "logs"}}},
            "telemetry.decisions.directory: 'logs' is not an absolute path",
        ),
        (
            {"telemetry": {"decisions": {"max_bytes": 10}}},
            "telemetry.decisions.max_bytes: a log needs at least 1MiB",
        ),
        ({"telemetry": {"decisions": {"max_byte": 0}}}, "did you mean 'max_bytes'?"),
    ],
)
def test_one_problem(change: dict[str, Any], message: str) -> None:
    assert message in problems(base(**change))


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"model": "x"}, "agents[1].model: unknown model 'x'; known: demo"),
        ({"name": "a"}, "agents[1].name: 'a' is already used by agents[0]"),
        ({"name": "a--b"}, "agents[1].name: a name is letters and digits"),
        ({"name": "a:b"}, "agents[1].name: a name is letters and digits"),
        ({"sampling": {"temprature": 1}}, "agents[1].sampling.temprature: unknown key; did you"),
        ({"sampling": {"temperature": 9}}, "agents[1].sampling.temperature: "),
        ({"replicas": 0}, "agents[1].replicas: "),
        ({"replicas": 1, "autoscaling": {"max": 2}}, "agents[1]: give either replicas or"),
        ({"autoscaling": {"min": 3, "max": 2}}, "agents[1].autoscaling: max is 2, below min 3"),
        ({"cpu_binding": "all"}, "agents[1].cpu_binding: "),
        ({"node": "kvrelay/node=x"}, "agents[1].node: a label's value is up to 63 letters"),
        ({"node": "-a"}, "agents[1].node: a label's value is up to 63 letters"),
        ({"node": "a" * 64}, "agents[1].node: a label's value is up to 63 letters"),
        ({"engine_kwargs": {"kv_cache_memory_bytes": "x"}}, "agents[1].engine_kwargs: 'x' is not"),
    ],
)
def test_one_problem_of_an_agent(agent: dict[str, Any], message: str) -> None:
    agents = [{"name": "a", "model": "demo"}, {"name": "b", "model": "demo", **agent}]
    assert message in problems(base(agents=agents))


def test_every_problem_is_named() -> None:
    text = problems(base(zzz=1, agents=[{"name": "a", "model": "x"}, {"nam": "b"}]))
    for path in ("zzz:", "agents[0].model:", "agents[1].nam:", "agents[1].name:"):
        assert path in text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such file" in problems(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("agents: [")
    assert "not valid YAML" in problems(broken)
    broken.write_text("- a")
    assert "expected a mapping" in problems(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    assert "broken.yaml" in problems(broken)


def test_engine_arguments_of_an_agent_go_over_those_of_its_model() -> None:
    config = load_config(
        base(
            models={"demo": {"source": "demo", "engine_kwargs": {"max_model_len": 1, "seed": 2}}},
            agents=[{"name": "a", "model": "demo", "engine_kwargs": {"seed": 3}}],
        )
    )
    kwargs = config.engine_kwargs(config.agents[0])
    assert kwargs == {"max_model_len": 1, "seed": 3, "kv_cache_memory_bytes": 512 * 2**20}


def test_gpu_engines_keep_vllms_cache_size() -> None:
    config = load_config(base(agents=[{"name": "a", "model": "demo", "num_gpus": 1}]))
    assert "kv_cache_memory_bytes" not in config.engine_kwargs(config.agents[0])


def test_agents_and_ingress_on_chosen_nodes() -> None:
    agents = [{"name": "a", "model": "demo", "node": "gpu-pool_1.x"}]
    config = load_config(base(agents=agents, http={"node": "front"}))
    assert (config.agents[0].node, config.http.node) == ("gpu-pool_1.x", "front")
    assert load_config(base()).agents[0].node is None


def test_who_relays() -> None:
    own = {"engine_kwargs": {"kv_transfer_config": {"kv_connector": "ExampleConnector"}}}
    agents = [
        {"name": "a", "model": "demo"},
        {"name": "b", "model": "demo", "relay": False},
        {"name": "c", "model": "demo", **own},
    ]
    config = load_config(base(agents=agents))
    assert [config.relays(agent) for agent in config.agents] == [True, False, False]
    off = load_config(base(agents=agents, relay={"enabled": False}))
    assert not any(off.relays(agent) for agent in off.agents)


def test_the_similarity_policy_with_its_model() -> None:
    relay = {"policy": "similarity:0.85,0.90", "embedding_model": "minilm"}
    assert load_config(base(relay=relay)).relay.settings("a").policy == relay["policy"]


@pytest.mark.parametrize(
    ("written", "num_bytes"), [(0, 0), ("0", 0), ("1GiB", 2**30), (4096, 4096)]
)
def test_encoded_blocks_may_have_no_room(written: object, num_bytes: int) -> None:
    config = load_config(base(relay={"encoded_bytes": written}))
    assert config.relay.settings("a").encoded_bytes == num_bytes


@pytest.mark.parametrize(("written", "num_bytes"), [(0, 0), ("0", 0), ("1MiB", 2**20)])
def test_the_decision_log_may_be_off(written: object, num_bytes: int) -> None:
    config = load_config(base(telemetry={"decisions": {"max_bytes": written}}))
    assert config.telemetry.decisions.max_bytes == num_bytes


def test_an_experiment_reaches_the_engines() -> None:
    relay = load_config(base(relay={"policy": "cost", "switchback_s": 120})).relay
    assert [relay.settings(agent).switchback_s for agent in "ab"] == [120.0, 120.0]


def test_what_is_cheaper_is_done_unless_a_rule_is_named() -> None:
    assert load_config(base()).relay.settings("a").policy == "cost"


def test_relay_settings() -> None:
    config = load_config(base(relay={"policy": "min_tokens:5", "capacity_bytes": "1GiB"}))
    settings = config.relay.settings("a")
    assert settings.encoded_bytes == 0
    assert (settings.policy, settings.capacity_bytes, settings.agent) == (
        "min_tokens:5",
        2**30,
        "a",
    )
    assert settings.store is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_operator_permission_may_be_open_at_a_loopback_address(host: str) -> None:
    assert load_config(base(operator={"open": True}, http={"host": host})).operator.open


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.x", ""])
def test_operator_permission_is_open_nowhere_else(host: str) -> None:
    text = problems(base(operator={"open": True}, http={"host": host}))
    assert "operator.open: only where http.host is a loopback address" in text


def test_no_error_shows_a_secret() -> None:
    secret = "hunter2"
    for operator in ({"token_sha256": secret}, {"token": secret}, {"open": secret}):
        assert secret not in problems(base(operator=operator))
    for change in ({"api_key_sha256": secret}, {"api_key": secret}):
        assert secret not in problems(base(tenants={"api_keys": [{**KEY, **change}]}))


def test_routing() -> None:
    assert load_config(base()).relay.routing == "named"
    assert load_config(base(relay={"routing": "owner_affinity"})).relay.routing == "owner_affinity"
    assert "relay.routing: " in problems(base(relay={"routing": "nearest"}))


def test_prediction() -> None:
    assert load_config(base()).relay.prediction == "none"
    assert load_config(base(relay={"prediction": "observed"})).relay.prediction == "observed"
    assert "relay.prediction: " in problems(base(relay={"prediction": "guessed"}))
    both = {"prediction": "declared", "routing": "owner_affinity"}
    assert "relay: prediction brings KV to the agent" in problems(base(relay=both))
