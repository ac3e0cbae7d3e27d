"""Errors of the benchmarks.

KvrelayError
 +- BenchError        a run that cannot be finished, or whose figures would be worth nothing
     +- Miscount      an engine counts other tokens as cached than the arm claims
     +- WrongPath     a relay did not go over the link that it is measured for
     +- UnequalEngines   engines that are compared do not have the same cores
     +- PromiseBroken    a fault made a request wrong, made it fail, or left something behind
"""

from __future__ import annotations

from kvrelay.cluster.errors import KvrelayError


class BenchError(KvrelayError):
    """A run that cannot be finished, or whose figures would be worth nothing."""


class Miscount(BenchError):
    """vLLM's own count of cached prompt tokens is not what the arm is supposed to reuse."""


class WrongPath(BenchError):
    """A relay went past the link, or nobody can tell that it did not."""


class UnequalEngines(BenchError):
    """Engines that are compared are bound to different cores."""


class PromiseBroken(BenchError):
    """A fault has made a request wrong or made it fail, or has left something behind."""
