"""The judged promise on simulated streams: rarely wrong at any look, and not much too wide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvrelay.bench import payoff, payoff_rows, payoff_switch
from kvrelay.bench.run_payoff import Options, main, stream_samples


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_intervals_hold_at_every_look_and_are_not_too_wide() -> None:
    rows = payoff_rows.summarize(list(stream_samples(200, seed=1)))
    together = next(row for row in rows if row["scenario"] == payoff_rows.ALL)
    assert together["streams"] == 200
    assert together["missed"] <= 18  # 9 %
    assert together["width_over_fixed"]["max"] <= 2.0
    assert together["wrong_sign"] <= together["missed"]
    # The simulation is one in which looking all the time matters.
    assert together["naive_missed"] >= 50


@pytest.mark.slow
def test_a_planted_stratum_is_turned_off_and_comes_back() -> None:
    found = payoff_switch.run(1, 30_000.0, 12_000.0, payoff_switch.LOSES_S, payoff_switch.PAYS_S)
    assert found.off_sessions is not None and found.back_sessions is not None
    assert found.lost_share < 0.1


@pytest.mark.parametrize("world", payoff.WORLDS, ids=lambda world: world.name)
def test_the_truth_of_a_world_is_the_truth(world: payoff.World) -> None:
    """Outcomes with every arm drawn evenly differ by what the world is said to save."""
    even = replace(world, epsilon=1.0, sessions=40_000, tail=9.0, speed=0.3, slower=1.0)
    savings = []
    for seed in range(3):
        made = payoff.stream_of(even, np.random.default_rng(seed))
        relayed = [seen.first_token_s for seen in made.observations if seen.arm == "relay"]
        others = [seen.first_token_s for seen in made.observations if seen.arm != "relay"]
        savings.append(float(np.mean(others) - np.mean(relayed)))
    assert np.mean(savings) == pytest.approx(payoff.request_saving_s(), abs=0.015)


def test_streams_are_clustered_and_drawn_as_said() -> None:
    world = replace(payoff.WORLDS[1], epsilon=0.4)
    made = payoff.stream_of(world, np.random.default_rng(1))
    times = [seen.time_s for seen in made.observations]
    assert times == sorted(times)
    drawn = {seen.session for seen in made.observations if seen.propensity < 0.5}
    of_session: dict[str, set[str]] = {}
    for seen in made.observations:
        of_session.setdefault(seen.session, set()).add(seen.arm)
    assert len(of_session) == world.sessions
    assert all(len(of_session[session]) == 1 for session in drawn), "one arm in a drawn session"
    assert 0.1 < len(drawn) / world.sessions < 0.4


def test_rows_and_their_verdict() -> None:
    def sample(scenario: str, missed: bool, width: float) -> dict[str, object]:
        named = {"scenario": scenario, "epsilon": 0.1, "sessions": 9, "truth_s": 0.3}
        watch = {"missed": missed, "naive_missed": True, "wrong_sign": False}
        more = {"interval_sessions": 5, "sign_sessions": None, "width_over_fixed": width}
        return {**named, **watch, **more}

    samples = [sample("a", False, 1.5), sample("a", False, 1.6), sample("b", True, 1.7)]
    switched = {"scenario": "switch", "planted": "loses", "off_sessions": 7, "lost_share": 0.1}
    samples.append({**switched, "back_s": None, "back_sessions": None, "trials": 2})
    rows = payoff_rows.summarize(samples)
    assert [row["scenario"] for row in rows] == ["a", "b", "all", "switch"]
    assert rows[2]["missed_ratio"] == 0.3333 and rows[2]["width_over_fixed"]["max"] == 1.7
    assert (rows[3]["switched_off"], rows[3]["came_back"]) == (1, 0)
    assert payoff_rows.verdict(rows).startswith("NOT KEPT")
    assert payoff_rows.verdict(payoff_rows.summarize(samples[:1])).startswith("one world")
    kept = [sample("a", False, 1.5), sample("b", False, 1.9)]
    assert payoff_rows.verdict(payoff_rows.summarize(kept)).startswith("kept")
    for row in rows[:3]:
        assert all(column(row) for column in payoff_rows.WORLDS_TABLE.values())
    assert all(column(rows[3]) for column in payoff_rows.SWITCH_TABLE.values())


@pytest.mark.slow
def test_the_command_leaves_a_report(tmp_path: Path) -> None:
    file = tmp_path / "payoff.json"
    main(Options(streams=2, seed=5, json_file=file, samples_file=None, smoke=True))
    assert '"complete": true' in file.read_text()
