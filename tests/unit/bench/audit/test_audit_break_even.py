"""The break-even surface: bands that cover, crossings and laws whose truth is known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvrelay.bench.audit.analysis.bands import simultaneous_band
from kvrelay.bench.audit.analysis.break_even import break_even, interval, law_row
from kvrelay.bench.audit.analysis.crossings import Pays, find_crossing
from kvrelay.bench.audit.analysis.law import Law, Mean, fit_law, tokens_from
from kvrelay.bench.audit.analysis.pairs import Pair, pairs_of

LENGTHS = (512, 1024, 2048, 4096, 8192)
# Wire seconds per token.
LINKS = {"same-node": 4e-6, "1gbit": 2e-4, "400mbit": 5e-4, "100mbit": 2e-3}
FIXED_S, WIRE_FACTOR, SAVED_FACTOR = 0.4, 1.1, 0.95
PER_TOKEN_S, SQUARED_S = 6e-4, 5e-8
IN_COVERAGE = (178, 199)  # of 200 draws at 95 %: missed by chance once in a few thousand runs


def saved_s(tokens: float) -> float:
    return tokens * (PER_TOKEN_S + SQUARED_S * tokens)


def effect_s(link: str, tokens: float) -> float:
    return FIXED_S + WIRE_FACTOR * LINKS[link] * tokens - SAVED_FACTOR * saved_s(tokens)


def planted(
    seed: int = 1, sessions: int = 16, noise: float = 0.03, loads: Sequence[str] = ("idle",)
) -> list[Pair]:
    """Pairs whose effects scatter by a share of the prefill that is saved."""
    rng = np.random.default_rng(seed)
    return [
        Pair(
            link,
            load,
            tokens,
            kind,
            f"{load}{link}{tokens}{kind}{n}",
            effect_s(link, tokens) + noise * saved_s(tokens) * float(rng.standard_normal()),
            tokens,
            LINKS[link] * tokens,
            saved_s(tokens),
        )
        for load in loads
        for link in LINKS
        for tokens in LENGTHS
        for kind in ("high/en", "high/zh")
        for n in range(sessions // 2)
    ]


# Bands


def coverage(draw: Any, truth: float = 0.0, runs: int = 200) -> int:
    """How many bands hold all true means."""
    held = 0
    for run in range(runs):
        band = simultaneous_band(*draw(np.random.default_rng(run)), seed=run, draws=399)
        held += bool(np.all((band.lows <= truth) & (truth <= band.highs)))
    return held


def test_a_band_holds_all_means_at_once_with_95_percent() -> None:
    cells, sessions = 8, 16

    def draw(rng: np.random.Generator) -> Any:
        place = np.repeat(np.arange(cells), sessions)
        # Cells of very different scales, and tails heavier than normal ones.
        values = 10.0 ** (place - 3) * rng.standard_t(6, len(place))
        return values, place, np.zeros_like(place), np.arange(len(place))

    assert IN_COVERAGE[0] <= coverage(draw) <= IN_COVERAGE[1]


def test_sessions_and_not_requests_are_what_is_independent() -> None:
    sessions, each = 20, 5

    def draw(rng: np.random.Generator) -> Any:
        session = np.repeat(np.arange(sessions), each)
        values = rng.standard_normal(sessions)[session] + 0.3 * rng.standard_normal(len(session))
        return values, np.zeros_like(session), np.zeros_like(session), session

    assert IN_COVERAGE[0] <= coverage(draw) <= IN_COVERAGE[1]


def test_sessions_may_be_in_several_cells_and_strata_differ() -> None:
    sessions, cells = 24, 6

    def draw(rng: np.random.Generator) -> Any:
        session = np.tile(np.arange(sessions), cells)
        place = np.repeat(np.arange(cells), sessions)
        stratum = (session % 3 == 0).astype(np.int64)  # of unequal sizes, with means that cancel
        own = rng.standard_normal(sessions)
        shift = np.where(stratum == 1, 5.0, -5.0)
        values = shift + own[session] + 0.5 * rng.standard_normal(len(session))
        return values, place, stratum, session

    assert IN_COVERAGE[0] <= coverage(draw) <= IN_COVERAGE[1]


def test_with_one_cell_and_normal_noise_the_band_is_students() -> None:
    nothing = np.zeros(16, np.int64)
    found = [
        simultaneous_band(
            np.random.default_rng(run).standard_normal(16),
            nothing,
            nothing,
            np.arange(16),
            seed=run,
        ).critical
        for run in range(20)
    ]
    assert float(np.mean(found)) == pytest.approx(2.131, abs=0.06)  # t of 15 degrees


def test_a_cell_with_too_few_sessions_has_a_mean_and_no_band() -> None:
    values = np.array([1.0, 2.0, 3.0, *range(10)], np.float64)
    cells = np.array([0] * 3 + [1] * 10)
    band = simultaneous_band(values, cells, np.zeros_like(cells), np.arange(13), seed=1, draws=199)
    assert band.means.tolist() == [2.0, 4.5]
    assert math.isnan(band.lows[0]) and math.isnan(band.highs[0])
    assert band.lows[1] < 4.5 < band.highs[1]


def test_values_without_spread_have_a_band_without_width() -> None:
    cells = np.zeros(8, np.int64)
    band = simultaneous_band(np.full(8, 3.0), cells, cells, np.arange(8), seed=1, draws=99)
    assert band.lows.tolist() == band.highs.tolist() == [3.0]


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_a_band_needs_finite_values(values: list[float]) -> None:
    codes = np.zeros(len(values), np.int64)
    with pytest.raises(ValueError, match="finite"):
        simultaneous_band(np.array(values), codes, codes, codes, seed=1)


# Crossings


def around(effects: Sequence[float], half: float) -> tuple[list[float], list[float]]:
    return [each - half for each in effects], [each + half for each in effects]


@pytest.mark.parametrize(
    ("effects", "half", "pays", "tokens", "low", "high", "certain"),
    [
        ([3, 1, -1, -3], 0.5, Pays.FROM, 250, 225, 275, True),
        ([3, 1, -1, -3], 3.5, Pays.FROM, 250, None, None, False),
        ([3, 1, -1, -3], 2.0, Pays.FROM, 250, 150, 350, True),
        ([-3, -1, 1, 3], 0.5, Pays.UP_TO, 250, 225, 275, True),
        ([-2, -3, -4, -5], 1.0, Pays.ALWAYS, None, None, None, True),
        ([-2, -3, -4, -5], 2.5, Pays.ALWAYS, None, None, 150, False),
        ([5, 4, 3, 2], 1.0, Pays.NEVER, None, None, None, True),
        ([5, 4, 3, 2], 2.5, Pays.NEVER, None, 350, None, False),
        ([1, -1, 1, -1], 0.5, Pays.MIXED, None, 125, 375, False),
    ],
)
def test_where_it_pays(
    effects: list[float],
    half: float,
    pays: Pays,
    tokens: float | None,
    low: float | None,
    high: float | None,
    certain: bool,
) -> None:
    found = find_crossing([100, 200, 300, 400], effects, *around(effects, half))
    assert (found.pays, found.tokens, found.low, found.high) == (pays, tokens, low, high)
    assert found.certain is certain


def test_words_say_which() -> None:
    def words(effects: list[float], half: float) -> str:
        return find_crossing([100, 200, 300, 4000], effects, *around(effects, half)).words

    assert words([3, 1, -1, -3], 0.5) == "pays from 250 tokens on [225, 275]"
    assert words([3, 1, -1, -3], 3.5) == "pays from 250 tokens on [below 100, above 4,000]"
    assert words([-2, -3, -4, -5], 1) == (
        "pays at every length measured (100 to 4,000 tokens); certain at each"
    )
    assert "the sign may change between below 100 and 150" in words([-2, -3, -4, -5], 2.5)
    assert words([5, 4, 3, 2], 1).startswith("does not pay at any length measured")
    assert words([-3, 1, 2, 3], 0.5).startswith("pays up to 175 tokens [")
    assert "more than once" in words([1, -1, 1, -1], 0.5)
    assert words([1, -1, -1, -1], math.nan).endswith("too few sessions for an interval")


def test_one_length_has_a_sign_and_no_crossing() -> None:
    assert find_crossing([512], [-1.0], [-2.0], [-0.5]).pays is Pays.ALWAYS
    assert not find_crossing([512], [-1.0], [-2.0], [0.5]).certain
    with pytest.raises(ValueError, match="length"):
        find_crossing([], [], [], [])


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=7),
    st.floats(0, 1e3),
    st.lists(st.floats(-1, 1), min_size=7, max_size=7),
)
def test_no_truth_within_the_band_changes_its_sign_outside_the_bounds(
    effects: list[float], half: float, shares: list[float]
) -> None:
    tokens = [2.0**n for n in range(len(effects))]
    found = find_crossing(tokens, effects, *around(effects, half))
    truth = [each + share * half for each, share in zip(effects, shares, strict=False)]
    assume(all(abs(each) > 1e-6 for each in truth))
    seen = find_crossing(tokens, truth, truth, truth)
    if seen.tokens is not None:
        assert found.low is None or found.low <= seen.tokens * (1 + 1e-6)
        assert found.high is None or found.high >= seen.tokens * (1 - 1e-6)
    if found.certain and found.tokens is None:
        assert seen.pays is found.pays


# The law


def means(noise: float = 0.0, seed: int = 1) -> list[Mean]:
    rng = np.random.default_rng(seed)
    return [
        Mean(
            tokens,
            effect_s(link, tokens) + noise * saved_s(tokens) * float(rng.standard_normal()),
            LINKS[link] * tokens,
            saved_s(tokens),
        )
        for link in LINKS
        for tokens in LENGTHS
    ]


def test_the_law_finds_what_was_planted() -> None:
    law = fit_law(means())
    assert law.fixed_s == pytest.approx(FIXED_S)
    assert law.wire_factor == pytest.approx(WIRE_FACTOR)
    assert law.saved_factor == pytest.approx(SAVED_FACTOR)
    assert law.misfit == pytest.approx(0, abs=1e-9)
    assert law.tokens == (512, 8192)
    assert law.wire_over_prefill[1] == pytest.approx(2e-3 * 512 / saved_s(512))
    assert law.effect_s(0.5, 2.0) == pytest.approx(FIXED_S + 1.1 * 0.5 - 0.95 * 2.0)


def test_the_laws_intervals_cover_what_was_planted() -> None:
    held = 0
    for seed in range(200):
        drawn = fit_law(means(0.05, seed)).drawn(400, seed)
        low, high = np.quantile(drawn[:, 1], (0.025, 0.975))
        held += bool(low <= WIRE_FACTOR <= high)
    # Normal draws with an estimated variance of 17 degrees: 93.4 % rather than 95.
    assert 172 <= held <= 198


def test_a_law_needs_cells_that_differ() -> None:
    with pytest.raises(ValueError, match=r"4 cells .* needs 5"):
        fit_law(means()[:4])
    with pytest.raises(ValueError, match="differ too little"):
        fit_law([Mean(512, 0.1, 0.2, 0.3)] * 8)
    unknown = [Mean(512, 0.1, math.nan, 0.3)] * 8
    with pytest.raises(ValueError, match="0 cells"):
        fit_law(unknown)


def test_cells_without_relay_have_no_say() -> None:
    idle = Mean(0, 0.01, 0.0, 0.0)
    assert fit_law([*means(), idle, idle]) == fit_law(means())


def test_a_law_survives_json() -> None:
    law = fit_law(means(0.05))
    again = Law.of_dict(json.loads(json.dumps(law_row("idle", law, 1), allow_nan=False)))
    assert again == law
    assert again.drawn(5, 3).tolist() == law.drawn(5, 3).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"fixed_cost_s": None},
        {"misfit": math.nan},
        {"covariance": [[1.0]]},
        {"range": {}},
        {"typical_prefill_s_per_token": 0.0},
    ],
)
def test_a_damaged_law_is_refused(change: dict[str, Any]) -> None:
    row = fit_law(means()).to_dict()
    with pytest.raises(ValueError, match="no law"):
        Law.of_dict(row | change)


def test_words_give_the_formula() -> None:
    law = fit_law(means())
    words = law_row("idle", law, 1)["words"]
    assert f"{law.fixed_cost_tokens:,.0f} / (0.95 - 1.10 r)" in words
    assert "512 to 8,192 tokens" in words
    free = law_row("idle", replace(law, fixed_s=-0.01), 1)["words"]
    assert free.startswith("relay has no fixed cost, and pays at any length while r is below 0.86")


def test_the_law_holds_for_what_the_bench_measured_on_four_links() -> None:
    results = Path(__file__).parents[4] / "bench" / "results" / "topology.json"
    cells = []
    for row in json.loads(results.read_text())["rows"]:
        names = ("relay_s", "recompute_s", "local_hit_s", "transfer_s", "copy_s")
        seconds = {name: row[name]["median"] for name in names if name in row}
        effect = seconds["relay_s"] - seconds["recompute_s"]
        wire = seconds["transfer_s"] if "transfer_s" in seconds else seconds["copy_s"]
        saved = seconds["recompute_s"] - seconds["local_hit_s"]
        cells.append(Mean(row["tokens"], effect, wire, saved))
    law = fit_law(cells)
    assert law.misfit < 0.1
    assert law.wire_factor == pytest.approx(1, abs=0.1)
    assert law.saved_factor == pytest.approx(1, abs=0.1)


# Roots


@pytest.mark.parametrize(
    ("fixed", "gain", "growth", "tokens"),
    [
        (10.0, 2.0, 0.0, 5.0),
        (10.0, -2.0, 0.0, math.inf),
        (10.0, 0.0, 0.0, math.inf),
        (-1.0, 0.0, 0.0, 0.0),
        (-1.0, 2.0, 0.0, 0.0),
        (-1.0, -2.0, 0.0, math.inf),  # pays below half a token and never again
        (6.0, 1.0, 1.0, 2.0),
        (6.0, -1.0, 1.0, 3.0),
        (0.0, 0.0, 1.0, 0.0),
        (0.0, -3.0, 1.0, 3.0),
        (-2.0, -3.0, 1.0, 2.0),  # pays up to 1 too, but not for good
        (-3.0, -3.0, 1.0, 0.0),  # at no length does it cost
        (1.0, 5.0, -1.0, math.inf),
    ],
)
def test_from_where_it_pays_for_good(
    fixed: float, gain: float, growth: float, tokens: float
) -> None:
    found = tokens_from(np.array(fixed), np.array(gain), np.array(growth))
    assert float(found) == pytest.approx(tokens)


@given(
    st.integers(-10_000, 10_000).map(lambda n: n * 1e-3),
    st.integers(-10_000, 10_000).map(lambda n: n * 1e-6),
    st.integers(0, 10_000).map(lambda n: n * 1e-9),
)
def test_beyond_the_break_even_it_pays_and_at_it_is_even(
    fixed: float, gain: float, growth: float
) -> None:
    tokens = float(tokens_from(np.array(fixed), np.array(gain), np.array(growth)))
    assume(tokens < 1e7)
    scale = abs(fixed) + abs(gain) * tokens + growth * tokens**2
    if tokens > 0:
        assert gain * tokens + growth * tokens**2 == pytest.approx(fixed, abs=1e-6 * scale)
    for factor in (1.01, 2.0, 100.0):
        longer = max(tokens, 1.0) * factor
        assert gain * longer + growth * longer**2 - fixed >= -1e-6 * scale


def test_an_interval_may_have_no_end() -> None:
    assert interval([0.0] * 10 + [5.0] * 980 + [math.inf] * 10) == (5.0, 5.0)
    assert interval([0.0] * 100 + [5.0] * 900) == (0.0, 5.0)
    assert interval([5.0] * 900 + [math.inf] * 100) == (5.0, None)
    assert interval([math.inf] * 100) == (None, None)


# The section


def test_the_surface_of_a_planted_world() -> None:
    section = break_even(planted(loads=("idle", "busy")), seed=3, draws=499)
    json.dumps(section, allow_nan=False)
    assert section["band"] == "simultaneous 95 %"
    assert len(section["points"]) == 2 * len(LINKS) * len(LENGTHS)
    for point in section["points"]:
        truth = effect_s(point["link"], point["tokens"])
        assert point["low"] <= truth <= point["high"]
        ratio = LINKS[point["link"]] * point["tokens"] / saved_s(point["tokens"])
        assert point["wire_over_prefill"] == pytest.approx(ratio)
        assert point["sessions"] == point["pairs"] == 16
    by_link = {(row["link"], row["load"]): row for row in section["curve"] if "link" in row}
    assert len(by_link) == 8
    for link, pays in (("same-node", "from"), ("1gbit", "from"), ("100mbit", "never")):
        assert by_link[link, "idle"]["pays"] == pays
    true = float(
        tokens_from(
            np.array(FIXED_S),
            np.array(SAVED_FACTOR * PER_TOKEN_S - WIRE_FACTOR * LINKS["1gbit"]),
            np.array(SAVED_FACTOR * SQUARED_S),
        )
    )
    row = by_link["1gbit", "idle"]
    assert row["low"] <= true <= row["high"]
    assert row["tokens_at_break_even"] == pytest.approx(true, rel=0.1)
    assert section["fixed_cost_tokens"] == section["laws"][1]["fixed_cost_tokens"]
    assert [law["load"] for law in section["laws"]] == ["busy", "idle"]


def test_along_the_ratio_the_law_says_where_and_where_never() -> None:
    section = break_even(planted(noise=0.01), seed=3, draws=199)
    (law,) = section["laws"]
    rows = [row for row in section["curve"] if "ratio" in row]
    assert len(rows) == 9
    assert rows[-1]["pays"] == "never" and rows[-1]["tokens_at_break_even"] is None
    for row in rows:
        slope = law["saved_factor"] - law["wire_factor"] * row["ratio"]
        if row["pays"] == "from":
            tokens = law["fixed_cost_tokens"] / slope
            assert row["tokens_at_break_even"] == pytest.approx(tokens)
            assert row["low"] <= tokens
        else:
            assert slope <= 0


def test_the_order_of_rows_does_not_matter() -> None:
    pairs = planted()
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first, second = (break_even(each, seed=3, draws=99) for each in (pairs, shuffled))
    assert json.dumps(first) == json.dumps(second)
    assert json.dumps(first) != json.dumps(break_even(pairs, seed=4, draws=99))


def test_strata_count_the_same_however_many_pairs_they_have() -> None:
    few = [Pair("l", "idle", 512, "high/en", f"a{n}", 1.0 + n % 2) for n in range(6)]
    many = [Pair("l", "idle", 512, "high/zh", f"b{n}", 3.0 + n % 2) for n in range(60)]
    (point,) = break_even(few + many, seed=1, draws=99)["points"]
    assert point["estimate"] == pytest.approx(2.5)
    assert point["wire_over_prefill"] is None


def test_what_cannot_be_known_is_none_and_says_why() -> None:
    nothing = break_even([], seed=1)
    assert nothing["points"] == nothing["curve"] == [] and nothing["fixed_cost_tokens"] is None
    sparse = break_even(planted(sessions=2), seed=1, draws=99)
    assert all(point["low"] is None for point in sparse["points"])
    assert all(
        row["low"] is None and not row["certain"] for row in sparse["curve"] if "link" in row
    )
    unplaced = [replace(pair, wire_s=math.nan) for pair in planted()]
    section = break_even(unplaced, seed=1, draws=99)
    assert section["fixed_cost_tokens"] is None
    assert section["laws"][0]["words"].startswith("no law: 0 cells")
    assert not [row for row in section["curve"] if "ratio" in row]


# Pairs


def rows_of(**changes: list[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "pair": ["p1", "p1", "p2", "p2"],
        "arm": ["recompute", "relay", "relay", "recompute"],
        "session": ["s1", "s1", "s2", "s2"],
        "link": ["1gbit"] * 4,
        "tokens": [512.0] * 4,
        "load": ["idle"] * 4,
        "similarity": ["high"] * 4,
        "language": ["en"] * 4,
        "design": ["paired"] * 4,
        "ttft_s": [1.0, 0.25, 0.5, 2.0],
        "prefill_s": [0.875, 0.125, 0.25, 1.75],
        "wire_s": [None, 0.0625, 0.125, None],
        "relayed_tokens": [0, 500, 500, 0],
    }
    return columns | changes


def test_pairs_from_rows() -> None:
    first, second = pairs_of(rows_of())
    assert first == Pair("1gbit", "idle", 512, "high/en", "s1", -0.75, 500, 0.0625, 0.75)
    assert second == Pair("1gbit", "idle", 512, "high/en", "s2", -1.5, 500, 0.125, 1.5)
    floats = rows_of(wire_s=[math.nan, 0.0625, 0.125, math.nan])
    arrays = {name: np.array(values) for name, values in floats.items()}
    assert pairs_of(arrays) == [first, second]


@pytest.mark.parametrize(
    ("changes", "sessions"),
    [
        ({"failed": [False, True, False, False]}, ["s2"]),
        ({"ttft_s": [1.0, 0.25, 0.5, math.nan]}, ["s1"]),
        ({"arm": ["recompute", "relay", "relay", "text_only"]}, ["s1"]),
        ({"design": ["paired", "paired", "sessions", "sessions"]}, ["s1"]),
        ({"pair": ["p1", "p1", "", ""]}, ["s1"]),
        ({"similarity": ["high", "high", "low", "low"]}, ["s1"]),
        ({"similarity": ["low"] * 4}, ["s1", "s2"]),
        ({"session": ["s1", "s3", "s2", "s4"]}, ["s1+s3", "s2+s4"]),
    ],
)
def test_only_complete_pairs_of_what_can_be_relayed(
    changes: dict[str, Any], sessions: list[str]
) -> None:
    assert [pair.session for pair in pairs_of(rows_of(**changes))] == sessions


def test_a_relay_that_did_not_happen_was_on_no_wire() -> None:
    columns = rows_of(relayed_tokens=[0, 0, 500, 0], wire_s=[None, None, None, None])
    first, second = pairs_of(columns)
    assert first.wire_s == 0.0
    assert math.isnan(second.wire_s)
    assert pairs_of({}) == []


def test_within_a_node_there_is_no_wire() -> None:
    columns = rows_of(link=["same-node"] * 4, wire_s=[None] * 4)
    assert [pair.wire_s for pair in pairs_of(columns)] == [0.0, 0.0]
