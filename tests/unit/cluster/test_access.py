"""Who is told from a request's headers, and that nothing else makes anybody more."""

import hashlib
import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers

from kvrelay.agents.errors import RequestError
from kvrelay.cluster.access import (
    KEY_VARIABLE,
    NO_KEY,
    OPERATOR_HEADER,
    Access,
    client_key,
    make_access,
)
from kvrelay.cluster.config import ClusterConfig, load_config
from kvrelay.cluster.errors import ConfigError, LifecycleError

TOKEN = "correct horse battery staple"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def access(**changes: Any) -> Access:
    content = {"models": {"m": {"source": "demo"}}, "agents": [{"name": "a", "model": "m"}]}
    return make_access(load_config({**content, **changes}))


def headers(*pairs: tuple[str, str]) -> Headers:
    """As they come from a server: bytes, read as Latin-1."""
    return Headers(raw=[(name.lower().encode(), value.encode()) for name, value in pairs])


@pytest.mark.parametrize("token", [TOKEN, "schlüssel ☂"])
def test_the_operator_has_the_token(token: str) -> None:
    ours = access(operator={"token_sha256": sha256(token)})
    assert ours.operator_allowed(headers(("X-Kvrelay-Operator", token)))
    assert ours.operator_allowed(headers(("x-kvrelay-operator", token)))


@pytest.mark.parametrize(
    "sent",
    [
        (),
        (("X-Kvrelay-Operator", ""),),
        (("X-Kvrelay-Operator", TOKEN + " "),),
        (("X-Kvrelay-Operator", TOKEN[:-1]),),
        (("X-Kvrelay-Operator", sha256(TOKEN)),),
        (("X-Kvrelay-Operator", "wrong"), ("X-Kvrelay-Operator", TOKEN)),
        (("X_Kvrelay_Operator", TOKEN),),
        (("Authorization", f"Bearer {TOKEN}"),),
    ],
)
def test_nobody_else_is_the_operator(sent: tuple[tuple[str, str], ...]) -> None:
    assert not access(operator={"token_sha256": sha256(TOKEN)}).operator_allowed(headers(*sent))


def test_without_a_token_nobody_is_the_operator() -> None:
    for value in ("", "None", TOKEN, sha256("")):
        assert not access().operator_allowed(headers((OPERATOR_HEADER, value)))


def test_the_token_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = {"token_env": "KVRELAY_TEST_TOKEN"}
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("KVRELAY_TEST_TOKEN", value)
        with pytest.raises(ConfigError, match=r"operator\.token_env: .* no KVRELAY_TEST_TOKEN"):
            access(operator=operator)
    monkeypatch.setenv("KVRELAY_TEST_TOKEN", TOKEN)
    ours = access(operator=operator)
    assert ours.operator_allowed(headers((OPERATOR_HEADER, TOKEN)))
    assert not ours.operator_allowed(headers((OPERATOR_HEADER, "KVRELAY_TEST_TOKEN")))
    assert TOKEN not in repr(ours)


def test_an_open_door_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not access().operator_allowed(headers())
        assert caplog.text == ""
        assert access(operator={"open": True}).operator_allowed(headers())
    assert "operator.open" in caplog.text


KEYS = {
    "api_keys": [
        {"name": "red", "api_key_sha256": sha256("red key")},
        {"name": "blue", "api_key_sha256": sha256("blue key")},
        {"name": "red", "api_key_sha256": sha256("second red key")},
    ]
}


def bearer(value: str) -> tuple[str, str]:
    return "Authorization", value


def test_without_tenants_everybody_is_one() -> None:
    for sent in ((), (bearer("Bearer none"),), (("X-Tenant", "red"),)):
        assert access().tenant(headers(*sent)) is None


@pytest.mark.parametrize(
    ("value", "tenant"),
    [
        ("Bearer red key", "red"),
        ("bearer  second red key", "red"),
        ("Bearer blue key", "blue"),
    ],
)
def test_a_key_tells_the_tenant(value: str, tenant: str) -> None:
    ours = access(tenants=KEYS)
    assert ours.tenant(headers(bearer(value), ("X-Tenant", "other"))) == tenant
    assert "red" not in repr(ours)


@pytest.mark.parametrize(
    "sent",
    [
        (),
        (bearer(""),),
        (bearer("Bearer"),),
        (bearer("Bearer none"),),
        (bearer("red key"),),
        (bearer("Basic red key"),),
        (bearer(f"Bearer {sha256('red key')}"),),
        (bearer("Bearer red key"), bearer("Bearer blue key")),
        (("X-Tenant", "red"),),
    ],
)
def test_an_unknown_key_is_nobodys(sent: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(RequestError) as caught:
        access(tenants=KEYS).tenant(headers(*sent))
    assert (caught.value.status, caught.value.param) == (401, None)
    assert "red" not in caught.value.message


def test_a_gateway_tells_the_tenant() -> None:
    ours = access(tenants={"trusted_header": "X-Tenant"})
    assert ours.tenant(headers(("x-tenant", " red "), bearer("Bearer none"))) == "red"
    for sent in ((), (("X-Tenant", " "),), (("X-Tenant", "red"), ("X-Tenant", "blue"))):
        with pytest.raises(RequestError, match="x-tenant"):
            ours.tenant(headers(*sent))


def test_tenants_are_no_operators() -> None:
    ours = access(tenants=KEYS, operator={"token_sha256": sha256(TOKEN)})
    sent = headers(bearer("Bearer red key"))
    assert (ours.tenant(sent), ours.operator_allowed(sent)) == ("red", False)


OPEN = {
    "models": {"m": {"source": "demo"}},
    "agents": [{"name": "a", "model": "m"}],
    "operator": {"open": True},
}


@pytest.mark.slow  # imports vLLM
def test_where_others_say_how_serve_listens_nothing_is_open() -> None:
    from kvrelay.cluster.app import build

    with pytest.raises(ConfigError, match=r"operator\.open: only with `kvrelay serve`"):
        build(OPEN)


@pytest.mark.slow  # imports Ray
@pytest.mark.parametrize(("host", "refused"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_joined_ray_that_listens_everywhere_is_not_opened(
    host: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvrelay.cluster import joined

    client = SimpleNamespace(http_config=SimpleNamespace(host=host, port=8000))
    monkeypatch.setattr("ray.nodes", list)
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={}))
    monkeypatch.setattr("ray.serve.context._get_global_client", lambda **_: client)
    expected = pytest.raises(LifecycleError, match=r"operator\.open") if refused else nullcontext()
    with expected:
        joined.enter(load_config(OPEN))


def keyed(tenants: dict[str, Any] | None) -> ClusterConfig:
    content = {"models": {"m": {"source": "demo"}}, "agents": [{"name": "a", "model": "m"}]}
    return load_config(content | ({} if tenants is None else {"tenants": tenants}))


def test_the_key_of_our_own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [{"name": "t", "api_key_sha256": sha256(key)} for key in ("one", "two")]
    monkeypatch.setenv(KEY_VARIABLE, "two")
    assert client_key(keyed({"api_keys": keys})) == "two"
    assert client_key(keyed(None)) == NO_KEY, "nobody is sent a key that is not asked for"


@pytest.mark.parametrize(
    ("key", "tenants", "said"),
    [
        (None, {"api_keys": [{"name": "t", "api_key_sha256": sha256("one")}]}, "is not set"),
        ("other", {"api_keys": [{"name": "t", "api_key_sha256": sha256("one")}]}, "is no key"),
        ("one", {"trusted_header": "X-Tenant"}, "gateway that sets X-Tenant"),
    ],
)
def test_a_client_without_a_key_is_told_what_to_do(
    key: str | None, tenants: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(ConfigError, match=said) as caught:
        client_key(keyed(tenants))
    assert "set it in the environment" in str(caught.value) or "give a config" in str(caught.value)
    assert key is None or f" {key} " not in str(caught.value)
