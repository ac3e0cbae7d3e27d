"""Rows of an audit, column by column: checked, in one order, with one digest.

A row is one request (schema.py). The order is by arrival, whatever order the file has, so that the
digest of the same rows is the same. Nothing is repaired in silence: what is assumed for data
without a column is said in `Data.assumed`, and a value that cannot be is an error that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.audit.analysis.data_errors import (
    BadValue,
    MissingColumns,
    TooLittleData,
    UnequalArms,
)
from kvrelay.bench.audit.analysis.schema import (
    KINDS,
    OUTCOMES,
    REQUIRED,
    SIGNED,
    STRATUM,
    Design,
    Kind,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Labels = NDArray[np.str_]
Column = Floats | Bools | Labels

MIN_PER_ARM = 4
# An arm with this many times the share it was assigned, or this fraction of it.
_FAR_FROM_ASSIGNED = 3.0
# Expected rows of an arm: with fewer, chance alone may do that.
_ENOUGH_TO_TELL = 20
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no", ""}


@dataclass(frozen=True, slots=True)
class Data:
    """Rows in the order of their arrival.

    Attributes:
        columns: arrays of one length by name.
        assumed: what was taken for granted for want of a column, in words.
    """

    columns: Mapping[str, Column]
    assumed: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def number(self, name: str) -> Floats:
        """A column of numbers; NaN where missing, everywhere if the column is."""
        found = self.columns.get(name)
        return np.full(len(self), np.nan) if found is None else np.asarray(found, np.float64)

    def text(self, name: str) -> Labels:
        """A column of labels; empty where missing."""
        found = self.columns.get(name)
        return np.full(len(self), "", "U1") if found is None else np.asarray(found, np.str_)

    def flag(self, name: str) -> Bools:
        """A column of truths; false if the column is missing."""
        found = self.columns.get(name)
        return np.zeros(len(self), np.bool_) if found is None else np.asarray(found, np.bool_)

    def has(self, name: str) -> bool:
        """Whether there is any value in a column."""
        found = self.columns.get(name)
        if found is None:
            return False
        values = np.asarray(found)
        if values.dtype.kind == "f":
            return bool(np.isfinite(values).any())
        return bool((values != "").any()) if values.dtype.kind == "U" else True

    def where(self, mask: Bools) -> Data:
        """The rows for which the mask is true."""
        columns = {name: values[mask] for name, values in self.columns.items()}
        return Data(columns, self.assumed)

    def stratum(self) -> Labels:
        """The label of each row's stratum: what of link, tokens, load, similarity and language
        there is, joined by slashes; "all" without any."""
        parts = [
            _plain(self.number(name)) if KINDS[name] is Kind.NUMBER else self.text(name)
            for name in STRATUM
            if name in self.columns
        ]
        if not parts:
            return np.full(len(self), "all")
        return np.array(["/".join(row) for row in zip(*parts, strict=True)], np.str_)

    def digest(self) -> str:
        """SHA-256 over names, kinds and values; the same for the same rows in any file form."""
        digest = hashlib.sha256()
        for name in sorted(self.columns):
            values = np.asarray(self.columns[name])
            digest.update(f"{name}\0{values.dtype.kind}\0{len(values)}\0".encode())
            if values.dtype.kind == "U":
                digest.update(json.dumps(values.tolist()).encode())
            else:
                # One NaN and one zero, whatever bits they came with.
                plain = values.astype("<f8") + 0.0
                digest.update(np.where(np.isnan(plain), np.nan, plain).astype("<f8").tobytes())
        return digest.hexdigest()


def from_columns(raw: Mapping[str, Sequence[Any]], names: Mapping[str, str] | None = None) -> Data:
    """Check columns of plain values and put the rows in order.

    Args:
        raw: values by column, None where missing.
        names: the column in `raw` by the name that it has in the schema.

    Raises:
        MissingColumns: a required one, or one that `names` refers to.
        BadValue: not finite, negative, or of another kind than the column's.
        TooLittleData: there are no rows.
    """
    renamed = _renamed(raw, names or {})
    missing = [name for name in REQUIRED if name not in renamed]
    if missing:
        raise MissingColumns(
            f"no column {', '.join(missing)}; there are {', '.join(sorted(raw))}: "
            f"name what stands for it, as in --column {missing[0]}=THEIR_NAME"
        )
    if not any(name in renamed for name in OUTCOMES):
        raise MissingColumns(
            f"no outcome; needs one of {', '.join(OUTCOMES[:4])}, ...; "
            "name what stands for it, as in --column ttft_s=THEIR_NAME"
        )
    if not len(renamed["arm"]):
        raise TooLittleData("there are no rows")
    columns = {name: _converted(name, values) for name, values in renamed.items()}
    # A column without any value is the same as none.
    columns = {n: c for n, c in columns.items() if not _is_empty(c) or n in REQUIRED}
    _check_required(columns)
    columns, assumed = _completed(columns)
    columns = _in_order(columns)
    if "request" not in columns:
        columns["request"] = np.array([str(row) for row in range(len(columns["arm"]))], np.str_)
    return Data(columns, tuple(assumed))


def require(data: Data, control: str, outcomes: Sequence[str]) -> None:
    """Whether an analysis is possible at all.

    Raises:
        MissingColumns: a primary outcome has no value.
        TooLittleData: an arm, or the control, has too few rows.
        UnequalArms: an arm is nothing like what was assigned. Smaller imbalances are left to the
            check for a sample ratio mismatch.
    """
    missing = [name for name in outcomes if not data.has(name)]
    if missing:
        raise MissingColumns(f"no value of the primary outcome {', '.join(missing)}")
    arms, counts = np.unique(data.text("arm"), return_counts=True)
    if control not in arms:
        raise TooLittleData(
            f"no row of the control arm {control!r}; the arms are {', '.join(arms.tolist())}"
        )
    if len(arms) < 2:
        raise TooLittleData(f"{control!r} is the only arm: nothing to compare it with")
    for arm, count in zip(arms.tolist(), counts.tolist(), strict=True):
        if count < MIN_PER_ARM:
            raise TooLittleData(f"arm {arm!r} has {count} rows; at least {MIN_PER_ARM} are needed")
    for design in (Design.RANDOMISED, Design.SESSIONS):
        _require_equal(data.where(data.text("design") == design), design)


def expected_shares(data: Data) -> dict[str, float]:
    """The share of assignments that each arm should have, by its propensities."""
    arm, propensity = data.text("arm"), data.number("propensity")
    means = {name: float(propensity[arm == name].mean()) for name in np.unique(arm).tolist()}
    total = sum(means.values())
    return {name: mean / total for name, mean in means.items()}


def codes(labels: Labels) -> Ints:
    """Labels as numbers from zero."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _require_equal(data: Data, design: str) -> None:
    """Arms of a design within each stratum: which ones there are differs between strata."""
    strata = data.stratum()
    for label in np.unique(strata).tolist():
        cell = data.where(strata == label)
        for name, share in expected_shares(cell).items():
            seen = float((cell.text("arm") == name).mean())
            near = share / _FAR_FROM_ASSIGNED <= seen <= share * _FAR_FROM_ASSIGNED
            if share * len(cell) >= _ENOUGH_TO_TELL and not near:
                raise UnequalArms(
                    f"design {design}, stratum {label}: arm {name!r} has {seen:.1%} of the rows, "
                    f"assigned were {share:.1%}: rows are lost, or the propensities are not those "
                    "of the assignment"
                )


def _renamed(
    raw: Mapping[str, Sequence[Any]], names: Mapping[str, str]
) -> dict[str, Sequence[Any]]:
    absent = sorted(theirs for theirs in names.values() if theirs not in raw)
    if absent:
        raise MissingColumns(
            f"no column {', '.join(absent)} to map; there are {', '.join(sorted(raw))}"
        )
    taken = set(names.values())
    kept = {name: values for name, values in raw.items() if name not in taken | set(names)}
    return {**kept, **{ours: raw[theirs] for ours, theirs in names.items()}}


def _converted(name: str, values: Sequence[Any]) -> Column:
    kind = KINDS.get(name) or _guessed(values)
    if kind is Kind.TEXT:
        return np.array([_label(value) for value in values], np.str_)
    if kind is Kind.FLAG:
        return np.array([_truth(name, row, v) for row, v in enumerate(values, 1)], np.bool_)
    return np.array([_quantity(name, row, v) for row, v in enumerate(values, 1)], np.float64)


def _guessed(values: Sequence[Any]) -> Kind:
    """An unknown column holds numbers if every value is one."""
    known = [value for value in values if value is not None]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    return Kind.NUMBER if known and numbers else Kind.TEXT


def _label(value: Any) -> str:
    if value is None:
        return ""
    # 3 and 3.0 are one session: another program may have stored integers as floats.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _truth(name: str, row: int, value: Any) -> bool:
    word = "" if value is None else _label(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise BadValue(f"column {name}, row {row}: {value!r} is neither true nor false")


def _quantity(name: str, row: int, value: Any) -> float:
    if value is None or value == "":
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadValue(f"column {name}, row {row}: {value!r} is not a number") from None
    if not math.isfinite(number):
        raise BadValue(f"column {name}, row {row}: {number} is not finite; leave it empty")
    if number < 0 and name in KINDS and name not in SIGNED:
        raise BadValue(f"column {name}, row {row}: {number} is negative")
    if name == "propensity" and not 0.0 < number <= 1.0:
        raise BadValue(f"column propensity, row {row}: {number} is not in (0, 1]")
    if name == "saturation" and number > 1.0:
        raise BadValue(f"column saturation, row {row}: {number} is not in [0, 1]")
    return number


def _is_empty(column: Column) -> bool:
    if column.dtype.kind == "f":
        return bool(np.isnan(column).all())
    return column.dtype.kind == "U" and bool((column == "").all())


def _check_required(columns: Mapping[str, Column]) -> None:
    for name in REQUIRED:
        column = columns[name]
        gaps = np.isnan(column) if column.dtype.kind == "f" else column == ""
        if gaps.any():
            raise BadValue(f"column {name}, row {int(np.argmax(gaps)) + 1}: there is no value")


def _completed(columns: Mapping[str, Column]) -> tuple[dict[str, Column], list[str]]:
    """Defaults for what somebody else's data need not have, and words about them."""
    full, assumed = dict(columns), []
    count = len(columns["arm"])
    if "failed" not in full:
        full["failed"] = np.zeros(count, np.bool_)
    if "design" not in full:
        design = _guessed_design(columns)
        full["design"] = np.full(count, str(design))
        assumed.append(f"no column design: taken for {design}")
    if "propensity" not in full:
        arms = len(np.unique(columns["arm"]))
        full["propensity"] = np.full(count, 1.0 / arms)
        assumed.append("no column propensity: arms taken to be equally likely")
    return full, assumed


def _guessed_design(columns: Mapping[str, Column]) -> Design:
    if "pair" in columns:
        return Design.PAIRED
    if "block" in columns:
        return Design.SWITCHBACK
    session, arm = columns["session"].tolist(), columns["arm"].tolist()
    under, sessions = len(set(zip(session, arm, strict=True))), len(set(session))
    # Every session under one arm, and some with more than one request: arms came by session.
    return Design.SESSIONS if under == sessions < len(session) else Design.RANDOMISED


def _in_order(columns: Mapping[str, Column]) -> dict[str, Column]:
    first = [name for name in ("time_s", "session", "request", "arm") if name in columns]
    # What is left of a tie is broken by every other column, so that the order is one.
    names = [*first, *sorted(columns)]
    keys = [_sortable(columns[name]) for name in names]
    rows = list(zip(*keys, strict=True))
    order = np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)
    return {name: column[order] for name, column in columns.items()}


def _sortable(column: Column) -> list[Any]:
    plain = np.nan_to_num(column, nan=-1.0) if column.dtype.kind == "f" else column
    return list(plain.tolist())


def _plain(values: Floats) -> Labels:
    shown = ["" if math.isnan(value) else f"{value:g}" for value in values.tolist()]
    return np.array(shown, np.str_)
