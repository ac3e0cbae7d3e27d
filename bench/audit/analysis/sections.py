"""Sections of an analysis beside effects: quality, saturation, direct against global, the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis import checks as look
from kvrelay.bench.audit.analysis.data import Data, codes
from kvrelay.bench.audit.analysis.effects import Effect, covariates
from kvrelay.bench.audit.analysis.matched import match
from kvrelay.bench.audit.analysis.schema import QUALITY, Design
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.estimate import equivalence, observational, saturation
from kvrelay.bench.audit.estimate.base import Estimate
from kvrelay.bench.audit.estimate.cate import holm
from kvrelay.bench.audit.estimate.stratified import stratified_pairs

_ALPHA = 0.05
# Only worse counts: an arm that answers more questions right is not at fault.
_ONE_SIDED = frozenset({"correct"})
POLICY, RELAY = "policy", "relay"


def quality(data: Data, settings: Settings) -> list[dict[str, Any]]:
    """Equivalence of each quality measure with a margin, by arm, over all strata and in each.

    Holm's correction is over the strata and arms of a measure, and over its arms as a whole.
    """
    found: list[tuple[str, str, str | None, equivalence.Equivalence]] = []
    arms = sorted(set(data.text("arm").tolist()) - {settings.control})
    for measure in QUALITY:
        margin = settings.margin(measure)
        if margin is None or not data.has(measure):
            continue
        test = equivalence.non_inferior if measure in _ONE_SIDED else equivalence.tost
        for arm in arms:
            pairs = match(data, arm, settings.control)
            one, zero = pairs.outcome(measure)
            known = np.isfinite(one - zero)
            if not known.any():
                continue
            found.append((measure, arm, None, test((one - zero)[known], margin)))
            for label in np.unique(pairs.strata[known]).tolist():
                rows = known & (pairs.strata == label)
                if int(rows.sum()) >= equivalence.MIN_N:
                    found.append((measure, arm, label, test((one - zero)[rows], margin)))
    rows_out = []
    corrected = _holm_of([(m, s is None) for m, _, s, _ in found], [e.p for *_, e in found])
    for (measure, arm, stratum, each), p in zip(found, corrected, strict=True):
        rows_out.append(
            {
                "measure": measure,
                "arm": arm,
                "stratum": stratum,
                "difference": each.difference,
                "low90": each.low90,
                "high90": each.high90,
                "margin": each.margin,
                "p_holm": p,
                "equivalent": p < _ALPHA,
                "n": each.n,
            }
        )
    return rows_out


def saturation_rows(data: Data, settings: Settings) -> list[dict[str, Any]]:
    """Dose and response of the primary outcomes in each stratum of the saturation design."""
    rows = data.where(data.text("design") == Design.SATURATION)
    strata, found = rows.stratum(), []
    for label in np.unique(strata).tolist():
        for outcome in filter(rows.has, settings.primary):
            cell = rows.where((strata == label) & look.data_has(rows, outcome, "saturation"))
            doses = saturation.doses(
                cell.number(outcome),
                cell.text("arm") != settings.control,
                cell.number("saturation"),
                cell.number("block").astype(np.int64),
            )
            for dose in doses:
                found.append(
                    {
                        "stratum": label,
                        "outcome": outcome,
                        "share": dose.share,
                        "blocks": dose.blocks,
                        **_bounds("control", dose.control),
                        **_bounds("treated", dose.treated),
                    }
                )
    return found


def direct_against_global(found: Sequence[Effect], settings: Settings) -> list[dict[str, Any]]:
    """Per link and arm: what a relay does to its request, beside what relaying does to all.

    They differ if their distance exceeds both half intervals taken together as independent errors.
    """
    outcome = settings.primary[0]
    rows = []
    on = [each for each in found if each.outcome == outcome and each.stratum is not None]
    for whole in (each for each in on if each.estimand == "global"):
        link = str(whole.stratum).split("/", 1)[0]
        same = [
            each
            for each in on
            if each.estimand == "direct" and each.arm == whole.arm and _comparable(each, whole)
        ]
        if not same:
            continue
        direct = min(same, key=_nearness)
        rows.append(
            {
                "link": link,
                "arm": whole.arm,
                "stratum": whole.stratum,
                "direct": direct.to_dict(),
                "global": whole.to_dict(),
                "differ": differ(direct.found, whole.found),
            }
        )
    return rows


def differ(one: Estimate, other: Estimate) -> bool:
    """Whether two independent estimates are farther apart than chance would have them."""
    reach = math.hypot((one.high - one.low) / 2.0, (other.high - other.low) / 2.0)
    return bool(abs(one.estimate - other.estimate) > reach)


def observed(data: Data, settings: Settings) -> dict[str, Any] | None:
    """The policy's own log beside the truth: naive, adjusted, and randomised on the same strata.

    None if the log has not both decisions, or there is no randomised relay to compare with.
    """
    outcome = settings.primary[0]
    log = data.where((data.text("decided") != "") & look.data_has(data, outcome))
    relayed = log.text("decided") == RELAY
    pairs = match(data, RELAY, settings.control)
    one, zero = pairs.outcome(outcome)
    known = np.isfinite(one - zero) & np.isin(pairs.strata, log.stratum())
    if min(int(relayed.sum()), int((~relayed).sum())) < 2 or int(known.sum()) < 4:
        return None
    y, x = log.number(outcome), covariates(log)
    session = codes(log.text("session"))
    naive = observational.naive(y, relayed, session)
    adjusted = observational.adjusted(y, relayed, x, settings.seed, session)
    truth = stratified_pairs(
        one[known], zero[known], codes(pairs.strata[known]), pairs.sessions[known]
    )
    repaired = (
        adjusted.note
        if math.isnan(adjusted.estimate)
        else f"adjusted for what was logged by {adjusted.estimate:+.3f} s"
    )
    words = (
        f"By its own log relay changes {outcome} by {naive.estimate:+.3f} s ({repaired}); drawn by "
        f"lot in the same strata it is {truth.estimate:+.3f} s."
    )
    parts = {"naive": naive, "adjusted": adjusted, "randomised": truth}
    found: dict[str, Any] = {
        name: Effect(
            "direct",
            "observational",
            Design.PAIRED if name == "randomised" else "log",
            outcome,
            RELAY,
            settings.control,
            None,
            each,
        ).to_dict()
        for name, each in parts.items()
    }
    found["randomised"]["estimator"] = "stratified"
    return {**found, "words": words}


def _comparable(direct: Effect, whole: Effect) -> bool:
    """Of the same stratum, or at least on the same link and under the same load."""
    one, other = str(direct.stratum).split("/"), str(whole.stratum).split("/")
    if one == other:
        return True
    return len(one) == len(other) == 5 and (one[0], *one[2:]) == (other[0], *other[2:])


def _nearness(direct: Effect) -> tuple[int, str]:
    order = (Design.RANDOMISED, Design.SATURATION, Design.SESSIONS, Design.PAIRED)
    places = {str(design): place for place, design in enumerate(order)}
    return places.get(direct.design, len(order)), direct.estimator


def _bounds(side: str, mean: Estimate) -> dict[str, float]:
    return {f"mean_{side}": mean.estimate, f"low_{side}": mean.low, f"high_{side}": mean.high}


def _holm_of(families: Sequence[Any], p_values: Sequence[float]) -> list[float]:
    corrected = list(p_values)
    for family in set(families):
        places = [place for place, each in enumerate(families) if each == family]
        for place, p in zip(places, holm([p_values[i] for i in places]), strict=True):
            corrected[place] = 1.0 if p is None else p
    return corrected
