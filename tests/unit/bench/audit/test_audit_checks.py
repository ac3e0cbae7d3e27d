"""Each check finds what was planted for it, and is quiet where nothing was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.analysis import checks, simulate
from kvrelay.bench.audit.analysis.data import Data, codes
from kvrelay.bench.audit.analysis.files import from_rows
from kvrelay.bench.audit.analysis.matched import incomplete, match

RNG = np.random.default_rng
CONTROL = "recompute"


def changed(data: Data, **columns: Any) -> Data:
    return Data({**data.columns, **{name: np.asarray(values) for name, values in columns.items()}})


def test_a_sample_ratio_mismatch_is_found_among_requests_and_sessions() -> None:
    sound = checks.sample_ratio(simulate.randomised(RNG(1), n=1000).data)
    assert sound is not None and sound.passed
    lost = checks.sample_ratio(simulate.randomised(RNG(1), n=1000, lost=0.3).data)
    assert lost is not None and not lost.passed and lost.p is not None and lost.p < 0.01
    # Sessions count once: many requests of few sessions are no mismatch.
    data = simulate.sessions(RNG(2), count=200).data
    assert (found := checks.sample_ratio(data)) is not None and found.passed
    few = data.where((data.text("arm") == CONTROL) | (codes(data.text("session")) % 3 == 0))
    assert (found := checks.sample_ratio(few)) is not None and not found.passed
    assert checks.sample_ratio(simulate.paired(RNG(3)).data) is None


def test_uneven_propensities_are_no_mismatch() -> None:
    found = checks.sample_ratio(simulate.randomised(RNG(4), n=2000, uneven=True).data)
    assert found is not None and found.passed


def aa_rows(second_s: float) -> Data:
    rng = RNG(5)
    rows = []
    for pair in range(30):
        own = float(rng.lognormal(0.0, 0.3))
        for place, factor in enumerate((1.0, second_s)):
            rows.append(
                {
                    "arm": CONTROL,
                    "session": f"s{pair}",
                    "request": f"{pair}/{place}",
                    "pair": str(pair),
                    "design": "aa",
                    "time_s": pair * 10.0 + place,
                    "ttft_s": own * factor * float(rng.lognormal(0.0, 0.02)),
                }
            )
    return from_rows(rows)


def test_the_control_against_itself() -> None:
    same = checks.a_a(aa_rows(1.0), "ttft_s")
    assert same is not None and same.passed and "30 pairs" in same.words
    # The second of each pair finds a warmer machine.
    other = checks.a_a(aa_rows(0.9), "ttft_s")
    assert other is not None and not other.passed
    assert checks.a_a(simulate.paired(RNG(6)).data, "ttft_s") is None


def test_carry_over_is_found_in_blocks() -> None:
    sound = checks.carry_over(simulate.switchback(RNG(7)).data, "ttft_s", CONTROL)
    assert sound is not None and sound.passed
    planted = checks.carry_over(simulate.switchback(RNG(7), carry=0.8).data, "ttft_s", CONTROL)
    assert planted is not None and not planted.passed and "halves of blocks" in planted.words


def test_carry_over_is_found_in_pairs() -> None:
    data = simulate.paired(RNG(8), works=False).data
    sound = checks.carry_over(data, "ttft_s", CONTROL)
    assert sound is not None and sound.passed
    # Whatever comes second is served by a warm cache.
    time_s, pair = data.number("time_s"), codes(data.text("pair"))
    first_s = np.full(pair.max() + 1, np.inf)
    np.minimum.at(first_s, pair, time_s)
    warm = np.where(time_s > first_s[pair], 0.7, 1.0)
    planted = changed(data, ttft_s=data.number("ttft_s") * warm)
    found = checks.carry_over(planted, "ttft_s", CONTROL)
    assert found is not None and not found.passed and "order within pairs" in found.words


def test_strictly_alternating_blocks_cannot_tell_what_the_one_before_did() -> None:
    data = simulate.switchback(RNG(9)).data
    block = data.number("block")
    arm = np.where(block % 2 == 0, "relay", CONTROL)
    found = checks.carry_over(changed(data, arm=arm), "ttft_s", CONTROL)
    assert found is not None and "the block before" not in found.words


def test_relays_move_something_and_controls_nothing() -> None:
    data = simulate.paired(RNG(10)).data
    assert (found := checks.manipulation(data, CONTROL)) is not None and found.passed
    moved = data.number("relayed_tokens").copy()
    moved[np.argmax(moved > 0)] = 0.0
    found = checks.manipulation(changed(data, relayed_tokens=moved), CONTROL)
    assert found is not None and not found.passed and "1 of them moved nothing" in found.words
    leaked = data.number("relayed_tokens") + 16.0
    found = checks.manipulation(changed(data, relayed_tokens=leaked), CONTROL)
    assert found is not None and not found.passed
    without = from_rows([{"arm": "a", "session": 1, "time_s": 0, "e2e_s": 1}])
    assert checks.manipulation(without, "a") is None


@pytest.mark.parametrize("by_cosine", [0.0, -0.4])
def test_likeness_alone_must_not_help(by_cosine: float) -> None:
    """Texts that share more are more alike too; only what cosine adds to that counts."""
    rng = RNG(11)
    data = simulate.paired(rng, pairs=200, works=False).data
    pair = codes(data.text("pair"))
    prefix = rng.uniform(0.0, 1.0, pair.max() + 1)
    cosine = 0.5 * prefix + rng.uniform(0.0, 0.5, len(prefix))
    relayed = data.text("arm") == "relay"
    gain = np.where(relayed, 1.0 - 0.5 * prefix[pair] + by_cosine * cosine[pair], 1.0)
    planted = changed(
        data,
        ttft_s=data.number("ttft_s") * gain,
        shared_prefix_fraction=prefix[pair],
        cosine=cosine[pair],
    )
    found = checks.negative_control(planted, "ttft_s", CONTROL, "relay")
    assert found is not None and found.passed == (by_cosine == 0.0)
    assert checks.negative_control(data, "ttft_s", CONTROL, "relay") is None


def test_placebos_find_nothing_but_by_chance() -> None:
    rng = RNG(12)
    y, strata = rng.lognormal(0.0, 0.5, 300), np.arange(300) % 3
    found = checks.placebo(y + strata, strata, seed=1)
    assert found is not None and found.passed and 0.02 < found.statistic < 0.09
    assert checks.placebo(y[:10], strata[:10], seed=1) is None


def test_a_covariate_that_is_noise_moves_nothing() -> None:
    data = simulate.randomised(RNG(13)).data
    y, treated = data.number("ttft_s"), data.text("arm") == "relay"
    found = checks.random_common_cause(y, treated, np.empty((len(y), 0)), seed=1)
    assert found is not None and found.passed and 0.0 < found.statistic < 0.5


def test_parts_fit_into_the_whole() -> None:
    data = simulate.paired(RNG(14)).data
    assert checks.conservation(data) is None
    whole = data.number("ttft_s")
    sound = changed(data, wire_s=0.3 * whole, prefill_s=0.6 * whole)
    assert (found := checks.conservation(sound)) is not None and found.passed
    wrong = changed(data, wire_s=0.6 * whole, prefill_s=0.6 * whole)
    assert (found := checks.conservation(wrong)) is not None and not found.passed


def test_pairs_that_lack_a_side_are_counted_and_left_out() -> None:
    data = simulate.paired(RNG(15)).data
    assert incomplete(data, CONTROL) == 0
    gone = ~((data.text("pair") == "3") & (data.text("arm") == "relay"))
    assert incomplete(data.where(gone), CONTROL) == 1
    assert len(match(data.where(gone), "relay", CONTROL)) == len(match(data, "relay", CONTROL)) - 1


def test_several_rows_of_a_pair_count_with_their_mean() -> None:
    common = {"session": "s", "pair": "p", "design": "paired"}
    data = from_rows(
        [
            {**common, "arm": CONTROL, "time_s": 0.0, "ttft_s": 1.0},
            {**common, "arm": CONTROL, "time_s": 1.0, "ttft_s": 3.0},
            {**common, "arm": "relay", "time_s": 2.0, "ttft_s": 0.5},
        ]
    )
    pairs = match(data, "relay", CONTROL)
    one, zero = pairs.outcome("ttft_s")
    assert (one.tolist(), zero.tolist(), pairs.first.tolist()) == ([0.5], [2.0], [False])
    assert len(match(data, "policy", CONTROL)) == 0


def test_prompts_that_share_nothing_must_not_gain() -> None:
    data = simulate.paired(RNG(16), works=False).data
    without = changed(data, shared_prefix_fraction=np.zeros(len(data)))
    found = checks.nothing_shared(without, "ttft_s", CONTROL, "relay")
    assert found is not None and found.passed
    gains = np.where(data.text("arm") == "relay", 0.7, 1.0)
    wrong = changed(without, ttft_s=data.number("ttft_s") * gains)
    found = checks.nothing_shared(wrong, "ttft_s", CONTROL, "relay")
    assert found is not None and not found.passed
    assert checks.nothing_shared(data, "ttft_s", CONTROL, "relay") is None


def test_replicas_that_moved_apart_before_are_found() -> None:
    rng = RNG(17)
    start = np.arange(4, 12)
    unit, block = (each.reshape(-1) for each in np.indices((8, 14)))
    level = 5.0 + rng.normal(0.0, 0.02, len(unit))
    rows = {
        "arm": np.where(block >= start[unit], "relay", CONTROL),
        "design": np.full(len(unit), "staggered"),
        "unit": unit.astype(np.str_),
        "block": block.astype(np.float64),
    }
    sound = checks.parallel_trends(Data({**rows, "ttft_s": level}), "ttft_s", CONTROL)
    assert sound is not None and sound.passed
    apart = Data({**rows, "ttft_s": level + 0.05 * unit * block})
    found = checks.parallel_trends(apart, "ttft_s", CONTROL)
    assert found is not None and not found.passed
    assert checks.parallel_trends(simulate.paired(rng).data, "ttft_s", CONTROL) is None
