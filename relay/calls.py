"""Something that another thread does, and what comes of it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """Called in the other thread. Once nobody waits for it, it is not begun any more.

    What it was to do may be wrong by then: slots would be reserved that nobody gives back.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._future: Future[T] = Future()

    def __call__(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self._future.set_result(self._function())
        except BaseException as error:
            self._future.set_exception(error)

    def wait(self, timeout_s: float, who: str) -> T:
        """What it returned, or raises what it raised.

        Raises:
            TimeoutError: `who` did not get to it in time.
        """
        try:
            return self._future.result(timeout_s)
        except TimeoutError:
            if self._future.cancel():
                raise TimeoutError(f"{who} did not answer in {timeout_s} s") from None
        return self._future.result(timeout_s)  # it has been begun
