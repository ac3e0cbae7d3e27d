"""The columns of an audit row, one row per request.

Anybody's data needs `arm`, `session`, `time_s` and an outcome; the rest has a default or may be
missing. Columns that are not listed are kept as further factors.

Kinds: TEXT is a label ("" where missing), NUMBER a float64 (NaN where missing), FLAG a bool.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a column holds."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"


class Design(StrEnum):
    """How arms were assigned."""

    PAIRED = "paired"
    RANDOMISED = "randomised"
    SESSIONS = "sessions"
    SWITCHBACK = "switchback"
    SATURATION = "saturation"
    STAGGERED = "staggered"
    AA = "aa"


REQUIRED = ("arm", "session", "time_s")
STRATUM = ("link", "tokens", "load", "similarity", "language")
# Known before the arm was drawn; nothing else may be adjusted for.
COVARIATES = (
    "prompt_tokens",
    "shared_prefix_fraction",
    "jaccard",
    "predicted_recompute_s",
    "predicted_relay_s",
    "in_flight",
)
# Measured where an embedding model is installed: no estimate may depend on whether one is.
LABELS = ("cosine",)
SECONDS = (
    "ttft_s",
    "e2e_s",
    "session_s",
    "prefill_s",
    "wire_s",
    "relay_cpu_s",
)
AMOUNTS = ("tokens_per_s", "relayed_tokens", "bytes_moved", "kv_bytes", "memory_bytes")
QUALITY = ("agreement", "logprob_drift", "perplexity", "bleu", "rouge_l", "correct")
OUTCOMES = (*SECONDS, *AMOUNTS, *QUALITY)
# More is better; for every other outcome less is.
MORE_IS_BETTER = frozenset({"tokens_per_s", "agreement", "bleu", "rouge_l", "correct"})
# May be below zero: a covariate or quality measure that is no amount.
SIGNED = frozenset({"cosine", "logprob_drift"})

_TEXT = (
    *("session", "request", "design", "pair", "unit", "arm", "session_shape"),
    *("link", "load", "similarity", "language", "heterogeneity", "decided", "reason"),
)
_NUMBER = (
    *("time_s", "block", "saturation", "propensity", "tokens", "turn"),
    *COVARIATES,
    *LABELS,
    *OUTCOMES,
)
_FLAG = ("completed", "failed", "warm_up", "not_quiet")

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_TEXT, Kind.TEXT),
    **dict.fromkeys(_NUMBER, Kind.NUMBER),
    **dict.fromkeys(_FLAG, Kind.FLAG),
}
