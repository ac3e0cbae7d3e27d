"""Are the estimators right? Intervals against the truth of simulated worlds (`make validate`).

Coverage: of 95 % intervals over so many draws of a world, how many hold the truth. False
positives: how often a treatment that does nothing is found to work at 5 %. Planted: whether what
was put into the data to be found is found, and how often it is found where it is not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis import checks, simulate
from kvrelay.bench.audit.analysis.data import Data, Floats, codes
from kvrelay.bench.audit.analysis.effects import arm_probability, covariates
from kvrelay.bench.audit.analysis.matched import match
from kvrelay.bench.audit.analysis.sections import differ
from kvrelay.bench.audit.analysis.simulate import CONTROL, RELAY, Maker
from kvrelay.bench.audit.estimate import (
    aipw,
    cate,
    did,
    equivalence,
    iv,
    neyman,
    observational,
    quantile,
    regression,
    stratified,
)
from kvrelay.bench.audit.estimate import saturation as dose
from kvrelay.bench.audit.estimate import switchback as back
from kvrelay.bench.audit.estimate.base import ALPHA, LEVEL, Estimate

DRAWS, SEED = 1000, 20261130
# What 1,000 draws of a right estimator have to lie between, and false positives at most.
COVERAGE = (0.93, 0.97)
FALSE_AT_MOST = 0.07
FOUND_AT_LEAST = 0.9
# A right estimator misses the bounds of a test less often than this.
MISS = 1e-3

Row = dict[str, Any]
Estimator = Callable[[Data, int], Estimate]
Event = Callable[[np.random.Generator, int], bool]


@dataclass(frozen=True, slots=True)
class Trial:
    """A world, and what is estimated in it: estimand and estimator by name."""

    make: Maker
    estimators: Mapping[str, tuple[str, Estimator]]


def bounds(draws: int, rate: float, miss: float = MISS) -> tuple[int, int]:
    """Counts between which a right estimator lies but for a probability of `miss`."""
    from scipy import stats

    low = int(stats.binom.ppf(miss / 2.0, draws, rate))
    return low, int(stats.binom.isf(miss / 2.0, draws, rate))


def coverage(trials: Sequence[Trial], draws: int, seed: int) -> list[Row]:
    """How often each interval holds the truth; draw i of a trial has the seed [seed, trial, i]."""
    rows = []
    for place, trial in enumerate(trials):
        found: dict[str, list[tuple[float, float, float, float]]] = {
            n: [] for n in trial.estimators
        }
        for draw in range(draws):
            world = trial.make(np.random.default_rng([seed, place, draw]))
            for name, (estimand, estimator) in trial.estimators.items():
                each = estimator(world.data, draw)
                truth = world.truth[estimand]
                found[name].append((truth, each.estimate, each.low, each.high))
        for name, seen in found.items():
            rows.append(_coverage_row(name, np.array(seen)))
    return rows


def _coverage_row(name: str, seen: Floats) -> Row:
    truth, estimate, low, high = seen.T
    covered = int(((low <= truth) & (truth <= high)).sum())
    return {
        "estimator": name,
        "truth": float(truth.mean()),
        "mean_estimate": float(estimate.mean()),
        "sd_estimate": float(estimate.std(ddof=1)),
        "mean_width": float((high - low).mean()),
        "covered": covered,
        "coverage": covered / len(truth),
        "draws": len(truth),
    }


def rates(events: Mapping[str, Event], draws: int, seed: int) -> list[Row]:
    """How often each event comes."""
    rows = []
    for place, (name, event) in enumerate(events.items()):
        seen = sum(event(np.random.default_rng([seed, place, d]), d) for d in range(draws))
        rows.append({"event": name, "seen": seen, "rate": seen / draws, "draws": draws})
    return rows


def _y(data: Data) -> Floats:
    return data.number("ttft_s")


def _treated(data: Data) -> Any:
    return data.text("arm") == RELAY


def _sessions(data: Data) -> Any:
    return codes(data.text("session"))


def _blocks(data: Data) -> Any:
    return data.number("block").astype(np.int64)


def paired_stratum(data: Data, seed: int) -> Estimate:
    """Differences within the sixteen pairs of one stratum."""
    pairs = match(data, RELAY, CONTROL)
    one, zero = pairs.outcome("ttft_s")
    rows = pairs.strata == "same-node/1024/idle/high/en"
    return neyman.within_pairs(one[rows], zero[rows], pairs.sessions[rows])


def paired(data: Data, seed: int) -> Estimate:
    """Differences within pairs over strata."""
    pairs = match(data, RELAY, CONTROL)
    one, zero = pairs.outcome("ttft_s")
    return stratified.stratified_pairs(one, zero, codes(pairs.strata), pairs.sessions)


def difference(data: Data, seed: int) -> Estimate:
    """Neyman's difference of means."""
    return neyman.difference(_y(data), _treated(data))


def post_stratified(data: Data, seed: int) -> Estimate:
    """The difference over strata."""
    return stratified.stratified(_y(data), _treated(data), codes(data.stratum()))


def adjusted(data: Data, seed: int) -> Estimate:
    """Lin's regression with HC2."""
    return regression.lin(_y(data), _treated(data), covariates(data))


def adjusted_clustered(data: Data, seed: int) -> Estimate:
    """Lin's regression with CR2 by session."""
    return regression.lin(_y(data), _treated(data), covariates(data), _sessions(data))


def doubly_robust(data: Data, seed: int) -> Estimate:
    """AIPW with known propensities."""
    treated = _treated(data)
    return aipw.aipw(_y(data), treated, arm_probability(data, treated), covariates(data), seed=seed)


def one_stratum(data: Data, seed: int) -> Estimate:
    """The effect in one pre-registered stratum."""
    found = cate.by_stratum(_y(data), _treated(data), data.stratum())
    return found["100mbit/1024/idle/high/en"]


def at_quantile(share: float, data: Data, seed: int) -> Estimate:
    """A difference of quantiles."""
    return quantile.difference(_y(data), _treated(data), _sessions(data), share, seed)


def instrumented(data: Data, seed: int) -> Estimate:
    """Two-stage least squares."""
    return iv.complier(_y(data), _treated(data), data.flag("completed"))


def enabled(data: Data, seed: int) -> Estimate:
    """Difference in differences."""
    cells = did.panel(_y(data), _treated(data), codes(data.text("unit")), _blocks(data))
    assert cells is not None
    return did.staggered(*cells, seed)


def switched(data: Data, seed: int) -> Estimate:
    """Blocks with randomisation inference."""
    block = _blocks(data)
    kept = back.after_burn_in(block)
    return back.switchback(
        *back.block_means(_y(data)[kept], _treated(data)[kept], block[kept]), seed
    )


def saturated(data: Data, seed: int) -> Estimate:
    """All treated against none."""
    return dose.global_effect(_y(data), data.number("saturation"), _blocks(data))


def spilled(data: Data, seed: int) -> Estimate:
    """How controls move with the share of the treated."""
    return dose.spillover(_y(data), _treated(data), data.number("saturation"), _blocks(data))


def inside_blocks(data: Data, seed: int) -> Estimate:
    """Treated against control within blocks."""
    return dose.direct_effect(_y(data), _treated(data), data.number("saturation"), _blocks(data))


def log_adjusted(data: Data, seed: int) -> Estimate:
    """The policy's log, adjusted for everything that drove it."""
    relayed = data.text("decided") == RELAY
    return observational.adjusted(_y(data), relayed, covariates(data), seed)


TRIALS = (
    Trial(
        simulate.paired,
        {"paired, one stratum": ("1", paired_stratum), "paired, stratified": ("direct", paired)},
    ),
    Trial(simulate.randomised, {"neyman": ("direct", difference)}),
    Trial(
        partial(simulate.randomised, fixed=True),
        {
            "stratified": ("direct", post_stratified),
            "lin_hc2": ("direct", adjusted),
            "cate": ("3", one_stratum),
        },
    ),
    Trial(partial(simulate.randomised, uneven=True), {"aipw": ("direct", doubly_robust)}),
    Trial(simulate.sessions, {"lin_cr2": ("direct", adjusted_clustered)}),
    Trial(
        simulate.heavy_sessions,
        {
            "quantile_p50": ("0.5", partial(at_quantile, 0.5)),
            "quantile_p99": ("0.99", partial(at_quantile, 0.99)),
        },
    ),
    Trial(simulate.noncompliance, {"iv": ("complier", instrumented), "itt": ("itt", difference)}),
    Trial(simulate.staggered, {"did": ("direct", enabled)}),
    Trial(simulate.switchback, {"switchback": ("global", switched)}),
    Trial(
        simulate.saturation,
        {
            "saturation, global": ("global", saturated),
            "saturation, spillover": ("spillover", spilled),
            "saturation, direct": ("direct", inside_blocks),
        },
    ),
    Trial(simulate.logged, {"observational, adjusted": ("direct", log_adjusted)}),
)


def _significant(make: Maker, estimator: Estimator) -> Event:
    def event(rng: np.random.Generator, seed: int) -> bool:
        p = estimator(make(rng).data, seed).p
        return p is not None and p < ALPHA

    return event


def any_stratum(rng: np.random.Generator, seed: int) -> bool:
    """Whether Holm lets any of four strata through that have no effect."""
    data = simulate.randomised(rng, works=False).data
    found = cate.by_stratum(_y(data), _treated(data), data.stratum())
    return any(p is not None and p < ALPHA for p in cate.holm_by_name(found).values())


def equivalent_at_the_margin(rng: np.random.Generator, seed: int) -> bool:
    """Whether a difference as large as the margin is called equivalent."""
    margin = 0.03
    return equivalence.tost(rng.normal(-margin, 0.05, 64), margin).p < ALPHA


def mismatch_seen(lost: float, rng: np.random.Generator, seed: int) -> bool:
    """Whether the check for a sample ratio mismatch fails."""
    found = checks.sample_ratio(simulate.randomised(rng, n=1000, lost=lost).data)
    return found is not None and not found.passed


def carry_over_seen(carry: float, rng: np.random.Generator, seed: int) -> bool:
    """Whether the check for carry-over fails."""
    data = simulate.switchback(rng, carry=carry).data
    found = checks.carry_over(data, "ttft_s", CONTROL)
    return found is not None and not found.passed


def signs_differ(rng: np.random.Generator, seed: int) -> bool:
    """Whether direct and global effect are both significant, of other signs, and said to differ."""
    direct = difference(simulate.mixed(rng).data, seed)
    whole = switched(simulate.switchback(rng).data, seed)
    return direct.high < 0.0 < whole.low and differ(direct, whole)


def naive_is_wrong(rng: np.random.Generator, seed: int) -> bool:
    """Whether the naive interval of the policy's log misses the truth."""
    world = simulate.logged(rng)
    relayed = world.data.text("decided") == RELAY
    return not observational.naive(_y(world.data), relayed).covers(world.truth["direct"])


# A treatment that does nothing: about 5 %.
FALSE_POSITIVES: Mapping[str, Event] = {
    "paired": _significant(partial(simulate.paired, works=False), paired),
    "neyman": _significant(partial(simulate.randomised, works=False), difference),
    "lin_hc2": _significant(partial(simulate.randomised, works=False, fixed=True), adjusted),
    "lin_cr2": _significant(partial(simulate.sessions, works=False), adjusted_clustered),
    "switchback": _significant(partial(simulate.switchback, works=False), switched),
    "holm over strata": any_stratum,
    "tost at the margin": equivalent_at_the_margin,
}
FOUND: Mapping[str, Event] = {
    "sample ratio mismatch": partial(mismatch_seen, 0.3),
    "carry-over": partial(carry_over_seen, 0.8),
    "sign flip on a shared link": signs_differ,
    "naive estimate of a confounded log misses": naive_is_wrong,
}
# Checks fail at 1 %.
FALSE_ALARMS: Mapping[str, Event] = {
    "sample ratio mismatch": partial(mismatch_seen, 0.0),
    "carry-over": partial(carry_over_seen, 0.0),
}


def validate(draws: int = DRAWS, seed: int = SEED) -> Row:
    """All of it, with whether each is as it should be."""
    covered = coverage(TRIALS, draws, seed)
    false = rates(FALSE_POSITIVES, draws, seed + 1)
    found = rates(FOUND, draws, seed + 2)
    alarms = rates(FALSE_ALARMS, draws, seed + 3)
    for row in covered:
        row["passed"] = COVERAGE[0] <= row["coverage"] <= COVERAGE[1]
    for row in false:
        row["passed"] = row["rate"] <= FALSE_AT_MOST
    for row in found:
        row["passed"] = row["rate"] >= FOUND_AT_LEAST
    for row in alarms:
        row["passed"] = row["seen"] <= bounds(draws, checks.ALPHA)[1]
    rows = [*covered, *false, *found, *alarms]
    return {
        "draws": draws,
        "seed": seed,
        "seeds": "draw i of trial t: numpy's default_rng([seed, t, i]); seed + 1, + 2, + 3 for "
        "false positives, planted, false alarms",
        "level": LEVEL,
        "coverage_between": list(COVERAGE),
        "coverage": covered,
        "false_positives": false,
        "planted_found": found,
        "false_alarms": alarms,
        "passed": all(row["passed"] for row in rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate, print a line for each, and leave the figures; 1 if one is not as it should be."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    result = validate(options.draws, options.seed)
    for section, key in (
        ("coverage", "estimator"),
        ("false_positives", "event"),
        ("planted_found", "event"),
        ("false_alarms", "event"),
    ):
        for row in result[section]:
            share = row["coverage"] if section == "coverage" else row["rate"]
            said = "ok" if row["passed"] else "NOT AS IT SHOULD BE"
            print(f"{section:16} {row[key]:42} {share:6.1%}  {said}")
    if options.json:
        rounded = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 6))
        options.json.write_text(json.dumps(rounded, indent=1, sort_keys=True) + "\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
