"""What the connector says of its own cost, and what it comes to beside the requests' times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The gate of CI: what noise cannot hide.
MAX_CPU_SHARE = 0.01
MAX_STEP_S = 0.002


@dataclass(frozen=True, slots=True)
class Overhead:
    """An engine's cost of relay between two records.

    Attributes:
        scheduler_s: CPU time in the scheduler half's hooks, which never wait.
        worker_s: CPU time in the worker half's hooks, in steps that computed tokens: nor do these.
        copy_cpu_s: CPU time of the copy threads.
        scheduler_step_s: 99th percentile of the scheduler half's CPU time inside a step, over the
            last 500 steps, or all time in hooks meanwhile if that is less.
        worker_step_s: the same of the worker half.
        saved_blocks: blocks published.
        dropped_blocks: blocks whose saving was given up.
        ttft_s: sum of the TTFTs of the requests in between.
    """

    scheduler_s: float
    worker_s: float
    copy_cpu_s: float
    scheduler_step_s: float
    worker_step_s: float
    saved_blocks: int
    dropped_blocks: int
    ttft_s: float

    @property
    def cpu_share(self) -> float:
        """CPU seconds of hooks and copy threads per second of TTFT."""
        return (self.scheduler_s + self.worker_s + self.copy_cpu_s) / self.ttft_s

    @property
    def p99_step_s(self) -> float:
        """99th percentile of the CPU time that a step spends in hooks, from above.

        The halves' percentiles need not come from the same step: their sum bounds it.
        """
        return self.scheduler_step_s + self.worker_step_s

    def passes(self) -> bool:
        """Whether both aims are met."""
        return self.cpu_share <= MAX_CPU_SHARE and self.p99_step_s <= MAX_STEP_S

    def to_dict(self) -> dict[str, Any]:
        """The form in which it is written."""
        return {
            "scheduler_s": round(self.scheduler_s, 6),
            "worker_s": round(self.worker_s, 6),
            "copy_cpu_s": round(self.copy_cpu_s, 6),
            "ttft_s": round(self.ttft_s, 6),
            "cpu_share_ratio": round(self.cpu_share, 6),
            "scheduler_p99_step_s": round(self.scheduler_step_s, 6),
            "worker_p99_step_s": round(self.worker_step_s, 6),
            "p99_step_s": round(self.p99_step_s, 6),
            "saved_blocks": self.saved_blocks,
            "dropped_blocks": self.dropped_blocks,
            "passes": self.passes(),
        }


def between(before: Mapping[str, Any], after: Mapping[str, Any], ttft_s: float) -> Overhead:
    """The cost from one record to a later one of the same engine.

    Args:
        before: an answer's record (`kv_transfer_params.kvrelay`).
        after: a later one; its own request is in the cost, its TTFT need not be.
        ttft_s: sum of the TTFTs of the requests in between.

    Raises:
        ValueError: no time has passed.
    """
    if ttft_s <= 0:
        raise ValueError(f"TTFTs add up to {ttft_s}, must be positive")
    old, new = before["overhead"], after["overhead"]

    def grown(name: str) -> float:
        return float(new[name] - old[name])

    return Overhead(
        scheduler_s=grown("scheduler_s"),
        worker_s=grown("worker_s"),
        copy_cpu_s=grown("copy_cpu_s"),
        scheduler_step_s=min(float(new["scheduler_p99_step_s"]), grown("scheduler_s")),
        worker_step_s=min(float(new["worker_p99_step_s"]), grown("worker_s")),
        saved_blocks=int(grown("saved_blocks")),
        dropped_blocks=int(grown("dropped_blocks")),
        ttft_s=ttft_s,
    )
