"""Pairs of rows: the same request under an arm and under the control, from one cache state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvrelay.bench.audit.analysis.data import Bools, Data, Floats, Ints, Labels, codes
from kvrelay.bench.audit.analysis.schema import Design

_SEPARATOR = "\t"


@dataclass(frozen=True, slots=True)
class Matched:
    """Complete pairs, in the order of their names.

    Attributes:
        strata: the stratum of each pair.
        sessions: number of the control's session of each pair.
        first: whether the arm came before the control.
    """

    strata: Labels
    sessions: Ints
    first: Bools
    _rows: Data
    _pair: Ints
    _treated: Bools

    def __len__(self) -> int:
        return len(self.strata)

    def outcome(self, name: str) -> tuple[Floats, Floats]:
        """Means under the arm and under the control [pairs]; NaN where a row has no value."""
        values = self._rows.number(name)
        return self._means(values, self._treated), self._means(values, ~self._treated)

    def covariate(self, name: str) -> Floats:
        """Means over both arms [pairs]; NaN where a row has no value."""
        return self._means(self._rows.number(name), np.ones(len(self._rows), np.bool_))

    def _means(self, values: Floats, rows: Bools) -> Floats:
        pairs = self._pair[rows]
        sums = np.bincount(pairs, values[rows], len(self))
        return np.asarray(sums / np.bincount(pairs, minlength=len(self)))


def match(data: Data, arm: str, control: str, design: str = Design.PAIRED) -> Matched:
    """Pairs of a design that have rows of both arms; rows of other arms and pairs are left out.

    Several rows of one arm in a pair count with their mean.
    """
    names = data.text("arm")
    inside = data.text("design") == design
    inside &= (data.text("pair") != "") & ((names == arm) | (names == control))
    data = data.where(inside)
    treated = data.text("arm") == arm
    key = _joined([data.text("pair"), data.stratum()])
    both = np.isin(key, key[treated]) & np.isin(key, key[~treated])
    data, treated, key = data.where(both), treated[both], key[both]
    pair, time_s = codes(key), data.number("time_s")
    num_pairs = int(pair.max()) + 1 if len(pair) else 0
    stratum, session = data.stratum(), codes(data.text("session"))
    # Rows are in order of arrival, so the first of each is what np.unique gives the index of.
    first_control = np.unique(pair[~treated], return_index=True)[1]
    begun_s = [np.full(num_pairs, np.inf) for _ in range(2)]
    for begun, rows in zip(begun_s, (treated, ~treated), strict=True):
        np.minimum.at(begun, pair[rows], time_s[rows])
    return Matched(
        strata=stratum[~treated][first_control],
        sessions=session[~treated][first_control],
        first=begun_s[0] < begun_s[1],
        _rows=data,
        _pair=pair,
        _treated=treated,
    )


def incomplete(data: Data, control: str) -> int:
    """How many pairs lack the control or every other arm."""
    data = data.where((data.text("design") == Design.PAIRED) & (data.text("pair") != ""))
    key, is_control = _joined([data.text("pair"), data.stratum()]), data.text("arm") == control
    alone = np.setxor1d(key[is_control], key[~is_control])
    return len(alone)


def _joined(parts: Sequence[Labels]) -> Labels:
    return np.array([_SEPARATOR.join(row) for row in zip(*parts, strict=True)], np.str_)
