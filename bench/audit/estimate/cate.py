"""Effects per pre-registered stratum, and Holm's correction for looking at many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, Labels
from kvrelay.bench.audit.estimate.neyman import difference
from kvrelay.bench.audit.estimate.regression import lin


def by_stratum(
    y: Floats, treated: Bools, strata: Labels, sessions: Ints | None = None
) -> dict[str, Estimate]:
    """The effect within each stratum, by its label; a stratum without both arms is not there, nor
    one with a single row of an arm, or a single session where arms were drawn by session.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].
        strata: the label of each row's stratum [n].
        sessions: number of each row's session, if arms were drawn by session [n].
    """
    found = {}
    for label in np.unique(strata).tolist():
        rows = strata == label
        d = treated[rows]
        units = np.arange(len(d)) if sessions is None else sessions[rows]
        if min(len(np.unique(units[d])), len(np.unique(units[~d]))) < 2:
            continue
        if sessions is None:
            found[label] = difference(y[rows], d)
        else:
            none = np.empty((int(rows.sum()), 0))
            found[label] = lin(y[rows], d, none, sessions[rows])
    return found


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values for which the chance of any false positive among them is kept.

    Those that are None stay so, and do not count. Not by statsmodels: its `multipletests` collects
    garbage at every call, a quarter of a second each. The tests compare with it.

    Source: Holm, Scand. J. Statist. 6, 1979.
    """
    known = [place for place, p in enumerate(p_values) if p is not None]
    corrected = list(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(known, key=lambda i: p_values[i] or 0.0)):
        highest = max(highest, min(1.0, (len(known) - rank) * (p_values[place] or 0.0)))
        corrected[place] = highest
    return corrected


def holm_by_name(estimates: Mapping[str, Estimate]) -> dict[str, float | None]:
    """Holm's p-values of estimates by name."""
    corrected = holm([each.p for each in estimates.values()])
    return dict(zip(estimates, corrected, strict=True))
