"""What an analysis takes from the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

# Used where a plan names no margin: as a share of the control's mean.
LATENCY_MARGIN, THROUGHPUT_MARGIN, MEMORY_MARGIN = 0.05, 0.02, 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """How rows are analysed.

    Attributes:
        question: in words.
        seed: of bootstraps, folds and permutations.
        control: what arms are compared with.
        primary, secondary: outcomes; verdicts rest on the first of the primary ones.
        margins: by outcome: of quality in its own unit; of times, throughput and `memory_bytes`
            as a share of the control's mean.
        exclusions: flags of rows that are left out.
        burn_in: share of a switchback block's requests that are left out, by link.
        plan_sha256: of the plan that the data were taken by; empty if there was none.
        plan_changed: whether the plan at hand is another.
    """

    question: str = ""
    seed: int = 0
    control: str = "recompute"
    primary: tuple[str, ...] = ("ttft_s",)
    secondary: tuple[str, ...] = ()
    margins: Mapping[str, float] = field(default_factory=dict)
    exclusions: tuple[str, ...] = ("failed", "warm_up")
    burn_in: Mapping[str, float] = field(default_factory=dict)
    plan_sha256: str = ""
    plan_changed: bool = False

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any], sha256: str, changed: bool) -> Self:
        """Take what is needed from the content of a checked plan."""
        outcomes = plan["outcomes"]
        return cls(
            question=plan["question"],
            seed=plan["seed"],
            control=plan["control"],
            primary=tuple(outcomes["primary"]),
            secondary=tuple(outcomes.get("secondary", ())),
            margins=dict(plan.get("margins", {})),
            exclusions=tuple(plan.get("exclusions", ("failed", "warm_up"))),
            burn_in={
                each["link"]: each["burn_in"]
                for each in plan.get("switchback", ())
                if "burn_in" in each
            },
            plan_sha256=sha256,
            plan_changed=changed,
        )

    def margin(self, outcome: str) -> float | None:
        """The margin of an outcome; None where a quality measure has none."""
        default = {"tokens_per_s": THROUGHPUT_MARGIN, "memory_bytes": MEMORY_MARGIN}
        if outcome.endswith("_s") and outcome != "tokens_per_s":
            return self.margins.get(outcome, LATENCY_MARGIN)
        return self.margins.get(outcome, default.get(outcome))
