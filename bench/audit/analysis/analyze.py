"""From rows and a plan to analysis.json: the same bytes for the same rows, whenever it is done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis import checks as look
from kvrelay.bench.audit.analysis import sections
from kvrelay.bench.audit.analysis.data import Data, codes, require
from kvrelay.bench.audit.analysis.effects import covariates, effects
from kvrelay.bench.audit.analysis.graph import identification
from kvrelay.bench.audit.analysis.matched import incomplete, match
from kvrelay.bench.audit.analysis.schema import Design
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.analysis.verdicts import verdicts
from kvrelay.cluster.errors import ConfigError

_DIGITS = 12
_LIBRARIES = ("linearmodels", "networkx", "scipy", "statsmodels")


def analyze(
    data: Data, settings: Settings, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All that an analysis holds.

    Args:
        data: every row, those to be excluded too.
        settings: of the plan.
        others: sections that are made elsewhere: break_even, controls, heterogeneity, keys,
            article.

    Raises:
        DataError: nothing can be estimated: see data.require.
        ConfigError: what computes the statistics is not installed.
    """
    _require_libraries()
    left, excluded = exclude(data, settings)
    require(left, settings.control, settings.primary)
    found = effects(left, settings)
    empty: dict[str, Any] = {name: [] for name in ("controls", "heterogeneity", "keys", "article")}
    empty["break_even"] = {"points": [], "curve": []}
    analysis = {
        "meta": _meta(data, left, excluded, settings),
        "effects": [each.to_dict() for each in found],
        "verdicts": verdicts(left, found, settings),
        "saturation": sections.saturation_rows(left, settings),
        "direct_against_global": sections.direct_against_global(found, settings),
        "quality": sections.quality(left, settings),
        "checks": [_check(each) for each in checks(left, settings)],
        "identification": [{"words": words, "holds": holds} for words, holds in identification()],
        "observational": sections.observed(left, settings),
        **empty,
        **(others or {}),
    }
    return _plain(analysis)


def exclude(data: Data, settings: Settings) -> tuple[Data, dict[str, int]]:
    """The rows that are left, and how many went for each reason; one row goes for one reason."""
    kept = np.ones(len(data), np.bool_)
    counts: dict[str, int] = {}
    for reason in settings.exclusions:
        out = kept & data.flag(reason)
        counts[reason] = int(out.sum())
        kept &= ~out
    left = data.where(kept)
    counts["incomplete_pair"] = incomplete(left, settings.control)
    return left, counts


def checks(left: Data, settings: Settings) -> list[look.Check]:
    """All checks that the rows that are left after exclusions allow."""
    outcome, control = settings.primary[0], settings.control
    known = left.where(look.data_has(left, outcome))
    found = [
        look.sample_ratio(left),
        look.a_a(left, outcome),
        look.carry_over(_settled(known, settings), outcome, control),
        look.manipulation(left, control),
    ]
    arms = sorted(set(left.text("arm").tolist()) - {control})
    relay = "relay" if "relay" in arms else arms[0]
    found += [
        look.negative_control(left, outcome, control, relay),
        look.nothing_shared(left, outcome, control, relay),
        look.parallel_trends(left, outcome, control),
    ]
    only = known.where(known.text("arm") == control)
    found.append(look.placebo(only.number(outcome), look.strata_codes(only), settings.seed))
    found.append(_random_cause(known, relay, settings))
    found.append(look.conservation(left))
    return look.present(found)


def encode(analysis: Mapping[str, Any]) -> bytes:
    """The bytes of analysis.json."""
    text = json.dumps(analysis, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def write(analysis: Mapping[str, Any], file: Path) -> None:
    """Leave the analysis, whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(encode(analysis))
    part.replace(file)


def _require_libraries() -> None:
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"no {', '.join(missing)}: pip install 'kvrelay[audit]'")


def _random_cause(data: Data, relay: str, settings: Settings) -> look.Check | None:
    """On the design with the most rows of those that have an adjusted estimate, else on pairs."""
    outcome = settings.primary[0]
    names = data.text("arm")
    inside = (names == relay) | (names == settings.control)
    for design in (Design.RANDOMISED, Design.SESSIONS):
        rows = data.where(inside & (data.text("design") == design))
        treated = rows.text("arm") == relay
        session = codes(rows.text("session")) if design is Design.SESSIONS else None
        y, x = rows.number(outcome), covariates(rows)
        found = look.random_common_cause(y, treated, x, settings.seed, session)
        if found is not None:
            return found
    pairs = match(data, relay, settings.control)
    one, zero = pairs.outcome(outcome)
    y = np.concatenate([one, zero])
    treated = np.repeat([True, False], len(pairs))
    session = np.tile(np.arange(len(pairs)), 2)
    return look.random_common_cause(y, treated, np.empty((len(y), 0)), settings.seed, session)


def _settled(data: Data, settings: Settings) -> Data:
    """Without the burn-in of switchback blocks."""
    from kvrelay.bench.audit.estimate.switchback import BURN_IN, after_burn_in

    kept = np.ones(len(data), np.bool_)
    is_block = (data.text("design") == Design.SWITCHBACK) & look.data_has(data, "block")
    strata = data.stratum()
    for label in np.unique(strata[is_block]).tolist():
        rows = np.flatnonzero(is_block & (strata == label))
        share = settings.burn_in.get(str(data.text("link")[rows[0]]), BURN_IN)
        kept[rows] = after_burn_in(data.number("block")[rows].astype(np.int64), share)
    return data.where(kept)


def _meta(
    data: Data, left: Data, excluded: Mapping[str, int], settings: Settings
) -> dict[str, Any]:
    arms, counts = np.unique(left.text("arm"), return_counts=True)
    return {
        "plan_sha256": settings.plan_sha256,
        "plan_changed": settings.plan_changed,
        "data_sha256": data.digest(),
        "question": settings.question,
        "seed": settings.seed,
        "rows": len(left),
        "sessions": len(np.unique(left.text("session"))),
        "arms": dict(zip(arms.tolist(), counts.tolist(), strict=True)),
        "excluded": dict(excluded),
        "assumed": list(data.assumed),
        "outcome_primary": list(settings.primary),
    }


def _check(check: look.Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "passed": check.passed,
        "statistic": check.statistic,
        "p": check.p,
        "words": check.words,
    }


def _plain(value: Any) -> Any:
    """Plain JSON types; numbers of twelve digits, so that the last bits of a sum do not show;
    None for what is no number or has no bound."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None
    return value
