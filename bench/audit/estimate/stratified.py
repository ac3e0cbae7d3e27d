"""The effect over strata, each weighted by its share of the rows."""

from __future__ import annotations

import math

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, students
from kvrelay.bench.audit.estimate.neyman import nothing, welch
from kvrelay.bench.audit.estimate.regression import clustered_mean


def stratified(y: Floats, treated: Bools, strata: Ints) -> Estimate:
    """Post-stratified difference: sum over strata of (N_s / N) (mean1_s - mean0_s).

    The variance is the sum of (N_s/N)^2 (s1_s^2/n1_s + s0_s^2/n0_s), with Satterthwaite's
    degrees of freedom. A stratum in which an arm has fewer than two rows is left out, and said so.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].
        strata: number of each row's stratum [n].

    Source: Miratrix, Sekhon and Yu, J. R. Statist. Soc. B 75, 2013.
    """
    cells = [(y[treated & (strata == s)], y[~treated & (strata == s)]) for s in np.unique(strata)]
    whole = [cell for cell in cells if min(map(len, cell)) >= 2]
    total = sum(len(one) + len(zero) for one, zero in whole)
    if not whole:
        return nothing(len(y), "no stratum has two rows in each arm")
    effect = mean = mean_variance = 0.0
    variances: list[float] = []
    degrees: list[float] = []
    for one, zero in whole:
        share = (len(one) + len(zero)) / total
        effect += share * float(one.mean() - zero.mean())
        mean += share * float(zero.mean())
        for values in (one, zero):
            variances.append(share * share * float(values.var(ddof=1)) / len(values))
            degrees.append(len(values) - 1)
        mean_variance += variances[-1]
    error = math.sqrt(sum(variances))
    relative_error = math.nan
    if mean > 0.0:
        treated_variance = sum(variances) - mean_variance
        ratio = 1.0 + effect / mean
        relative_error = math.sqrt(treated_variance + ratio * ratio * mean_variance) / mean
    found = students(
        effect,
        error,
        welch(variances, degrees),
        total,
        total,
        control_mean=mean,
        relative_error=relative_error,
    )
    left_out = len(cells) - len(whole)
    return found.noted(f"{left_out} strata without both arms left out") if left_out else found


def stratified_pairs(treated: Floats, control: Floats, strata: Ints, sessions: Ints) -> Estimate:
    """The same over pairs: sum over strata of (N_s / N) times the mean difference within pairs.

    Pairs of one session are not independent: where there are such, a stratum's error is clustered.

    Args:
        treated, control: outcomes of the pairs [n].
        strata: number of each pair's stratum [n].
        sessions: number of each pair's session [n].
    """
    groups = [strata == s for s in np.unique(strata)]
    whole = [group for group in groups if len(np.unique(sessions[group])) >= 2]
    if not whole:
        return nothing(len(treated), "no stratum has pairs of two sessions")
    inside = np.logical_or.reduce(whole)
    n = int(inside.sum())
    differences = treated - control
    effect, mean = float(differences[inside].mean()), float(control[inside].mean())
    share = effect / mean if mean > 0.0 else math.nan
    variances: list[float] = []
    degrees: list[float] = []
    residual = 0.0
    for group in whole:
        weight = (int(group.sum()) / n) ** 2
        units = sessions[group]
        clusters = units if len(np.unique(units)) < len(units) else None
        error, freedom = clustered_mean(differences[group], clusters)
        variances.append(weight * error * error)
        degrees.append(freedom)
        residual += (
            weight * clustered_mean((differences - share * control)[group], clusters)[0] ** 2
        )
    error = math.sqrt(sum(variances))
    relative_error = math.sqrt(residual) / mean if mean > 0.0 else math.nan
    seen = len(np.unique(sessions[inside]))
    found = students(
        effect,
        error,
        welch(variances, degrees),
        n,
        seen,
        control_mean=mean,
        relative_error=relative_error,
    )
    left_out = len(groups) - len(whole)
    return found.noted(f"{left_out} strata with one session left out") if left_out else found
