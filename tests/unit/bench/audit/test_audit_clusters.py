"""Turns of a session are slow or fast together: what that does to intervals, and who minds it.

The world: sessions whose arm is drawn once, with a time of their own that all their turns share,
and a known effect. Turns beyond the first tell next to nothing anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.analysis.checks import sample_ratio
from kvrelay.bench.audit.analysis.data import Bools, Data, Floats, Ints, from_columns
from kvrelay.bench.audit.analysis.effects import Effect, effects
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.estimate import cate, neyman, observational

EFFECT_S = -0.2
SESSIONS, TURNS = 40, 4
SETTINGS = Settings(primary=("ttft_s",), secondary=("session_s",))
DRAWS = 200


def world(seed: int, effect_s: float = EFFECT_S, own_s: float = 0.3) -> tuple[Floats, Bools, Ints]:
    """TTFT, whether the session relays, and the session of each turn."""
    rng = np.random.default_rng(seed)
    session = np.repeat(np.arange(SESSIONS), TURNS)
    treated = rng.permutation(np.arange(SESSIONS) < SESSIONS // 2)[session]
    own = rng.normal(0.0, own_s, SESSIONS)[session]
    y = 2.0 + own + effect_s * treated + rng.normal(0.0, 0.05, len(session))
    return y, treated, session


def rows(seed: int, completes: float = 1.0, own_s: float = 0.3) -> Data:
    """As a run leaves them: each turn a row, the session's time on all of them.

    Args:
        seed: of chance.
        completes: share of relaying sessions in which a relay completes, in turn 2; the others
            are as the control.
        own_s: standard deviation of what turns of a session share.
    """
    y, treated, session = world(seed, 0.0, own_s)
    does = np.random.default_rng(seed + 1000).random(SESSIONS)[session] < completes
    y = y + EFFECT_S * (treated & does)
    whole = np.bincount(session, y)
    columns: dict[str, list[Any]] = {
        "session": [f"s{number}" for number in session],
        "time_s": np.arange(len(y), dtype=float).tolist(),
        "turn": np.tile(np.arange(2, TURNS + 2), SESSIONS).tolist(),
        "design": ["sessions"] * len(y),
        "arm": np.where(treated, "relay", "recompute").tolist(),
        "propensity": [0.5] * len(y),
        "ttft_s": y.tolist(),
        "session_s": whole[session].tolist(),
        "completed": (treated & does & (np.arange(len(y)) % TURNS == 0)).tolist(),
    }
    return from_columns(columns)


def of(found: list[Effect], estimator: str, outcome: str = "ttft_s", **fields: Any) -> list[Effect]:
    same = [e for e in found if (e.estimator, e.outcome) == (estimator, outcome)]
    return [e for e in same if all(getattr(e, name) == value for name, value in fields.items())]


def test_clustered_intervals_hold_the_truth_and_others_are_too_narrow() -> None:
    clustered = alone = 0
    for seed in range(DRAWS):
        y, treated, session = world(seed)
        stratum = np.full(len(y), "all")
        clustered += cate.by_stratum(y, treated, stratum, session)["all"].covers(EFFECT_S)
        alone += neyman.difference(y, treated).covers(EFFECT_S)
    # 95 % of 200 with a standard deviation of 3; as if turns were sessions, two thirds.
    assert 180 <= clustered <= 199
    assert alone <= 160


def test_no_effect_is_not_found_more_often_than_chance_has_it() -> None:
    clustered = alone = 0
    for seed in range(DRAWS):
        y, treated, session = world(seed, effect_s=0.0)
        found = cate.by_stratum(y, treated, np.full(len(y), "all"), session)["all"]
        clustered += found.p is not None and found.p < 0.05
        alone += (neyman.difference(y, treated).p or 1.0) < 0.05
    assert clustered <= 20
    assert alone >= 40


def test_every_estimate_of_a_session_design_counts_sessions() -> None:
    data = rows(5)
    found = effects(data, SETTINGS)
    y, treated = data.number("ttft_s"), data.text("arm") == "relay"
    too_narrow = neyman.difference(y, treated)
    direct = [e for e in found if e.estimand in ("direct", "quantile") and e.outcome == "ttft_s"]
    assert {e.estimator for e in direct} >= {"lin_hc2", "neyman", "aipw", "quantile_p50"}
    for each in direct:
        assert each.found.sessions == SESSIONS, each.estimator
        assert each.found.high - each.found.low > 1.3 * (too_narrow.high - too_narrow.low)
        assert each.found.covers(EFFECT_S)


def test_the_time_of_a_session_counts_once() -> None:
    found = of(effects(rows(6), SETTINGS), "lin_hc2", "session_s")
    assert found
    for each in found:
        assert each.found.n == each.found.sessions == SESSIONS
        assert each.found.covers(TURNS * EFFECT_S)


def test_a_relay_completes_in_a_session_not_in_each_turn() -> None:
    """One completed turn leaves nothing to relay in the others: by turns, the effect would be
    divided by a quarter of what it is."""
    found = effects(rows(7, completes=0.6, own_s=0.02), SETTINGS)
    (complier,) = of(found, "iv", estimand="complier")
    (whole,) = of(found, "lin_hc2", estimand="itt")
    assert complier.found.sessions == whole.found.sessions == SESSIONS
    assert complier.found.estimate == pytest.approx(EFFECT_S, rel=0.25)
    assert complier.found.covers(EFFECT_S) and not whole.found.covers(EFFECT_S)
    assert of(effects(rows(7), SETTINGS), "iv") == []  # all did


def test_a_stratum_with_one_session_of_an_arm_says_nothing() -> None:
    y, treated, session = world(8)
    one = (session == session[treated][0]) | ~treated
    stratum = np.full(int(one.sum()), "all")
    assert cate.by_stratum(y[one], treated[one], stratum, session[one]) == {}


def test_a_naive_look_at_a_log_counts_sessions_too() -> None:
    y, treated, session = world(9)
    by_turn, by_session = (
        observational.naive(y, treated),
        observational.naive(y, treated, session),
    )
    assert by_session.estimate == pytest.approx(by_turn.estimate)
    assert by_session.high - by_session.low > 1.5 * (by_turn.high - by_turn.low)
    alone = observational.naive(y, treated, np.arange(len(y)))
    assert (alone.low, alone.high) == (by_turn.low, by_turn.high)


def test_arms_are_counted_by_sessions() -> None:
    check = sample_ratio(rows(10))
    assert check is not None and check.passed
    assert f"{SESSIONS // 2} relay" in check.words
