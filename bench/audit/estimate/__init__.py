"""Estimators of the audit: arrays in, an `Estimate` out; none of them knows a file or a plan.

Libraries, and why these few. scipy has Welch's and Student's t, chi-squared and the binomial;
statsmodels has least squares with HC2 errors, logistic regression and the two one-sided tests;
linearmodels has instrumental variables with robust and clustered errors.

Not used: dowhy, which refutes assumptions by calling an estimator again on changed data and finds
back-door sets in a graph. The first is in checks.py; the second is two calls of networkx
(graph.py); and dowhy 0.14 needs cvxpy, causal-learn and scikit-learn, and a scipy of at most 1.15.
doubleml 0.11 learns propensities, but here they are known, since we drew the arms, and AIPW with
known ones is a regression and a mean; it needs scikit-learn, optuna and three plotting libraries.
pyfixest 0.60 fits the same instrumental variables as linearmodels, with seaborn and joblib beside;
its difference in differences has clustered errors, which a handful of replicas makes useless.

Written here, because no library has it in the form that is needed: CR2 with Bell and McCaffrey's
degrees of freedom (regression.py), the bootstrap of quantiles over sessions (quantile.py), and
randomisation inference by the assignments that could have been (randomisation.py).

scipy, statsmodels and linearmodels are imported inside functions: `kvrelay --help` must not wait.
"""
