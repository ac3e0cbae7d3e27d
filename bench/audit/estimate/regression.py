"""Regression-adjusted effects: Lin's estimator, HC2 for requests, CR2 for sessions."""

from __future__ import annotations

import math

import numpy as np

from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, count, students

# Columns that explain less of themselves than this, given those before them, are left out.
_COLLINEAR = 1e-8


def lin(y: Floats, treated: Bools, covariates: Floats, sessions: Ints | None = None) -> Estimate:
    """The effect, adjusted for what was known before: centred covariates, and their products with
    the treatment, so that the adjustment is never worse than none in large samples.

    Requests drawn one by one: HC2. Drawn by session: CR2 with Bell and McCaffrey's degrees of
    freedom, which the usual clustered error understates with some tens of sessions.

    Args:
        y: outcomes [n].
        treated: who was assigned the arm [n].
        covariates: known before treatment [n, k]; k may be 0.
        sessions: number of each row's session, if arms were drawn by session [n].

    Sources: Lin, Ann. Appl. Stat. 7, 2013; MacKinnon and White, J. Econometrics 29, 1985 (HC2);
    Bell and McCaffrey, Survey Methodology 28, 2002; Pustejovsky and Tipton, JBES 36, 2018.
    """
    x = design_matrix(treated, covariates)
    n, sizes = len(y), count(sessions, len(y))
    if sessions is None or sizes == n:
        effect, error, degrees, level = _hc2(y, x)
    else:
        effect, error, degrees = cr2(y, x, sessions, 1)
        level = float(np.linalg.lstsq(x, y, rcond=None)[0][0])
    return students(effect, error, degrees, n, sizes, control_mean=level)


def design_matrix(treated: Bools, covariates: Floats) -> Floats:
    """Columns [1, treated, centred covariates, their products with treated], without those that
    follow from the others."""
    d = treated.astype(np.float64)
    columns = [np.ones(len(d)), d]
    centred = covariates - covariates.mean(axis=0)
    for column in centred.T:
        candidates = [column, column * d]
        columns += [each for each in candidates if _adds(columns, each)]
    return np.column_stack(columns)


def cr2(y: Floats, x: Floats, clusters: Ints, coefficient: int) -> tuple[float, float, float]:
    """Estimate, standard error and degrees of freedom of one coefficient of least squares.

    Residuals of a cluster g are taken times (I - H_gg)^(-1/2), H the hat matrix; the degrees are
    Satterthwaite's for equal independent errors. With clusters of one row this is HC2.

    Args:
        y: outcomes [n].
        x: regressors of full rank [n, k].
        clusters: number of each row's cluster [n].
        coefficient: which column.
    """
    bread = np.linalg.inv(x.T @ x)
    beta = bread @ (x.T @ y)
    residuals = y - x @ beta
    direction = x @ bread[:, coefficient]
    order = np.argsort(clusters, kind="stable")
    edges = np.flatnonzero(np.diff(clusters[order])) + 1
    scores, lengths, moments = [], [], []
    for rows in np.split(order, edges):
        xg = x[rows]
        left = np.eye(len(rows)) - xg @ bread @ xg.T
        values, vectors = np.linalg.eigh(left)
        # A cluster that fits itself has no residual: the generalised inverse leaves it out.
        roots = np.where(values > _COLLINEAR, 1.0 / np.sqrt(np.maximum(values, _COLLINEAR)), 0.0)
        u = vectors @ (roots * (vectors.T @ direction[rows]))
        scores.append(float(u @ residuals[rows]))
        lengths.append(float(u @ u))
        moments.append(xg.T @ u)
    w = np.array(moments)
    gram = np.diag(lengths) - w @ bread @ w.T
    degrees = float(np.trace(gram)) ** 2 / float((gram * gram).sum())
    return float(beta[coefficient]), math.sqrt(float(np.square(scores).sum())), degrees


def clustered_mean(values: Floats, clusters: Ints | None) -> tuple[float, float]:
    """Standard error and degrees of freedom of a mean, by CR2 if there are clusters."""
    n = len(values)
    if clusters is None:
        return float(values.std(ddof=1)) / math.sqrt(n), float(n - 1)
    if len(np.unique(clusters)) < 2:
        return 0.0, 0.0
    _, error, degrees = cr2(values, np.ones((n, 1)), clusters, 0)
    return error, degrees


def _hc2(y: Floats, x: Floats) -> tuple[float, float, float, float]:
    from statsmodels.regression.linear_model import OLS

    fit = OLS(y, x).fit(cov_type="HC2", use_t=True)
    return float(fit.params[1]), float(fit.bse[1]), float(fit.df_resid), float(fit.params[0])


def _adds(columns: list[Floats], candidate: Floats) -> bool:
    size = float(candidate @ candidate)
    if not size > 0.0:
        return False
    basis = np.column_stack(columns)
    rest = candidate - basis @ np.linalg.lstsq(basis, candidate, rcond=None)[0]
    return float(rest @ rest) > _COLLINEAR * size
