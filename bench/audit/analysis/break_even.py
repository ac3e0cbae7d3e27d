"""The break-even surface: over length, link and load, in seconds and without units.

    pairs -> the effect in each cell, with a band over all cells at once      bands.py
          -> for each link and load the length from which relay pays          crossings.py
          -> for each load one law for all links, in tokens and ratios        law.py

A cell is (link, tokens, load); strata that differ in something else count the same in it. The
section `break_even` of analysis.json is made here:

    points   of each cell: the effect, the band, and its place on the map, `wire_over_prefill`
    curve    rows with `link`: as measured; rows with `ratio`: the law's, at that wire over prefill
    laws     by load, see `Law.to_dict`; or why there is none
    fixed_cost_tokens   the law's when idle
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis.bands import DRAWS, Band, simultaneous_band
from kvrelay.bench.audit.analysis.crossings import Pays, find_crossing
from kvrelay.bench.audit.analysis.law import Law, Mean, fit_law, tokens_from
from kvrelay.bench.audit.analysis.pairs import Pair

Row = dict[str, Any]
BAND = "simultaneous 95 %"
IDLE = "idle"
_RATIOS = 9
_LEAST_RATIO = 1e-3
_LAW_DRAWS = 4000
_LOW, _HIGH = 0.025, 0.975


def break_even(pairs: Sequence[Pair], seed: int, draws: int = DRAWS) -> Row:
    """The section `break_even` of an analysis, in plain JSON types, None where nothing is known.

    Args:
        pairs: of the arm whose break-even is asked for; best those with something to relay. In any
            order: the result is the same.
        seed: of the band and of the law's intervals.
        draws: of the bootstrap.
    """
    cells: dict[tuple[str, str, int], list[Pair]] = defaultdict(list)
    for pair in sorted(pairs, key=_order):
        cells[pair.load, pair.link, pair.tokens].append(pair)
    if not cells:
        return {"points": [], "curve": [], "laws": [], "fixed_cost_tokens": None, "band": BAND}
    ordered = dict(sorted(cells.items()))
    band = _band(list(ordered.values()), seed, draws)
    means = [_mean(each) for each in ordered.values()]
    points = [
        _point(each, mean, band, index)
        for index, (each, mean) in enumerate(zip(ordered.values(), means, strict=True))
    ]
    laws: dict[str, Law] = {}
    law_rows: list[Row] = []
    for load in dict.fromkeys(point["load"] for point in points):
        here = [mean for mean, row in zip(means, points, strict=True) if row["load"] == load]
        try:
            laws[load] = fit_law(here)
            law_rows.append(law_row(load, laws[load], seed))
        except ValueError as error:
            law_rows.append({"load": load, "fitted": False, "words": f"no law: {error}"})
    by_link = groupby(points, lambda point: (point["load"], point["link"]))
    curve = [_curve(list(each)) for _, each in by_link]
    for load, law in laws.items():
        curve += _law_curve(load, law, seed)
    first = laws.get(IDLE) or next(iter(laws.values()), None)
    return {
        "points": points,
        "curve": curve,
        "laws": law_rows,
        "fixed_cost_tokens": first.fixed_cost_tokens if first else None,
        "band": BAND,
    }


def law_row(load: str, law: Law, seed: int) -> Row:
    """A law as a row: its coefficients, what follows from them, and words."""
    drawn = law.drawn(_LAW_DRAWS, seed)
    fixed = drawn[:, 0] / law.typical_prefill_s_per_token
    low, high = (float(each) for each in np.quantile(fixed, (_LOW, _HIGH)))
    critical = law.saved_factor / law.wire_factor if law.wire_factor > 0 else None
    words = (
        f"{_formula(law, critical)}, r being wire over prefill; fitted to "
        f"{law.tokens[0]:,.0f} to {law.tokens[1]:,.0f} tokens and r of "
        f"{law.wire_over_prefill[0]:.3g} to {law.wire_over_prefill[1]:.3g}, within "
        f"{100 * law.misfit:.0f} % of the prefill saved"
    )
    return {
        "load": load,
        "fitted": True,
        **law.to_dict(),
        "fixed_cost_tokens": law.fixed_cost_tokens,
        "fixed_cost_tokens_low": low,
        "fixed_cost_tokens_high": high,
        "critical_wire_over_prefill": critical,
        "words": words,
    }


def _formula(law: Law, critical: float | None) -> str:
    if law.fixed_s > 0:
        slope = f"({law.saved_factor:.2f} - {law.wire_factor:.2f} r)"
        return f"relay pays from {law.fixed_cost_tokens:,.0f} / {slope} tokens on"
    where = "" if critical is None else f" while r is below {critical:.2f}"
    return f"relay has no fixed cost, and pays at any length{where}"


def _order(pair: Pair) -> tuple[Any, ...]:
    # NaN has no order of its own; sums must not depend on that of the rows.
    rest = (pair.relayed_tokens, pair.wire_s, pair.saved_s)
    return (pair.load, pair.link, pair.tokens, pair.kind, pair.session, pair.effect_s, str(rest))


def _band(cells: Sequence[Sequence[Pair]], seed: int, draws: int) -> Band:
    rows = [(index, pair) for index, each in enumerate(cells) for pair in each]
    sessions = np.unique([pair.session for _, pair in rows], return_inverse=True)[1]
    kinds = np.unique([pair.kind for _, pair in rows], return_inverse=True)[1]
    values = np.array([pair.effect_s for _, pair in rows])
    places = np.array([index for index, _ in rows], np.int64)
    return simultaneous_band(values, places, kinds, sessions, seed=seed, draws=draws)


def _mean(pairs: Sequence[Pair]) -> Mean:
    """Means of a cell; of the pairs for which the seconds are known."""
    known = [pair for pair in pairs if math.isfinite(pair.wire_s) and math.isfinite(pair.saved_s)]
    if not known:
        return Mean(*[math.nan] * 4)
    return Mean(
        _over_kinds((pair.kind, pair.relayed_tokens) for pair in known),
        _over_kinds((pair.kind, pair.effect_s) for pair in known),
        _over_kinds((pair.kind, pair.wire_s) for pair in known),
        _over_kinds((pair.kind, pair.saved_s) for pair in known),
    )


def _over_kinds(values: Iterable[tuple[str, float]]) -> float:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, value in values:
        by_kind[kind].append(value)
    return fmean(fmean(each) for each in by_kind.values())


def _point(pairs: Sequence[Pair], mean: Mean, band: Band, index: int) -> Row:
    first = pairs[0]
    placed = mean.tokens > 0 and mean.saved_s > 0
    return {
        "link": first.link,
        "tokens": first.tokens,
        "load": first.load,
        "estimate": float(band.means[index]),
        "low": _known(band.lows[index]),
        "high": _known(band.highs[index]),
        "pairs": len(pairs),
        "sessions": len({pair.session for pair in pairs}),
        "relayed_tokens": fmean(pair.relayed_tokens for pair in pairs),
        "wire_s_per_token": mean.wire_s / mean.tokens if placed else None,
        "prefill_s_per_token": mean.saved_s / mean.tokens if placed else None,
        "wire_over_prefill": mean.wire_s / mean.saved_s if placed else None,
    }


def _curve(points: Sequence[Row]) -> Row:
    """The break-even of one link under one load, as measured."""
    columns = [[point[name] for point in points] for name in ("tokens", "estimate", "low", "high")]
    bounds = [[math.nan if each is None else each for each in column] for column in columns[2:]]
    found = find_crossing(columns[0], columns[1], *bounds)
    ratios = [p["wire_over_prefill"] for p in points if p["wire_over_prefill"] is not None]
    return {
        "link": points[0]["link"],
        "load": points[0]["load"],
        "wire_over_prefill": median(ratios) if ratios else None,
        "tokens_at_break_even": found.tokens,
        "low": found.low,
        "high": found.high,
        "pays": str(found.pays),
        "certain": found.certain,
        "words": found.words,
    }


def _law_curve(load: str, law: Law, seed: int) -> list[Row]:
    """The law's break-even along ratios within those that it was fitted to."""
    least, most = max(law.wire_over_prefill[0], _LEAST_RATIO), law.wire_over_prefill[1]
    drawn = law.drawn(_LAW_DRAWS, seed)
    rows = []
    for ratio in np.geomspace(least, max(most, least), _RATIOS).tolist():
        prefill = law.typical_prefill_s_per_token
        gain = prefill * (law.saved_factor - law.wire_factor * ratio)
        tokens = float(tokens_from(np.array(law.fixed_s), np.array(gain), np.array(0.0)))
        gains = prefill * (drawn[:, 2] - drawn[:, 1] * ratio)
        low, high = interval(tokens_from(drawn[:, 0], gains, np.array(0.0)))
        pays = Pays.NEVER if math.isinf(tokens) else Pays.FROM if tokens else Pays.ALWAYS
        rows.append(
            {
                "ratio": ratio,
                "load": load,
                "tokens_at_break_even": tokens if pays is Pays.FROM else None,
                "low": low,
                "high": high,
                "pays": str(pays),
                "extrapolated": pays is Pays.FROM and not law.tokens[0] <= tokens <= law.tokens[1],
            }
        )
    return rows


def interval(drawn: Any) -> tuple[float | None, float | None]:
    """95 % of drawn lengths lie between these; None where that has no end.

    A length of 0 is one from which it pays at once, infinity one at which it never does.
    """
    ordered = np.sort(np.asarray(drawn, np.float64))
    low = float(ordered[int(_LOW * (len(ordered) - 1))])
    high = float(ordered[math.ceil(_HIGH * (len(ordered) - 1))])
    return _known(low), _known(high)


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
