"""What one thread has another one do, also where it does not wait any longer."""

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from kvrelay.relay.calls import Call
from kvrelay.relay.server import StoreServer
from kvrelay.relay.store import StoreCore


@pytest.fixture
def server() -> Iterator[StoreServer]:
    address = f"kvrelay-test-{uuid.uuid4().hex}"
    server = StoreServer(StoreCore(1 << 20, time.monotonic_ns), address)
    yield server
    server.close()


def test_an_answer_and_an_error_come_back() -> None:
    call = Call(lambda: 7)
    call()
    assert call.wait(1.0, "it") == 7
    broken = Call(lambda: 1 // 0)
    broken()
    with pytest.raises(ZeroDivisionError):
        broken.wait(1.0, "it")


def test_one_that_nobody_waits_for_is_not_begun() -> None:
    done: list[int] = []
    call = Call(lambda: done.append(1))
    with pytest.raises(TimeoutError, match="it did not answer"):
        call.wait(0.01, "it")
    call()
    assert done == []


def test_one_that_has_been_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go_on.wait(5)
        return 7

    call = Call(work)
    cancel = call._future.cancel
    monkeypatch.setattr(call._future, "cancel", lambda: (go_on.set(), cancel())[1])
    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(5)
    assert call.wait(0.5, "it") == 7
    thread.join()


def test_a_store_that_stood_still_does_nothing_for_those_who_left(server: StoreServer) -> None:
    """Slots would be reserved that nobody knows of."""
    go_on = threading.Event()
    stuck = threading.Thread(target=lambda: server.call(lambda core: go_on.wait(10)))
    stuck.start()
    done: list[int] = []
    with pytest.raises(TimeoutError, match="store's thread"):
        server.call(lambda core: done.append(1), timeout_s=0.05)
    go_on.set()
    stuck.join()
    assert server.call(lambda core: len(done)) == 0
