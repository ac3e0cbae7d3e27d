"""What a request may say about relay."""

from typing import Any

import pytest

from kvrelay.agents.control import parse_mode, parse_next
from kvrelay.agents.errors import RequestError
from kvrelay.policies.modes import Mode


@pytest.mark.parametrize(
    ("params", "mode"),
    [
        (None, Mode.AUTO),
        ({}, Mode.AUTO),
        ({"do_remote_prefill": True}, Mode.AUTO),
        ({"kvrelay": {}}, Mode.AUTO),
        ({"kvrelay": {"mode": "auto"}}, Mode.AUTO),
        ({"kvrelay": {"mode": "recompute"}}, Mode.RECOMPUTE),
        ({"kvrelay": {"next": "b"}}, Mode.AUTO),
    ],
)
def test_accepted(params: dict[str, Any] | None, mode: Mode) -> None:
    assert parse_mode(params, is_operator=False) is mode


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "kv_transfer_params.kvrelay"),
        ("auto", "kv_transfer_params.kvrelay"),
        (["mode"], "kv_transfer_params.kvrelay"),
        ({"mod": "auto"}, "kv_transfer_params.kvrelay.mod"),
        ({"mode": "fast"}, "kv_transfer_params.kvrelay.mode"),
        ({"mode": None}, "kv_transfer_params.kvrelay.mode"),
        ({"mode": 1}, "kv_transfer_params.kvrelay.mode"),
        ({"mode": ["auto"]}, "kv_transfer_params.kvrelay.mode"),
    ],
)
def test_malformed_names_the_field(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_mode({"kvrelay": value}, is_operator=True)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("mode", ["relay", "lookup_only", "pull_and_discard"])
def test_other_modes_need_permission(mode: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_mode({"kvrelay": {"mode": mode}}, is_operator=False)
    assert caught.value.status == 403
    assert caught.value.param == "kv_transfer_params.kvrelay.mode"
    assert parse_mode({"kvrelay": {"mode": mode}}, is_operator=True) == mode


def test_nobody_is_told_of_modes_that_are_not_theirs() -> None:
    for is_operator in (False, True):
        with pytest.raises(RequestError) as caught:
            parse_mode({"kvrelay": {"mode": "fast"}}, is_operator)
        assert ("lookup_only" in caught.value.message) == is_operator


def test_who_comes_next() -> None:
    agents = {"a": 1, "b": 2}
    for params in (None, {}, {"kvrelay": {}}, {"kvrelay": {"mode": "auto", "next": None}}):
        assert parse_next(params, agents) is None
    assert parse_next({"kvrelay": {"next": "b"}}, agents) == "b"
    for name in ("c", 1, ["b"], {}):
        with pytest.raises(RequestError, match="must be one of a, b") as caught:
            parse_next({"kvrelay": {"next": name}}, agents)
        assert caught.value.param == "kv_transfer_params.kvrelay.next"
