"""No exception leaves a hook: it is caught, counted, and the request does without relay.

A raise in a scheduler hook would fail that request and the next one, a raise in a worker
hook would end the engine. Faults that keep coming open a breaker, which turns relay off
for a while instead of paying for the same fault at every request.
"""

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
_RECENT_STEPS = 500
_FINEST_S, _PER_OCTAVE, _BUCKETS = 1e-6, 10, 256


class Breaker:
    """Open for `rest_s` after `limit` faults within `window_s`."""

    def __init__(
        self,
        limit: int = 5,
        window_s: float = 60.0,
        rest_s: float = 60.0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = 0
        self._limit, self._window_s, self._rest_s = limit, window_s, rest_s
        self._clock_s = clock_s
        self._recent: deque[float] = deque(maxlen=limit)
        self._open_until_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether relay rests."""
        return self._clock_s() < self._open_until_s

    def record(self) -> None:
        """Count a fault."""
        now_s = self._clock_s()
        self.faults += 1
        self._recent.append(now_s)
        if len(self._recent) == self._limit and now_s - self._recent[0] <= self._window_s:
            logger.error(
                "%d faults in %.0f s: relay rests for %.0f s",
                self._limit,
                self._window_s,
                self._rest_s,
            )
            self._open_until_s = now_s + self._rest_s
            self._recent.clear()


class StepCost:
    """What hooks take: CPU time of their thread in all, and of the recent steps the p99.

    Beside it the worst step by the clock. That one has in it whatever else had the core meanwhile:
    where engines share cores a hook of 0.03 ms shows 5 ms now and then (measured).

    Recent steps are counted by tenths of an octave: to sort them costs as much as a hook.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self.worst_step_s = 0.0
        self._step_s = self._step_wall_s = 0.0
        self._recent: deque[int] = deque()
        self._counts = [0] * _BUCKETS

    def add(self, cpu_s: float, wall_s: float) -> None:
        """Count what a hook has taken inside the step under way."""
        self.total_s += cpu_s
        self._step_s += cpu_s
        self._step_wall_s += wall_s

    def end_step(self) -> None:
        """Close the step."""
        self.worst_step_s = max(self.worst_step_s, self._step_wall_s)
        bucket = _bucket(self._step_s)
        self._recent.append(bucket)
        self._counts[bucket] += 1
        if len(self._recent) > _RECENT_STEPS:
            self._counts[self._recent.popleft()] -= 1
        self._step_s = self._step_wall_s = 0.0

    @property
    def p99_step_s(self) -> float:
        """99th percentile over the last 500 steps, up to 7 % too high; 0 before the first."""
        count = len(self._recent)
        above = max(1, count - int(0.99 * (count - 1)))
        for bucket in range(_BUCKETS - 1, -1, -1):
            above -= self._counts[bucket]
            if above <= 0:
                return float(_FINEST_S * 2 ** (bucket / _PER_OCTAVE))
        return 0.0


def _bucket(seconds: float) -> int:
    """The first whose end is not below these seconds."""
    if seconds <= _FINEST_S:
        return 0
    return min(_BUCKETS - 1, math.ceil(_PER_OCTAVE * math.log2(seconds / _FINEST_S)))


def guarded(fallback: Callable[[], Any], timed: bool = True) -> Callable[[F], F]:
    """Decorator of a half's hook: on any exception answer `fallback()`.

    `timed` is False for a hook that may wait on purpose and counts its own time.

    The half has `breaker` and `cost`; the first argument that has a `request_id`, if any,
    names the request that is handed to the half's `give_up`.
    """

    def decorate(hook: F) -> F:
        @functools.wraps(hook)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            start_s, start_cpu_s = time.perf_counter(), time.thread_time()
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                logger.exception("relay fault in %s", hook.__name__)
                self.breaker.record()
                request_id = getattr(args[0], "request_id", None) if args else None
                if request_id is not None:
                    self.give_up(request_id)
                return fallback()
            finally:
                if timed:
                    cpu_s = time.thread_time() - start_cpu_s
                    self.cost.add(cpu_s, time.perf_counter() - start_s)

        return wrapper  # type: ignore[return-value]

    return decorate
