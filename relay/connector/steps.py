"""How long the engine's steps take, and when first tokens come, seen from the scheduler half.

vLLM calls the connector twice for every step: when it has been scheduled (`begin`), and when its
outputs have been taken in (`end`), in the same order. Scheduling asynchronously it begins the next
step while one runs; that one has the engine to itself only once the one before has ended. So

    seconds of a step = its end - the later of its begin and the end before

which is what the engine spent on it, whatever else its requests have waited for.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvrelay.policies import Work
from kvrelay.policies.prefill import NO_WORK
from kvrelay.relay.connector.request import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

# More cannot be under way; if so, begins and ends do not belong together any more.
_MAX_UNDER_WAY = 16


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the engine.

    Attributes:
        work: what it computes, decoded tokens included.
        prompts: requests that have not brought a token before it.
        is_plain: it computes tokens and nothing else (such as images), and `work` is all of it.
        seconds: what it has taken; 0 while it runs.
    """

    work: Work
    prompts: tuple[str, ...]
    is_plain: bool
    seconds: float = 0.0


class Steps:
    """The steps under way."""

    def __init__(
        self, tracked: Mapping[str, Tracked], clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """`tracked`: the live requests, at any time."""
        self.computed = 0  # steps with tokens that have ended
        self._tracked = tracked
        self._clock_s = clock_s
        self._under_way: deque[tuple[float, Step]] = deque()
        self._ended_s = float("-inf")

    def begin(self, output: "SchedulerOutput") -> None:
        """A step has been scheduled."""
        if len(self._under_way) >= _MAX_UNDER_WAY:
            self._under_way.clear()
        cached = output.scheduled_cached_reqs
        there = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        there.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        work, prompts = NO_WORK, []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            work = work.plus(Work.of(there.get(request_id, 0), num_tokens))
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.first_token_s is None:
                prompts.append(request_id)
        known = output.num_scheduled_tokens.keys() <= there.keys()
        is_plain = work.tokens > 0 and known and not output.scheduled_encoder_inputs
        self._under_way.append((self._clock_s(), Step(work, tuple(prompts), is_plain)))

    def end(self) -> Step | None:
        """The step that began first has ended, and its requests have what it has brought.

        Returns:
            None if none is known.
        """
        if not self._under_way:
            return None
        begun_s, step = self._under_way.popleft()
        now_s = self._clock_s()
        seconds = now_s - max(begun_s, self._ended_s)
        self._ended_s = now_s
        self.computed += step.work.tokens > 0
        for request_id in step.prompts:
            if (tracked := self._tracked.get(request_id)) is not None:
                tracked.see_output(now_s)
        return replace(step, seconds=seconds)

    @property
    def work(self) -> Work:
        """What the steps under way compute."""
        work = NO_WORK
        for _, step in self._under_way:
            work = work.plus(step.work)
        return work
