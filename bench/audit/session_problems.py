"""Sessions that a plan asks for and that cannot be, each with its path in the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvrelay.bench.audit.material import FRACTIONS
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape, longest_prompt
from kvrelay.bench.engines import MAX_MODEL_TOKENS

if TYPE_CHECKING:
    from kvrelay.bench.audit.plan import ArmPlan, Plan


def session_problems(plan: Plan) -> Iterator[str]:
    """Sessions that differ between arms of a stratum, have no such prompts, or grow too long.

    Args:
        plan: whose arms stand in strata that it has.
    """
    known: dict[Stratum, tuple[int, Shape, int]] = {}
    for i, arm in enumerate(plan.arms):
        if "sessions" not in arm.designs:
            continue
        for stratum in plan.strata_of(arm):
            first, shape, turns = known.setdefault(stratum, (i, arm.session_shape, arm.turns))
            problem = _problem(plan, arm, stratum)
            if (shape, turns) != (arm.session_shape, arm.turns):
                problem = (
                    f"session_shape: {arm.session_shape} of {arm.turns} turns in {stratum.name}, "
                    f"where arms[{first}] has {shape} of {turns}; arms are compared in sessions "
                    "of one kind"
                )
            if problem is not None:
                yield f"arms[{i}].{problem}"
                break


def own_share(similarity: str) -> float:
    """The most that a turn's prompt has of its own, over the length that the stratum names."""
    return 1.0 - min(FRACTIONS[similarity])


def _problem(plan: Plan, arm: ArmPlan, stratum: Stratum) -> str | None:
    shape, turns = arm.session_shape, arm.turns
    if shape.carries and turns > HAND_OVER and stratum.similarity != "high":
        return (
            f"session_shape: in a {shape} prompts go on from A's, which is similarity high, not "
            f"{stratum.name}; give {Shape.SHARED_DOCUMENT}, or {HAND_OVER} turns"
        )
    longest = longest_prompt(
        shape,
        turns,
        stratum.tokens,
        own_tokens=round(stratum.tokens * own_share(stratum.similarity)),
        first_tokens=plan.message_tokens,
        answer_tokens=plan.output_tokens,
    )
    if longest > MAX_MODEL_TOKENS:
        return (
            f"turns: {turns} turns of {shape} come to {longest} tokens in {stratum.name}, and an "
            f"engine's context has {MAX_MODEL_TOKENS}; give fewer turns or shorter prompts"
        )
    return None
