"""What a node's store finds when it looks for its transports."""

import logging

import pytest

from kvrelay.relay import transports
from kvrelay.relay.transports.base import TransferError, Transport
from kvrelay.relay.transports.memory import MemoryTransport


class Broken(MemoryTransport):
    """Can be made, but does not work on this machine."""

    def warm_up(self) -> None:
        raise TransferError("no such device")


def missing() -> Transport:
    raise ImportError("a library is not installed")


def test_what_does_not_work_here_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    makers = {"broken": Broken, "missing": missing, "memory": MemoryTransport}
    monkeypatch.setattr(transports, "_MAKERS", makers)
    with caplog.at_level(logging.WARNING):
        made = transports.make_transports()
    assert list(made) == ["memory"]
    assert [record.getMessage() for record in caplog.records] == [
        "no transport 'broken' on this node: no such device",
        "no transport 'missing' on this node: a library is not installed",
    ]
    made["memory"].close()
