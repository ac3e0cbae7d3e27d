"""What the policy's own log says, which is not what relay does.

The policy relays where it expects to win: where prompts are long, where links are idle. So relayed
requests differ from the others in more than the relay. The naive difference shows how wrong that
is; the adjusted one, how much of it what was logged can repair. Both stand beside the randomised.
"""

from __future__ import annotations

import warnings

import numpy as np

from kvrelay.bench.audit.estimate.aipw import aipw
from kvrelay.bench.audit.estimate.base import Bools, Estimate, Floats, Ints, count
from kvrelay.bench.audit.estimate.neyman import difference, nothing
from kvrelay.bench.audit.estimate.regression import lin

# Estimated propensities are kept away from 0 and 1: weights beyond 50 are noise.
_CLIP = 0.02
_MIN_ROWS = 20


def naive(y: Floats, relayed: Bools, sessions: Ints | None = None) -> Estimate:
    """Mean of what the policy relayed, less mean of what it recomputed.

    Args:
        y: outcomes [n].
        relayed: what the policy decided [n].
        sessions: number of each row's session, if some have several: the error is theirs then [n].
    """
    if count(sessions, len(y)) == len(y):
        return difference(y, relayed)
    return lin(y, relayed, np.empty((len(y), 0)), sessions)


def adjusted(
    y: Floats,
    relayed: Bools,
    covariates: Floats,
    seed: int,
    sessions: Ints | None = None,
) -> Estimate:
    """The same by AIPW, with the chance of being relayed estimated from what was logged.

    Right only if nothing else drove both decision and outcome, which no log can show.

    Args:
        y: outcomes [n].
        relayed: what the policy decided [n].
        covariates: known when it decided [n, k].
        seed: of the folds.
        sessions: number of each row's session [n].
    """
    n = len(y)
    if min(int(relayed.sum()), int((~relayed).sum())) < _MIN_ROWS:
        return nothing(n, f"fewer than {_MIN_ROWS} rows of a decision")
    probability = _propensity(relayed, covariates)
    found = aipw(y, relayed, probability, covariates, seed=seed, sessions=sessions)
    without = float(((probability <= _CLIP) | (probability >= 1.0 - _CLIP)).mean())
    return found.noted(f"{without:.1%} of rows without overlap") if without else found


def _propensity(relayed: Bools, covariates: Floats) -> Floats:
    """The chance of being relayed, by logistic regression with a small ridge: where a covariate
    decides everything, the unpenalised fit does not exist."""
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    spread = covariates.std(axis=0)
    x = (covariates - covariates.mean(axis=0))[:, spread > 0.0] / spread[spread > 0.0]
    x = np.column_stack([np.ones(len(x)), x])
    penalty = np.full(x.shape[1], 1.0 / len(x))
    penalty[0] = 0.0
    with warnings.catch_warnings():
        # A perfect separation is expected of a policy, and dealt with by the clip.
        warnings.simplefilter("ignore")
        model = GLM(relayed.astype(np.float64), x, family=Binomial())
        fit = model.fit_regularized(alpha=penalty, L1_wt=0.0)
    return np.asarray(np.clip(model.predict(fit.params, x), _CLIP, 1.0 - _CLIP))
