"""What engines beside engine A have taken over: `heterogeneity` of the analysis.

Shares are of examples, each of which either keeps to the law or does not; tokens of one example are
not independent. Their intervals are exact: Clopper and Pearson, "The use of confidence or fiducial
limits illustrated in the case of the binomial", 1934. The interval of a ratio of times is Student's
on the logarithms of the ratios within examples.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from scipy import stats

from kvrelay.bench.audit.controls.heterogeneity import Pairing, Trial
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.estimate.base import quantile_t
from kvrelay.bench.errors import BenchError
from kvrelay.bench.report import Row
from kvrelay.bench.stats import paired_ratios

# That an engine which can share nothing is slower with relay is believed at this level, divided by
# how many such engines there are (Bonferroni).
ALPHA = 0.05


def rows(pairings: Sequence[Pairing]) -> list[Row]:
    """One row for each pairing.

    Args:
        pairings: as `heterogeneity.measure` returns them.

    Returns:
        `kind`; `n`, examples; `matching_tokens`, `relayed_tokens` of all examples; `own_tokens`, of
        one whose KV was B's own; `reasons` and how often; `lawful`, the share of examples of which
        all (`same`) or nothing was relayed, and `exact`, of which answer and log probabilities are
        recompute's to the last bit, each with its exact interval; `ttft_ratio`, offered over
        recomputed, with its interval; `p_slower`, one-sided; `expected` in words; `passed`;
        `examples`, the trials.

    Raises:
        BenchError: a pairing has fewer than two trials.
    """
    others = sum(pairing.kind is not Kind.SAME for pairing in pairings)
    return [_row(pairing, ALPHA / max(others, 1)) for pairing in pairings]


def _row(pairing: Pairing, alpha: float) -> Row:
    trials = pairing.trials
    if len(trials) < 2:
        raise BenchError(f"{len(trials)} examples of {pairing.kind}: an interval needs two")
    is_same = pairing.kind is Kind.SAME
    lawful = [t.relayed_tokens == (t.matching_tokens if is_same else 0) for t in trials]
    exact = [t.is_same_answer and t.are_same_logprobs for t in trials]
    ratio, p_slower = _ratio(trials)
    passed = all(lawful) and pairing.own_tokens == trials[0].matching_tokens
    if is_same:
        expected = "all matching tokens relayed"
    else:
        passed = passed and all(exact) and p_slower > alpha
        expected = (
            "0 tokens relayed, though B takes over KV of its own; every answer recompute's to the "
            f"last bit; TTFT not longer (one-sided t test of log ratios, p above {alpha:.3g})"
        )
    return {
        "kind": str(pairing.kind),
        "n": len(trials),
        "matching_tokens": sum(t.matching_tokens for t in trials),
        "relayed_tokens": sum(t.relayed_tokens for t in trials),
        "own_tokens": pairing.own_tokens,
        "reasons": dict(sorted(Counter(t.reason for t in trials).items())),
        "lawful": share(lawful),
        "exact": share(exact),
        "ttft_ratio": ratio,
        "p_slower": p_slower,
        "expected": expected,
        "passed": passed,
        "examples": [asdict(t) for t in trials],
    }


def share(outcomes: Sequence[bool]) -> dict[str, float]:
    """The share of those that are true, and its exact 95 % interval.

    Raises:
        BenchError: there is none.
    """
    if not outcomes:
        raise BenchError("a share of nothing has no interval")
    found = stats.binomtest(sum(outcomes), len(outcomes)).proportion_ci(0.95, method="exact")
    return {
        "estimate": sum(outcomes) / len(outcomes),
        "low": float(found.low),
        "high": float(found.high),
    }


def _ratio(trials: Sequence[Trial]) -> tuple[dict[str, float], float]:
    """The geometric mean of TTFT, offered over recomputed; and p of its not being above 1."""
    ratios = paired_ratios([t.ttft_s for t in trials], [t.recompute_ttft_s for t in trials])
    logs = [math.log(ratio) for ratio in ratios]
    mean, degrees = statistics.fmean(logs), len(logs) - 1
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = quantile_t(degrees) * error
    p = float(stats.t.sf(mean / error, degrees)) if error else float(mean <= 0)
    bounds = {"estimate": mean, "low": mean - reach, "high": mean + reach}
    return {name: math.exp(value) for name, value in bounds.items()}, p
