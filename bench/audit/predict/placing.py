"""Where an engine, a model and a link stand on the map of an audit, and what of that is a guess.

    saving(m) = saved_factor * (a*m + b*m^2) - fixed - latency - wire_factor * m * bytes / rate

a and b are the engine's own; the three others are those of the audit's law (law.py). Its fixed cost
is carried over in seconds: look-up, hand-over and waiting are steps of the same program. Doubt
about the law and about the engine's curve is drawn together for the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.audit.analysis.break_even import interval
from kvrelay.bench.audit.analysis.crossings import Pays
from kvrelay.bench.audit.analysis.law import Law, tokens_from
from kvrelay.bench.audit.predict.engine_fit import EngineFit
from kvrelay.bench.audit.predict.links import Wire

Floats = NDArray[np.float64]
Row = dict[str, Any]

# A square of the curve that noise has left lets relay pay from some length on, on any link.
_NEVER_TOKENS = 1e7
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)


@dataclass(frozen=True, slots=True)
class Engine:
    """Somebody's engine.

    Attributes:
        fit: what its prefill costs.
        kv_bytes_per_token: of its model.
        max_tokens: its longest prompt; None if it does not say.
    """

    fit: EngineFit
    kv_bytes_per_token: float
    max_tokens: int | None


def place(load: str, law: Law, engine: Engine, wire: Wire, seed: int = 1) -> Row:
    """One row of the prediction, in plain JSON types.

    Args:
        load: of the law.
        law: an audit's.
        engine, wire: what is placed.
        seed: of the interval.
    """
    cost = engine.fit.cost
    wire_s = engine.kv_bytes_per_token / wire.bytes_per_s
    coefficients = np.array([[law.fixed_s, law.wire_factor, law.saved_factor]])
    curve = np.array([[cost.fixed_s, cost.per_token_s, cost.per_token_squared_s]])
    tokens = float(_break_even(coefficients, curve, wire, wire_s)[0])
    drawn, curves = law.drawn(len(engine.fit.drawn), seed), engine.fit.drawn
    low, high = interval(_break_even(drawn, curves, wire, wire_s))
    pays = Pays.NEVER if math.isinf(tokens) else Pays.FROM if tokens > 0 else Pays.ALWAYS
    too_long = pays is Pays.FROM and engine.max_tokens is not None and tokens > engine.max_tokens
    # Prefill per token depends on the length: at the break-even if the engine gets so far.
    longest = engine.fit.tokens[1]
    at = tokens if 0 < tokens <= (engine.max_tokens or longest) else float(longest)
    prefill_s = engine.fit.per_token_s(at)
    row: Row = {
        "link": wire.name,
        "load": load,
        "wire_s_per_token": wire_s,
        "prefill_s_per_token": prefill_s,
        "wire_over_prefill": wire_s / prefill_s,
        "fixed_cost_tokens": (law.fixed_s + wire.latency_s) / prefill_s,
        "tokens_at_break_even": tokens if pays is Pays.FROM else None,
        "low": low,
        "high": high,
        "pays": str(pays),
        "within_context": not too_long,
        "at": [
            _saving(length, drawn, curves, wire, wire_s=wire_s, expected=(law, engine))
            for length in LENGTHS
            if engine.max_tokens is None or length <= engine.max_tokens
        ],
    }
    row["extrapolated"] = _extrapolated(row, law, engine, wire)
    row["words"] = _words(row, engine)
    return row


def _break_even(coefficients: Floats, curves: Floats, wire: Wire, wire_s: float) -> Floats:
    """Lengths, [draws], of coefficients [draws, 3] of the law and [draws, 3] of prefill."""
    fixed, wire_factor, saved_factor = coefficients.T
    _, per_token, squared = curves.T
    gain = saved_factor * per_token - wire_factor * wire_s
    found = tokens_from(fixed + wire.latency_s, gain, saved_factor * squared)
    return np.where(found > _NEVER_TOKENS, math.inf, found)


def _saving(
    length: int,
    drawn: Floats,
    curves: Floats,
    wire: Wire,
    *,
    wire_s: float,
    expected: tuple[Law, Engine],
) -> Row:
    """What relaying a prefix of this length is expected to save of the time to the first token."""
    law, engine = expected
    work_s = length * engine.fit.per_token_s(length)
    saving = -law.effect_s(length * wire_s, work_s) - wire.latency_s
    fixed, wire_factor, saved_factor = drawn.T
    works = length * (curves[:, 1] + length * curves[:, 2])
    savings = saved_factor * works - fixed - wire.latency_s - wire_factor * length * wire_s
    low, high = interval(savings)
    recompute_s = engine.fit.seconds(length)
    return {
        "tokens": length,
        "recompute_s": recompute_s,
        "saving_s": saving,
        "low": low,
        "high": high,
        "saving_share": saving / recompute_s,
        "measured": engine.fit.tokens[0] <= length <= engine.fit.tokens[1],
    }


def _extrapolated(row: Row, law: Law, engine: Engine, wire: Wire) -> list[str]:
    """What of a row nobody has measured, each in a sentence."""
    found = []
    ratio, prefill_s = row["wire_over_prefill"], row["prefill_s_per_token"]
    if not _within(ratio, law.wire_over_prefill):
        span = _span(law.wire_over_prefill, "{:.3g}")
        found.append(f"wire over prefill is {ratio:.3g}; the audit measured {span}")
    if not _within(prefill_s, law.prefill_s_per_token):
        span = _span([1e6 * each for each in law.prefill_s_per_token], "{:,.0f}")
        found.append(
            f"a token of prefill takes {1e6 * prefill_s:,.1f} us here and took {span} us in the "
            f"audit: its fixed cost of {1e3 * law.fixed_s:.1f} ms is taken over from a machine "
            "of another speed"
        )
    tokens = row["tokens_at_break_even"]
    if tokens is not None and not _within(tokens, law.tokens):
        span = _span(law.tokens, "{:,.0f}")
        found.append(f"the break-even is at {tokens:,.0f} tokens; the audit relayed {span}")
    longest = engine.fit.tokens[1]
    if tokens is not None and tokens > longest:
        found.append(f"your engine was timed up to {longest:,} tokens; beyond, by its curve")
    if wire.latency_s > 0:
        found.append(
            f"{1e3 * wire.latency_s:.2f} ms of round trips are added to the audit's fixed cost; "
            "slow starts of long connections are not"
        )
    return found


def _within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _span(bounds: Any, form: str) -> str:
    return f"{form.format(bounds[0])} to {form.format(bounds[1])}"


def _words(row: Row, engine: Engine) -> str:
    low, high, tokens = row["low"], row["high"], row["tokens_at_break_even"]
    # The bounds read as lengths: 0 is at once, and none is never.
    if row["pays"] == Pays.ALWAYS:
        doubt = f", or from {high:,.0f} on at the latest" if high else ""
        return "relay pays at any length" + ("; or never" if high is None else doubt)
    if row["pays"] == Pays.NEVER:
        return "relay never pays" + ("" if low is None else f"; if it does, from {low:,.0f} tokens")
    bounds = f"[{low or 0:,.0f}, {'no end' if high is None else f'{high:,.0f}'}]"
    if row["within_context"]:
        return f"relay pays from {tokens:,.0f} tokens on {bounds}"
    return (
        f"relay does not pay within the engine's context of {engine.max_tokens:,} tokens; without "
        f"that limit from {tokens:,.0f} on {bounds}"
    )
