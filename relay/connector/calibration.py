"""Measures what steps and loads of this engine take, for the policy `cost`.

Steps are observed one by one (steps.py) if they compute a prompt: those that only decode are bound
by other things. That needs no request to be alone in the engine, so it goes on under load. With
its very first prompt an engine does much that it does once, so that one tells nothing. Prompts of
the agent's own come before the first request (agents/probe.py) and are observed like any others.

Loads are observed from the decision to their report if the engine computed nothing meanwhile;
else, since a report waits for the step that is running, by the worker's own clock, from the job's
arrival to the last block verified. Blocks that another request brought in meanwhile say nothing,
so only what the load itself has brought counts. One that ended at its deadline, or because its
source failed, is taken to go on at its pace.
"""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kvrelay.policies import CostPolicy, Costs, Reason, RelayPolicy
from kvrelay.policies.costs import Way
from kvrelay.relay.connector.metadata import LoadOutcome
from kvrelay.relay.connector.request import Tracked
from kvrelay.relay.connector.state_file import StateFile
from kvrelay.relay.connector.steps import Step
from kvrelay.relay.learnt import Memory, SeenLoad, SeenStep, state_path

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., None])
_TOO_SLOW = (Reason.LOAD_DEADLINE, Reason.TRANSFER_FAILED)


def _harmless(method: F) -> F:
    """A fault ends the calibration, and nothing else."""

    @functools.wraps(method)
    def wrapper(self: "Calibration", *args: Any, **kwargs: Any) -> None:
        if self.is_off:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            logger.exception("costs are not measured any more")
            self.is_off = True

    return wrapper  # type: ignore[return-value]


class Calibration:
    """Keeps `Costs` up to date. No exception leaves it."""

    def __init__(self, costs: Costs, file: StateFile, agent: str = "") -> None:
        """Begins with what the file holds, if it is of use.

        Args:
            agent: whose engine this is, for who reads the file.
        """
        self.is_off = False
        self._is_warm = False
        self._costs = costs
        self._recent = Memory(agent)
        self._file = file
        self._is_kept = True
        self._restore()

    @_harmless
    def step_ended(self, step: Step | None) -> None:
        """A step of the engine is over, if it is known which."""
        if step is not None and step.is_plain and step.prompts and step.seconds > 0:
            if self._is_warm:
                self._observe_step(step)
            self._is_warm = True
        if not self._is_kept and self._file.is_due:
            self._keep()

    @_harmless
    def load_ended(self, tracked: Tracked, outcome: LoadOutcome, steps: int) -> None:
        """A request's load has been reported; so many steps have been computed until now."""
        candidate = tracked.candidate
        seconds = outcome.wait_s + outcome.copy_s
        if steps == tracked.steps_before:
            seconds = tracked.load_s
        if candidate is None or seconds <= 0:
            return
        fetched, ahead = outcome.fetched, candidate.bytes_ahead
        planned = candidate.place_bytes
        if outcome.failure in _TOO_SLOW:
            loaded = max(0, outcome.num_bytes - (candidate.num_bytes - planned))
            self._costs.observe_unfinished_load((candidate.place,), planned, ahead, loaded, seconds)
        elif outcome.failure is None and not candidate.absent_bytes:
            self._observe_load((candidate.place,), planned, ahead, seconds)
        elif outcome.failure is None and fetched is not None:
            brought = fetched.num_bytes + fetched.decoded_bytes
            is_remote = candidate.place == "nodes"
            if not brought or is_remote != bool(fetched.num_bytes):
                return
            way: Way = (candidate.place,)
            if is_remote and len(fetched.sources) == 1:
                way += (*fetched.sources, fetched.transport, fetched.path, fetched.codec)
            self._observe_load(way, brought, ahead, seconds)
        self._is_kept = False

    def close(self) -> None:
        """Keep what was learnt."""
        if not self._is_kept:
            self._keep()
        self._file.close()

    def _observe_step(self, step: Step) -> None:
        predicted_s = self._costs.prefill(step.work).p50_s
        self._costs.observe_step(step.work, step.seconds)
        self._recent.add_step(SeenStep(time.time(), *step.work, step.seconds, predicted_s))
        self._is_kept = False

    def _observe_load(self, way: Way, num_bytes: int, ahead: int, seconds: float) -> None:
        predicted_s = self._costs.load(way, num_bytes, ahead).p50_s
        self._costs.observe_load(way, num_bytes, ahead, seconds)
        self._recent.add_load(way, SeenLoad(time.time(), num_bytes, ahead, seconds, predicted_s))

    @_harmless
    def _restore(self) -> None:
        state = self._file.read()
        try:
            if state is not None:
                self._costs.restore(state)
                self._recent.restore(state.get("recent", {}))
        except ValueError as error:
            logger.warning("%s is of no use and is written anew: %s", self._file.path, error)

    @_harmless
    def _keep(self) -> None:
        self._file.write({**self._costs.to_dict(), "recent": self._recent.to_dict()})
        self._is_kept = True


def calibration_of(policy: RelayPolicy, fingerprint: bytes, agent: str = "") -> Calibration | None:
    """What keeps a policy's costs up to date, for this model and machine; None if it has none."""
    if not isinstance(policy, CostPolicy):
        return None
    return Calibration(policy.costs, StateFile(state_path(fingerprint)), agent)
