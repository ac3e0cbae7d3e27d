"""Estimators of the audit: arrays in, an `Estimate` out; none of them knows a file or a plan.

Libraries, and why so few. scipy has Welch's and Student's t with their intervals, chi-squared and
the binomial; statsmodels has least squares with HC2 errors, logit, the two one-sided tests, Holm
and power; linearmodels has instrumental variables with robust and clustered errors. Together they
are 60 MB and need nothing but numpy and pandas beside.

Not used: doubleml estimates propensities by machine learning, but here they are known, drawn by
us, and AIPW with known ones is a regression and a mean (it would bring scikit-learn and optuna).
pyfixest fits what linearmodels and statsmodels fit, with many more dependencies. dowhy refutes
assumptions by calling an estimator again on changed data and finds a back-door set in a graph:
the first is in checks.py, the second is three calls of networkx (graph.py), and it would bring
cvxpy, causal-learn and scikit-learn.

Written here, because no library has it in the form that is needed: CR2 with Bell and McCaffrey's
degrees of freedom (regression.py), the bootstrap of quantiles over sessions (quantile.py), and
randomisation inference by the assignments that could have been (randomisation.py).

scipy, statsmodels and linearmodels are imported inside functions: `kvrelay --help` must not wait.
"""
