"""Effects of an audit: every design by the estimators that fit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis.data import Bools, Data, Floats, Ints, codes
from kvrelay.bench.audit.analysis.matched import match
from kvrelay.bench.audit.analysis.schema import COVARIATES, Design
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.estimate import aipw, cate, did, iv, neyman, quantile, regression
from kvrelay.bench.audit.estimate import saturation as dose
from kvrelay.bench.audit.estimate import stratified as strat
from kvrelay.bench.audit.estimate import switchback as back
from kvrelay.bench.audit.estimate.base import Estimate

QUANTILES = {"quantile_p50": 0.5, "quantile_p99": 0.99}
MIN_PAIRS = 4
# Rows for each covariate: with fewer, adjustment adds more noise than it takes.
_ROWS_PER_COVARIATE = 20


@dataclass(frozen=True, slots=True)
class Effect:
    """An estimate and what it is of.

    Attributes:
        estimand: direct, itt, complier, global, spillover or quantile.
        stratum: None over all.
        p_holm: corrected for the cells of the same design, estimator and outcome.
    """

    estimand: str
    estimator: str
    design: str
    outcome: str
    arm: str
    control: str
    stratum: str | None
    found: Estimate
    p_holm: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in an analysis."""
        found = self.found
        share, share_low, share_high = found.relative()
        return {
            "estimand": self.estimand,
            "estimator": self.estimator,
            "design": self.design,
            "outcome": self.outcome,
            "arm": self.arm,
            "control": self.control,
            "stratum": self.stratum,
            "estimate": found.estimate,
            "low": found.low,
            "high": found.high,
            "relative": share,
            "relative_low": share_low,
            "relative_high": share_high,
            "p": found.p,
            "p_holm": self.p_holm,
            "n": found.n,
            "sessions": found.sessions,
            "note": found.note or None,
        }


def effects(data: Data, settings: Settings) -> list[Effect]:
    """All that the data allow, by design, outcome and arm; rows without the outcome are left out.

    Args:
        data: rows that are left after exclusions.
        settings: of the plan.
    """
    found: list[Effect] = []
    names = data.text("arm")
    outcomes = dict.fromkeys([*settings.primary, *settings.secondary, "tokens_per_s"])
    for design, estimators in _DESIGNS.items():
        inside = data.text("design") == design
        for arm in sorted(set(names[inside].tolist()) - {settings.control}):
            rows = data.where(inside & ((names == arm) | (names == settings.control)))
            for outcome in filter(rows.has, outcomes):
                known = rows.where(np.isfinite(rows.number(outcome)))
                found += [
                    replace(each, design=str(design), outcome=outcome, arm=arm)
                    for each in estimators(known, arm, outcome, settings)
                ]
    return with_holm([each for each in found if not math.isnan(each.found.estimate)])


def with_holm(found: Sequence[Effect]) -> list[Effect]:
    """Effects with Holm's p-values: strata and arms of one design, estimator and outcome are a
    family, and so are the effects over all strata."""
    families: dict[tuple[Any, ...], list[int]] = {}
    for place, each in enumerate(found):
        key = (each.estimand, each.estimator, each.design, each.outcome, each.stratum is None)
        families.setdefault(key, []).append(place)
    corrected = list(found)
    for places in families.values():
        for place, p in zip(places, cate.holm([found[i].found.p for i in places]), strict=True):
            corrected[place] = replace(found[place], p_holm=p)
    return corrected


def covariates(data: Data) -> Floats:
    """What was known before treatment, every row having a value [n, k], k being small beside n.

    First the strata, all but one, of which there are enough rows; then the prediction of the
    control's TTFT, the best of the covariates; then the others.
    """
    strata = codes(data.stratum())
    large = np.flatnonzero(np.bincount(strata) >= _ROWS_PER_COVARIATE)[1:]
    columns = [(strata == number).astype(np.float64) for number in large.tolist()]
    order = sorted(COVARIATES, key=lambda name: name != "predicted_recompute_s")
    known = [data.number(name) for name in order if name in data.columns]
    whole = [each for each in known if len(each) and np.isfinite(each).all() and each.std() > 0.0]
    columns += whole[: max(1, len(data) // _ROWS_PER_COVARIATE - len(columns))]
    return np.column_stack(columns) if columns else np.empty((len(data), 0))


def arm_probability(data: Data, treated: Bools) -> Floats:
    """The chance that a row had of being treated, given that it was in one of the two arms.

    With p the propensity of the arm that it got, the chance is that of the arm over those of both,
    each the mean over the rows of its stratum; in a stratum without one of them it is a half.
    """
    p, strata = data.number("propensity"), codes(data.stratum())
    size = int(strata.max()) + 1 if len(strata) else 0
    means = []
    for rows in (treated, ~treated):
        counts = np.bincount(strata[rows], minlength=size)
        sums = np.bincount(strata[rows], p[rows], size)
        means.append(np.divide(sums, counts, out=np.zeros(size), where=counts > 0))
    one, both = means[0], means[0] + means[1]
    share = np.divide(one, both, out=np.full(size, 0.5), where=(one > 0) & (means[1] > 0))
    return np.asarray(share[strata])


def _paired(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    pairs = match(data, arm, settings.control)
    one, zero = pairs.outcome(outcome)
    new = _factory(settings)
    if len(pairs) < MIN_PAIRS:
        return
    for label in np.unique(pairs.strata).tolist():
        rows = pairs.strata == label
        if int(rows.sum()) >= MIN_PAIRS:
            found = neyman.within_pairs(one[rows], zero[rows], pairs.sessions[rows])
            yield new("direct", "neyman", found, label)
    whole = strat.stratified_pairs(one, zero, codes(pairs.strata), pairs.sessions)
    yield new("direct", "stratified", whole)
    if outcome not in settings.primary:
        return
    treated = np.repeat([True, False], len(pairs))
    clusters = np.tile(pairs.sessions, 2)
    yield from _quantiles(np.concatenate([one, zero]), treated, clusters, settings)
    if data.has("completed"):
        done, before = pairs.outcome("completed")
        if float((done - before).mean()) < 1.0:
            found = iv.complier_pairs(one - zero, done - before, pairs.sessions)
            yield new("complier", "iv", found)


def _randomised(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    y, treated = data.number(outcome), data.text("arm") == arm
    strata, new = data.stratum(), _factory(settings)
    for label, each in cate.by_stratum(y, treated, strata).items():
        yield new("direct", "neyman", each, label)
    yield new("direct", "neyman", neyman.difference(y, treated))
    yield new("direct", "stratified", strat.stratified(y, treated, codes(strata)))
    if outcome not in settings.primary or min(treated.sum(), (~treated).sum()) < MIN_PAIRS:
        return
    x = covariates(data)
    yield new("direct", "lin_hc2", regression.lin(y, treated, x))
    probability = arm_probability(data, treated)
    yield new("direct", "aipw", aipw.aipw(y, treated, probability, x, seed=settings.seed))
    yield from _quantiles(y, treated, codes(data.text("session")), settings)
    yield from _complier(y, treated, _completed(data), settings)


def _sessions(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    if outcome == "session_s":  # of a session, and on each of its rows
        once = np.zeros(len(data), np.bool_)
        once[np.unique(data.text("session"), return_index=True)[1]] = True
        data = data.where(once)
    y, treated = data.number(outcome), data.text("arm") == arm
    session, strata, new = codes(data.text("session")), data.stratum(), _factory(settings)
    for label, each in cate.by_stratum(y, treated, strata, session).items():
        yield new("direct", "lin_hc2", each.noted("CR2 by session"), label)
    means, arms = back.block_means(y, treated, session)
    yield new("direct", "neyman", neyman.difference(means, arms).noted("means of sessions"))
    if outcome not in settings.primary or min(arms.sum(), (~arms).sum()) < MIN_PAIRS:
        return
    x = covariates(data)
    adjusted = regression.lin(y, treated, x, session).noted("CR2 by session")
    yield new("direct", "lin_hc2", adjusted)
    probability = arm_probability(data, treated)
    yield new(
        "direct",
        "aipw",
        aipw.aipw(y, treated, probability, x, seed=settings.seed, sessions=session),
    )
    yield from _quantiles(y, treated, session, settings)
    yield from _complier(means, arms, _completed_any(data, session), settings)


def _switchback(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    strata = data.stratum()
    for label in np.unique(strata).tolist():
        rows = data.where(strata == label)
        block = rows.number("block").astype(np.int64)
        share = settings.burn_in.get(str(rows.text("link")[0]), back.BURN_IN)
        kept = back.after_burn_in(block, share)
        y, treated = rows.number(outcome), rows.text("arm") == arm
        means, arms = back.block_means(y[kept], treated[kept], block[kept])
        found = back.switchback(means, arms, settings.seed)
        yield _factory(settings)("global", "switchback", found, label)


def _saturation(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    strata, new = data.stratum(), _factory(settings)
    for label in np.unique(strata).tolist():
        rows = data.where(strata == label)
        y, treated = rows.number(outcome), rows.text("arm") == arm
        share, block = rows.number("saturation"), rows.number("block").astype(np.int64)
        yield new("global", "neyman", dose.global_effect(y, share, block), label)
        yield new("spillover", "lin_hc2", dose.spillover(y, treated, share, block), label)
        yield new("direct", "neyman", dose.direct_effect(y, treated, share, block), label)


def _staggered(data: Data, arm: str, outcome: str, settings: Settings) -> Iterator[Effect]:
    y, treated = data.number(outcome), data.text("arm") == arm
    period = data.number("block").astype(np.int64)
    cells = did.panel(y, treated, codes(data.text("unit")), period)
    if cells is not None:
        yield _factory(settings)("direct", "did", did.staggered(*cells, settings.seed))


def _quantiles(y: Floats, treated: Bools, clusters: Any, settings: Settings) -> Iterator[Effect]:
    for name, share in QUANTILES.items():
        found = quantile.difference(y, treated, clusters, share, settings.seed)
        yield _factory(settings)("quantile", name, found)


def _complier(
    y: Floats, treated: Bools, completed: Bools | None, settings: Settings
) -> Iterator[Effect]:
    """Intention to treat and the effect of completion; nothing where all that are treated did."""
    if completed is None or completed[treated].all():
        return
    none, new = np.empty((len(y), 0)), _factory(settings)
    yield new("itt", "lin_hc2", regression.lin(y, treated, none))
    yield new("complier", "iv", iv.complier(y, treated, completed))


def _completed(data: Data) -> Bools | None:
    return data.flag("completed") if "completed" in data.columns else None


def _completed_any(data: Data, session: Ints) -> Bools | None:
    """Of each session, whether any of its relays did: turns after that find the KV at hand, so
    that completion is a session's, as its arm is."""
    completed = _completed(data)
    return None if completed is None else np.bincount(session, completed) > 0


def _factory(settings: Settings) -> Callable[..., Effect]:
    def new(estimand: str, estimator: str, found: Estimate, stratum: str | None = None) -> Effect:
        return Effect(estimand, estimator, "", "", "", settings.control, stratum, found)

    return new


_DESIGNS = {
    Design.PAIRED: _paired,
    Design.RANDOMISED: _randomised,
    Design.SESSIONS: _sessions,
    Design.SWITCHBACK: _switchback,
    Design.SATURATION: _saturation,
    Design.STAGGERED: _staggered,
}
