"""Randomisation inference: the assignments that could have been drawn are the only chance.

A statistic that is linear in the outcomes is a row of weights per assignment. Under the hypothesis
that the treatment adds tau to every treated unit, outcomes minus tau times the treatment are what
they would have been under any assignment, so tau is rejected if the statistic is farther out than
nearly all those of other assignments. The interval is what is not rejected. Exact for any noise,
drift or dependence, as long as the assignments are drawn as the experiment drew them.

Source: Fisher, The Design of Experiments, 1935; Imbens and Rubin, Causal Inference, 2015, ch. 5.
"""

from __future__ import annotations

import math

import numpy as np

from kvrelay.bench.audit.estimate.base import ALPHA, Floats

_EXACT = 1e-9


def infer(
    y: Floats, treatment: Floats, observed: Floats, others: Floats
) -> tuple[float, float, float, float]:
    """Estimate, low, high and p of an effect that is the same for every unit.

    Args:
        y: outcomes of the units [m].
        treatment: what each was given, 0 or 1 [m].
        observed: weights of the outcomes in the statistic; of the treatment they give 1 [m].
        others: weights under other assignments, drawn as the real one was [k, m].

    With b the statistic, b_k that of assignment k and a_k what its weights give of the real
    treatment, tau = b + t is rejected by k unless |b_k - b a_k - t a_k| >= t. For t > 0 that is so
    up to one t_k, so the ends of the interval are order statistics of the t_k.
    """
    b = float(observed @ y)
    drawn = others @ y
    a = np.clip(others @ treatment, -1.0, 1.0)
    c = drawn - b * a
    c[np.abs(c) <= _EXACT * (abs(b) + float(np.abs(y).max()))] = 0.0
    slack = _EXACT * max(abs(b), 1e-300)
    p = (1 + int((np.abs(drawn) >= abs(b) - slack).sum())) / (len(others) + 1)
    allowed = math.floor(ALPHA * (len(others) + 1) + _EXACT) - 1
    if allowed < 0:
        return b, -math.inf, math.inf, p
    return b, b - _reach(-c, a, allowed), b + _reach(c, a, allowed), p


def _reach(c: Floats, a: Floats, allowed: int) -> float:
    """The largest t at which more than `allowed` assignments are still as far out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # c - t a = t where c >= 0, t a - c = t where c < 0.
        t = np.where(c >= 0.0, c / (1.0 + a), -c / (1.0 - a))
    # The assignment itself and its mirror image are always as far out.
    t = np.where((np.abs(a) >= 1.0 - _EXACT) & (c == 0.0), np.inf, t)
    return float(np.sort(t)[::-1][allowed]) if allowed < len(t) else math.inf
