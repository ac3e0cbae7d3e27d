"""What an estimate of savings needs to know of one request, read from its decision record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvrelay.policies.assignment import Switchback
from kvrelay.policies.decision import Arm
from kvrelay.policies.strata import Stratum, stratum


@dataclass(frozen=True, slots=True)
class Observation:
    """One request whose arm was drawn, and what came of it.

    Attributes:
        time_s: when it was decided.
        session: requests that share a draw, and may have more in common.
        arm: what was decided, whatever befell a load afterwards.
        propensity: probability of that arm, below 1.
        preferred: what the policy would have chosen; None if the record does not tell.
        first_token_s: time to the first token.
        relay_s, recompute_s: the policy's predictions of it for either arm, made before.
        stratum: what kind of request it is.
        pair: of blocks of the whole cluster, in which it got its arm; None: its session did.
    """

    time_s: float
    session: str
    arm: Arm
    propensity: float
    preferred: Arm | None
    first_token_s: float
    relay_s: float | None
    recompute_s: float | None
    stratum: Stratum
    pair: int | None = None


def observation(record: Mapping[str, Any]) -> Observation | None:
    """Read a decision record; None if its arm was not drawn or no first token came.

    Reads `time_s`, `session_id` (else `request_id`), `first_token_s`, `prompt_tokens`,
    `shared_prefix_fraction`, `found_place` (else `any`), and
    of `decision` `arm`, `propensity`, `relay_s`, `recompute_s`, `switchback_pair` and `preferred`.
    Without `preferred` the policy is taken to have wanted the likelier arm.

    Raises:
        ValueError: a field is missing or impossible; the message names it.
    """
    try:
        decision = record["decision"]
        propensity = float(decision["propensity"])
        if propensity == 1.0 or record["first_token_s"] is None:
            return None
        if not 0.0 < propensity < 1.0:
            raise ValueError(f"a decision record with propensity = {propensity}")
        arm = Arm(decision["arm"])
        return Observation(
            time_s=_number(record, "time_s"),
            session=str(record.get("session_id") or record["request_id"]),
            arm=arm,
            propensity=propensity,
            preferred=_preferred(decision.get("preferred"), arm, propensity),
            first_token_s=_number(record, "first_token_s"),
            relay_s=_prediction(decision, "relay_s"),
            recompute_s=_prediction(decision, "recompute_s"),
            stratum=stratum(
                str(record.get("found_place") or "any"),
                int(_number(record, "prompt_tokens")),
                _number(record, "shared_prefix_fraction"),
            ),
            pair=decision.get("switchback_pair"),
        )
    except KeyError as error:
        raise ValueError(f"a decision record without {error}") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a decision record of another form: {error}") from None


def in_block(seen: Observation, plan: Switchback) -> Observation | None:
    """The same request as one of a block of the whole cluster; pairs of blocks are independent.

    None if it came during a burn-in, or did not get its arm by this plan.
    """
    if plan.counted_arm(seen.time_s) is not seen.arm or plan.pair(seen.time_s) != seen.pair:
        return None
    return replace(seen, session=f"pair {seen.pair}", propensity=0.5)


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = float(fields[name])
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"a decision record with {name} = {value}")
    return value


def _prediction(decision: Mapping[str, Any], name: str) -> float | None:
    return None if decision.get(name) is None else _number(decision, name)


def _preferred(logged: str | None, arm: Arm, propensity: float) -> Arm | None:
    if logged is not None:
        return Arm(logged)
    if propensity == 0.5:
        return None
    other = Arm.RECOMPUTE if arm is Arm.RELAY else Arm.RELAY
    return arm if propensity > 0.5 else other
