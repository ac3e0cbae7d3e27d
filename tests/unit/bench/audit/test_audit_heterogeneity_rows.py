"""Rows of engines that differ: they pass where they should, and each fails for its own reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from kvrelay.bench.audit.controls.heterogeneity import Pairing, Trial
from kvrelay.bench.audit.controls.heterogeneity_rows import rows, share
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.errors import BenchError

TOKENS = 128
# Of TTFT in a pair, as far from each other as pairs are; their logarithms add up to nothing.
NOISE = (1.04, 1 / 1.04, 1.01, 1 / 1.01, 1.02, 1 / 1.02)


def pairing(kind: Kind, slower: float = 1.0) -> Pairing:
    """As it comes from fingerprints that hold."""
    is_same = kind is Kind.SAME
    trials = tuple(
        Trial(
            example=number,
            matching_tokens=TOKENS,
            relayed_tokens=TOKENS if is_same else 0,
            reason="relayed" if is_same else "no_source",
            is_same_answer=True,
            are_same_logprobs=not is_same,
            ttft_s=slower * noise * (0.1 if is_same else 0.4),
            recompute_ttft_s=0.4,
        )
        for number, noise in enumerate(NOISE)
    )
    return Pairing(kind, TOKENS, trials)


def changed(kind: Kind, at: int = 2, **changes: Any) -> Pairing:
    found = pairing(kind)
    trials = list(found.trials)
    trials[at] = replace(trials[at], **changes)
    return replace(found, trials=tuple(trials))


def passed(*pairings: Pairing) -> list[bool]:
    return [row["passed"] for row in rows(pairings)]


def test_all_pass() -> None:
    found = rows([pairing(kind) for kind in Kind])
    assert [row["kind"] for row in found] == list(Kind)
    assert all(row["passed"] for row in found)
    same, *others = found
    assert (same["matching_tokens"], same["relayed_tokens"]) == (6 * TOKENS, 6 * TOKENS)
    assert same["reasons"] == {"relayed": 6}
    assert same["exact"]["estimate"] == 0  # told, and not demanded
    assert same["ttft_ratio"]["estimate"] == pytest.approx(0.25)
    for row in others:
        assert (row["matching_tokens"], row["relayed_tokens"]) == (6 * TOKENS, 0)
        assert row["reasons"] == {"no_source": 6}
        assert row["ttft_ratio"]["estimate"] == pytest.approx(1)
        assert row["ttft_ratio"]["low"] < 1 < row["ttft_ratio"]["high"]
        assert "p above 0.0125" in row["expected"]
    assert len(others[0]["examples"]) == others[0]["n"] == 6
    json.dumps(found)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SAME])
def test_one_block_that_crosses_fails(kind: Kind) -> None:
    (row,) = rows([changed(kind, relayed_tokens=32, reason="relayed")])
    assert not row["passed"]
    assert row["lawful"]["estimate"] == pytest.approx(5 / 6)
    assert (row["relayed_tokens"], row["reasons"]) == (32, {"no_source": 5, "relayed": 1})


def test_one_block_that_does_not_cross_between_the_same_fails() -> None:
    assert passed(changed(Kind.SAME, relayed_tokens=TOKENS - 32)) == [False]


@pytest.mark.parametrize("name", ["is_same_answer", "are_same_logprobs"])
def test_one_answer_that_is_not_recomputes_fails(name: str) -> None:
    (row,) = rows([changed(Kind.WEIGHTS, **{name: False})])
    assert not row["passed"]
    assert row["exact"]["estimate"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("kind", Kind)
def test_an_engine_that_cannot_relay_at_all_proves_nothing(kind: Kind) -> None:
    assert passed(replace(pairing(kind), own_tokens=0)) == [False]


def test_only_slowness_beyond_noise_fails() -> None:
    assert passed(pairing(Kind.DTYPE, slower=1.01)) == [True]
    assert passed(pairing(Kind.DTYPE, slower=1.2)) == [False]
    assert passed(pairing(Kind.SAME, slower=12.0)) == [True]  # if that pays is asked elsewhere


def test_the_level_is_shared_by_all_engines_that_differ() -> None:
    logs = [math.log(1.025 * noise) for noise in NOISE]
    p = stats.ttest_1samp(logs, 0, alternative="greater").pvalue
    assert 0.0125 < p < 0.05
    slower = pairing(Kind.DTYPE, slower=1.025)
    (row,) = rows([slower])
    assert row["p_slower"] == pytest.approx(p)
    assert not row["passed"]
    others = [pairing(kind) for kind in (Kind.WEIGHTS, Kind.BLOCK_SIZE, Kind.ARCHITECTURE)]
    assert passed(slower, *others) == [True] * 4


def test_the_ratio_has_students_interval() -> None:
    (row,) = rows([pairing(Kind.DTYPE, slower=1.025)])
    logs = [math.log(1.025 * noise) for noise in NOISE]
    exact = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    bounds = row["ttft_ratio"]
    assert bounds["estimate"] == pytest.approx(1.025)
    assert (bounds["low"], bounds["high"]) == pytest.approx(
        (math.exp(exact.low), math.exp(exact.high))
    )


@pytest.mark.parametrize(("ratio", "expected"), [(1.1, False), (0.9, True), (1.0, True)])
def test_ratios_without_any_noise(ratio: float, expected: bool) -> None:
    found = pairing(Kind.DTYPE)
    trials = tuple(replace(t, ttft_s=ratio * t.recompute_ttft_s) for t in found.trials)
    assert passed(replace(found, trials=trials)) == [expected]


# With all of n the lower limit is (alpha / 2) to the power 1 / n; the others are of Clopper and
# Pearson's figure for n = 10, as tables of exact limits have them.
@pytest.mark.parametrize(
    ("true", "n", "low", "high"),
    [(12, 12, 0.025 ** (1 / 12), 1.0), (0, 12, 0.0, 1 - 0.025 ** (1 / 12)),
     (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129)],
)  # fmt: skip
def test_shares_have_exact_intervals(true: int, n: int, low: float, high: float) -> None:
    found = share([number < true for number in range(n)])
    assert found["estimate"] == true / n
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=5e-5)


def test_too_little_is_an_error() -> None:
    one = replace(pairing(Kind.DTYPE), trials=pairing(Kind.DTYPE).trials[:1])
    with pytest.raises(BenchError, match="1 examples of dtype"):
        rows([one])
    with pytest.raises(BenchError, match="a share of nothing"):
        share([])
