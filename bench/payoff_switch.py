"""A stratum planted to lose: whether it turns itself off, and comes back when the world changes.

The loop is closed: arms are drawn by the switch, and what came of them is told to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrelay.policies.assignment import Assignment
from kvrelay.policies.base import Candidate, RelayView
from kvrelay.policies.decision import Arm
from kvrelay.policies.strata_switch import Stage, StrataSwitch, SwitchSettings

EPSILON = 0.05
SESSIONS_PER_S = 1.0
RECOMPUTE_S = 0.6
LOSES_S, PAYS_S = 1.2, 0.15
_TOKENS = 1024
_VIEW = RelayView(_TOKENS + 32, 0, (Candidate("nodes", _TOKENS, 1 << 20),))
_GAP_S = 5.0
_SPEED, _NOISE = 0.4, 0.5


@dataclass(frozen=True, slots=True)
class Switched:
    """What became of a stratum.

    Attributes:
        off_sessions: sessions until relay was off; None if it never was.
        lost_share: of requests from then until the change, those that were relayed nevertheless.
        back_s, back_sessions: from the change until relay was on again; None if it never was.
        trials: how often it was tried again.
    """

    off_sessions: int | None
    lost_share: float
    back_s: float | None
    back_sessions: int | None
    trials: int


def run(seed: int, span_s: float, change_s: float, before_s: float, after_s: float) -> Switched:
    """Requests of one stratum that the policy wants to relay, one session a second.

    Args:
        span_s: length of the stream.
        change_s: when the world changes.
        before_s, after_s: mean TTFT of a relay before and after it.
    """
    rng = np.random.default_rng(seed)
    num_sessions = int(span_s * SESSIONS_PER_S)
    sizes = rng.geometric(0.4, num_sessions)
    session = np.repeat(np.arange(num_sessions), sizes)
    begun_s = rng.uniform(0.0, span_s, num_sessions)
    place = np.arange(len(session)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    times_s = begun_s[session] + _GAP_S * place
    draws = rng.random(num_sessions)
    speed = rng.lognormal(-_SPEED * _SPEED / 2, _SPEED, num_sessions)
    noise = speed[session] * rng.lognormal(-_NOISE * _NOISE / 2, _NOISE, len(session))
    order = np.argsort(times_s, kind="stable")

    switch = StrataSwitch(SwitchSettings(epsilon=EPSILON))
    stage, trials, relayed, until_change = Stage.ON, 0, 0, 0
    off_s = back_s = None
    for i in order.tolist():
        now_s, drawn = float(times_s[i]), float(draws[session[i]])
        assigned = switch.arm_for(_VIEW, Arm.RELAY, drawn)
        relay_s = before_s if now_s < change_s else after_s
        mean_s = relay_s if assigned.arm is Arm.RELAY else RECOMPUTE_S
        ttft_s = mean_s * float(noise[i])
        switch.observe(_record(now_s, f"{session[i]}", assigned, ttft_s))
        now = next(iter(switch.stages().values()))
        trials += now is Stage.TRIAL and stage is not Stage.TRIAL
        stage = now
        if now_s < change_s:
            until_change += 1
            relayed += assigned.arm is Arm.RELAY and off_s is not None
        if off_s is None and stage is Stage.OFF:
            off_s, until_change = now_s, 0
        if back_s is None and off_s is not None and now_s >= change_s and stage is Stage.ON:
            back_s = now_s - change_s
    return Switched(
        None if off_s is None else int((begun_s <= off_s).sum()),
        relayed / max(until_change, 1),
        back_s,
        None if back_s is None else int(back_s * SESSIONS_PER_S),
        trials,
    )


def _record(time_s: float, session: str, drawn: Assignment, ttft_s: float) -> dict[str, Any]:
    return {
        "time_s": time_s,
        "session_id": session,
        "first_token_s": ttft_s,
        "prompt_tokens": _VIEW.prompt_tokens,
        "shared_prefix_fraction": _TOKENS / _VIEW.prompt_tokens,
        "found_place": "nodes",
        "decision": {
            "arm": str(drawn.arm),
            "propensity": drawn.propensity,
            "preferred": "relay",
            "relay_s": 0.3,
            "recompute_s": RECOMPUTE_S,
        },
    }
