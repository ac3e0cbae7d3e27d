"""Where the parties of a transfer live in a test: here, in processes, in Ray actors."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Protocol

from transfer_peer import Peer

CHILD = Path(__file__).with_name("transfer_peer.py")
ANSWER_TIMEOUT_S = 60.0


class Host(Protocol):
    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the peer."""

    def close(self) -> None:
        """End it."""


class LocalHost:
    """A peer in this process."""

    def __init__(self, kind: str, region_bytes: int) -> None:
        self.peer = Peer(kind, region_bytes)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.peer, name)(*args, **kwargs)

    def close(self) -> None:
        self.peer.close()


class ProcessHost:
    """A peer in a process of its own, which a test may stop and kill."""

    def __init__(
        self,
        kind: str,
        region_bytes: int,
        env: Mapping[str, str | None],
        prefix: Sequence[str] = (),
    ) -> None:
        self._connection, theirs = Pipe()
        child_env = {**os.environ, **env}
        program = [sys.executable, str(CHILD), str(theirs.fileno()), kind, str(region_bytes)]
        self.process = subprocess.Popen(
            [*prefix, *program],
            pass_fds=[theirs.fileno()],
            env={name: value for name, value in child_env.items() if value is not None},
            start_new_session=True,  # a group, to be stopped and killed with its children
        )
        theirs.close()
        self._answer()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.post(name, *args, **kwargs)
        return self._answer()

    def post(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call without waiting; `answer` gives the result."""
        self._connection.send((name, args, kwargs))

    def answer(self) -> Any:
        return self._answer()

    def _answer(self) -> Any:
        if not self._connection.poll(ANSWER_TIMEOUT_S):
            raise TimeoutError("no answer of the peer")
        state, value = self._connection.recv()
        if state == "error":
            raise value
        return value

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> int:
        """End it in order, if it still lives; its exit status."""
        if self.process.poll() is None:
            self.go_on()
        self._connection.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


class RayHost:
    """A peer in a Ray actor."""

    def __init__(self, kind: str, region_bytes: int) -> None:
        import ray
        import transfer_peer

        ray.cloudpickle.register_pickle_by_value(transfer_peer)  # workers lack this folder
        self._ray = ray
        self.actor = ray.remote(Peer).options(num_cpus=0).remote(kind, region_bytes)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._ray.get(getattr(self.actor, name).remote(*args, **kwargs), timeout=60)

    def kill(self) -> None:
        self._ray.kill(self.actor)

    def close(self) -> None:
        self.kill()
