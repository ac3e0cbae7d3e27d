"""Means of what is no effect: by level and by stratum, sessions being what is independent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvrelay.bench.audit.report.described import described


def columns(**more: list[Any]) -> dict[str, list[Any]]:
    """Eight requests of four sessions."""
    return {
        "arm": ["relay", "recompute"] * 4,
        "session": ["a", "a", "b", "b", "c", "c", "d", "d"],
        "similarity": ["high"] * 8,
        "stratum": ["1gbit/512/idle/high/en"] * 8,
    } | more


def test_a_level_has_the_mean_of_its_sessions_and_students_interval() -> None:
    cosine = [0.9, 0.9, 0.92, 0.92, 0.94, 0.94, 0.96, 0.96]
    [row] = described(columns(cosine=cosine), {})["similarity"]
    assert (row["level"], row["measure"], row["n"]) == ("high", "cosine", 8)
    assert row["mean"] == pytest.approx(0.93)
    # standard deviation 0.02582 of four sessions, t of three degrees 3.182
    assert row["high"] - row["mean"] == pytest.approx(3.182 * 0.025820 / 2, rel=0.01)
    assert row["mean"] - row["low"] == pytest.approx(row["high"] - row["mean"])


def test_transfers_are_those_of_relays_that_moved_something() -> None:
    wire = [0.010, None, 0.012, math.nan, 0.014, None, 0.016, None]
    [row] = described(columns(wire_s=wire), {})["transfers"]
    assert (row["stratum"], row["arm"], row["n"]) == ("1gbit/512/idle/high/en", "relay", 4)
    assert row["estimate"] == pytest.approx(0.013)
    assert row["low"] < 0.010 and row["high"] > 0.016


def test_too_few_sessions_have_no_interval() -> None:
    wire = [0.010, None, 0.012, None, 0.014, None, None, None]
    [row] = described(columns(wire_s=wire), {})["transfers"]
    assert row["low"] is None and row["high"] is None


def test_columns_that_are_missing_or_empty_give_no_rows_and_a_reason() -> None:
    nobody = "no row has a value and a level"
    nothing = {
        "similarity": [],
        "not_measured": {"cosine": nobody, "jaccard": nobody, "shared_prefix_fraction": nobody},
        "transfers": [],
    }
    assert described({}, {}) == nothing
    assert described(columns(cosine=[None] * 8, wire_s=[0.0] * 8), {}) == nothing


def test_a_reason_is_given_only_for_what_no_row_has() -> None:
    reasons = {"cosine": "no model", "jaccard": "not asked for"}
    some = columns(jaccard=[0.5] * 7 + [None], shared_prefix_fraction=[0.75] * 8)
    assert described(some, reasons)["not_measured"] == {"cosine": "no model"}
