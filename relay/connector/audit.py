"""Lots for the policy `cost`, and what they tell: where relay does not pay, and what it saves.

    request -> what the policy prefers -> the lot, its stratum's stage, or the cluster's block
            -> decision -> record -> estimates -> the stratum's stage, metrics

All of it starts anew with the engine. The estimate promises something from one change of the world
to the next, and a restart is one: predictions are unsure again, so arms are drawn otherwise. To go
on where it was, all open sessions would have to be kept as well. The price is that a stratum that
was off is on until it is seen to lose once more; what was seen before is still in the log.

Records are taken in on the scheduler thread, once per request: that takes tens of microseconds, and
a thread of its own would take them from the same interpreter.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from kvrelay.policies import CostPolicy, Decision, RelayPolicy, RelayView
from kvrelay.policies.assignment import Switchback
from kvrelay.policies.strata_switch import Stage, Standing, StrataSwitch, SwitchSettings
from kvrelay.relay.settings import RelaySettings

logger = logging.getLogger(__name__)
# By stratum: the saving and its bounds in seconds per request, None without an interval; requests;
# whether relay is off, None of all strata together. Plain types, for they go to another process.
Savings = dict[str, list[float | bool | None]]


class Audit:
    """Decides as a policy prefers, but for the lot, and learns from what came of it."""

    def __init__(self, policy: RelayPolicy, settings: RelaySettings) -> None:
        """Only `cost` leaves anything to a lot; other policies decide alone."""
        self._policy = policy
        self._switch: StrataSwitch | None = None
        self._stages: dict[str, Stage | None] = {}
        self._changed: Savings = {}
        if isinstance(policy, CostPolicy):
            block_s = settings.switchback_s
            self._switch = StrataSwitch(
                # Half of the sessions for which the lot decides get what is preferred anyhow.
                SwitchSettings(epsilon=2 * settings.exploration),
                Switchback.of_cluster(block_s) if block_s else None,
            )

    def decide(self, view: RelayView, time_s: float) -> Decision:
        """The decision on a request that arrived at `time_s`, in unix seconds."""
        if self._switch is None or not isinstance(self._policy, CostPolicy):
            return self._policy.decide(view)
        return self._switch.decide(view, self._policy.prefer(view), view.draw, time_s)

    def observe(self, record: Mapping[str, Any]) -> None:
        """A request is done, see `RelayRecord.to_dict`. A fault ends the audit, nothing else."""
        if self._switch is None:
            return
        try:
            for label, standing in self._switch.observe(record).items():
                self._changed[label] = _plain(standing)
                if standing.stage is not self._stages.setdefault(label, standing.stage):
                    self._stages[label] = standing.stage
                    logger.warning("relay of requests of kind %s is now %s", label, standing.stage)
        except Exception:
            logger.exception("what relay saves is not estimated any more, and all strata are on")
            self._switch = None

    def take(self) -> Savings:
        """What may have changed since it was asked last."""
        changed, self._changed = self._changed, {}
        return changed


def _plain(standing: Standing) -> list[float | bool | None]:
    estimate, stage = standing.estimate, standing.stage
    is_off = None if stage is None else stage is not Stage.ON
    seconds: list[float | None] = [estimate.saving_s, estimate.lower_s, estimate.upper_s]
    if not math.isfinite(estimate.lower_s):  # then the estimate alone would mislead
        seconds = [None, None, None]
    return [*seconds, estimate.requests, is_off]
