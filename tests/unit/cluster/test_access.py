"""Who is told from a request's headers, and that nothing else makes anybody more."""

import hashlib
import logging
from typing import Any

import pytest
from starlette.datastructures import Headers

from kvrelay.cluster.access import OPERATOR_HEADER, Access, make_access
from kvrelay.cluster.config import load_config
from kvrelay.cluster.errors import ConfigError

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
