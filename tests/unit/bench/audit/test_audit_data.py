"""Rows of anybody: what is accepted, what is refused in which words, and that a digest is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrelay.bench.audit.analysis import simulate
from kvrelay.bench.audit.analysis.data import Data, expected_shares, from_columns, require
from kvrelay.bench.audit.analysis.data_errors import (
    BadValue,
    DataError,
    MissingColumns,
    TooLittleData,
    UnequalArms,
)
from kvrelay.bench.audit.analysis.files import from_rows, read, write_parquet


def columns(n: int = 12, **replaced: Any) -> dict[str, Any]:
    common = {
        "arm": ["recompute", "relay"] * (n // 2),
        "session": [f"s{row}" for row in range(n)],
        "time_s": [float(row) for row in range(n)],
        "ttft_s": [1.0 + row / 10 for row in range(n)],
    }
    return {**common, **replaced}


def rows(n: int = 12, **replaced: Any) -> list[dict[str, Any]]:
    found = columns(n, **replaced)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def test_the_least_that_anybody_needs_is_enough() -> None:
    data = from_columns(columns())
    assert len(data) == 12
    assert data.text("design")[0] == "randomised"
    assert set(data.number("propensity").tolist()) == {0.5}
    assert len(data.assumed) == 2
    assert set(data.stratum().tolist()) == {"all"}
    require(data, "recompute", ["ttft_s"])


def test_columns_of_another_name_are_mapped_and_unknown_ones_kept() -> None:
    theirs = {"variant": "arm", "latency": "ttft_s"}
    raw = {next((t for t, o in theirs.items() if o == n), n): v for n, v in columns().items()}
    data = from_columns({**raw, "rack": ["a"] * 12}, {o: t for t, o in theirs.items()})
    assert data.number("ttft_s")[1] == 1.1
    assert data.text("arm")[1] == "relay"
    assert data.text("rack")[0] == "a"
    with pytest.raises(MissingColumns, match="no column nowhere to map"):
        from_columns(raw, {"arm": "nowhere"})


@pytest.mark.parametrize("name", ["arm", "session", "time_s"])
def test_a_missing_column_is_named_with_the_remedy(name: str) -> None:
    raw = columns()
    del raw[name]
    with pytest.raises(MissingColumns, match=rf"no column {name}; .*--column {name}=THEIR_NAME"):
        from_columns(raw)


def test_an_outcome_is_needed() -> None:
    raw = columns()
    del raw["ttft_s"]
    with pytest.raises(MissingColumns, match="no outcome"):
        from_columns(raw)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ttft_s", float("nan"), "column ttft_s, row 3: nan is not finite"),
        ("ttft_s", float("inf"), "column ttft_s, row 3: inf is not finite"),
        ("ttft_s", -0.5, "column ttft_s, row 3: -0.5 is negative"),
        ("ttft_s", "fast", "column ttft_s, row 3: 'fast' is not a number"),
        ("time_s", None, "column time_s, row 3: there is no value"),
        ("arm", "", "column arm, row 3: there is no value"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_row(name: str, value: Any, words: str) -> None:
    raw = columns()
    raw[name] = [*raw[name][:2], value, *raw[name][3:]]
    with pytest.raises(BadValue, match=words):
        from_columns(raw)


def test_propensities_and_truths_are_checked() -> None:
    with pytest.raises(BadValue, match=r"propensity, row 1: 1.5 is not in \(0, 1\]"):
        from_columns(columns(propensity=[1.5] + [0.5] * 11))
    with pytest.raises(BadValue, match="column failed, row 2: 'perhaps' is neither"):
        from_columns(columns(failed=[False, "perhaps"] + [True] * 10))


def test_too_little_data_says_of_what() -> None:
    with pytest.raises(TooLittleData, match="there are no rows"):
        from_columns({name: [] for name in columns()})
    few = from_columns(columns(arm=["relay"] * 2 + ["recompute"] * 10))
    with pytest.raises(TooLittleData, match="arm 'relay' has 2 rows; at least 4"):
        require(few, "recompute", ["ttft_s"])
    with pytest.raises(TooLittleData, match="no row of the control arm 'off'"):
        require(few, "off", ["ttft_s"])
    with pytest.raises(TooLittleData, match="is the only arm"):
        require(from_columns(columns(arm=["recompute"] * 12)), "recompute", ["ttft_s"])
    with pytest.raises(MissingColumns, match="primary outcome e2e_s"):
        require(few, "recompute", ["e2e_s"])


def test_arms_far_from_what_was_assigned_are_an_error_and_others_are_not() -> None:
    uneven = columns(100, arm=["relay"] * 12 + ["recompute"] * 88)
    with pytest.raises(UnequalArms, match=r"has 12\.0% of the rows, assigned were 50\.0%"):
        require(from_columns(uneven), "recompute", ["ttft_s"])
    known = [0.12] * 12 + [0.88] * 88
    require(from_columns({**uneven, "propensity": known}), "recompute", ["ttft_s"])
    shares = expected_shares(from_columns({**uneven, "propensity": known}))
    assert shares["relay"] == pytest.approx(0.12)


def test_arms_that_came_by_session_are_recognised() -> None:
    by_session = columns(session=["a", "b"] * 6)
    assert from_columns(by_session).text("design")[0] == "sessions"


def test_every_file_form_gives_the_same_digest_in_any_order(tmp_path: Path) -> None:
    found = rows(load=["idle", None] * 6, cosine=[None, 0.5] * 6)
    data = from_rows(found)
    lines = [json.dumps({"run": {"seed": 1}}), *map(json.dumps, reversed(found))]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + '\n{"arm": "re')
    write_parquet(data, tmp_path / "data.parquet")
    header = ",".join(found[0])
    cells = [",".join("" if v is None else str(v) for v in row.values()) for row in found]
    (tmp_path / "data.csv").write_text("\n".join([header, *cells]) + "\n")
    for name in ("rows.jsonl", "data.parquet", "data.csv"):
        again = read(tmp_path / name)
        assert {n: np.asarray(c).tolist() for n, c in again.columns.items() if n != "cosine"} == {
            n: np.asarray(c).tolist() for n, c in data.columns.items() if n != "cosine"
        }
        assert again.digest() == data.digest(), name
    changed = from_rows([{**found[0], "ttft_s": 1.0001}, *found[1:]])
    assert changed.digest() != data.digest()


def test_parquet_has_the_same_bytes_for_the_same_rows(tmp_path: Path) -> None:
    data = from_rows(rows())
    write_parquet(data, tmp_path / "one.parquet")
    write_parquet(from_rows(rows()[::-1]), tmp_path / "two.parquet")
    # Requests without a name are numbered in order of arrival, so order does not matter.
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        read(tmp_path / "nowhere.csv")
    for name, words in [("a.txt", "expected .parquet"), ("a.parquet", "no Parquet file")]:
        (tmp_path / name).write_text("not rows")
        with pytest.raises(DataError, match=words):
            read(tmp_path / name)
    (tmp_path / "a.jsonl").write_text('{"arm": 1}\nnot json\n')
    with pytest.raises(BadValue, match="line 2: no JSON"):
        read(tmp_path / "a.jsonl")


def test_a_nan_in_a_csv_is_reported_not_taken_for_missing(tmp_path: Path) -> None:
    found = columns()
    lines = [
        ",".join(found),
        *(",".join(map(str, row)) for row in zip(*found.values(), strict=True)),
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines).replace("1.2", "nan") + "\n")
    with pytest.raises(BadValue, match="column ttft_s, row 3: nan"):
        read(tmp_path / "a.csv")


def test_strata_are_derived_of_what_is_there() -> None:
    data = from_columns(columns(link=["100mbit"] * 12, tokens=[512] * 12))
    assert set(data.stratum().tolist()) == {"100mbit/512"}


def test_simulated_rows_are_rows(tmp_path: Path) -> None:
    """The worlds make columns directly; they hold to the schema like anything that is read."""
    rng = np.random.default_rng(1)
    makers: list[simulate.Maker] = [
        simulate.paired,
        simulate.randomised,
        simulate.sessions,
        simulate.staggered,
        simulate.switchback,
        simulate.saturation,
        simulate.logged,
    ]
    for make in makers:
        data: Data = make(rng).data
        write_parquet(data, tmp_path / "data.parquet")
        again = read(tmp_path / "data.parquet")
        assert again.assumed == ()
        assert again.columns.keys() == data.columns.keys()
        assert again.number("ttft_s").sum() == pytest.approx(data.number("ttft_s").sum())


def test_arms_that_are_in_some_strata_only_are_no_mismatch() -> None:
    """One stratum of two arms, one of five: over both, the control has far more than its share."""
    five = ["recompute", "relay", "policy", "text_only", "shared_pool"]
    arm = ["recompute", "relay"] * 500 + five * 20
    chance = [0.5] * 1000 + [0.2] * 100
    link = ["same-node"] * 1000 + ["100mbit"] * 100
    data = from_columns(columns(1100, arm=arm, propensity=chance, link=link))
    require(data, "recompute", ["ttft_s"])
