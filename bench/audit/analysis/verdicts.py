"""The joint verdict of a stratum: relay pays where it is faster and costs nothing else.

pays            lower latency (Holm) and throughput not lower by the margin, at equal memory
costs           higher latency (Holm), or throughput lower by more than the margin
no_difference   the whole interval of latency within its margin, throughput not lower
undecided       everything else; an effect that was not measured decides nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis.data import Data
from kvrelay.bench.audit.analysis.effects import Effect
from kvrelay.bench.audit.analysis.settings import Settings
from kvrelay.bench.audit.estimate.neyman import mean_of

ALPHA = 0.05
# Of several estimates of one cell, the one that assumes least.
_DESIGNS = ("paired", "randomised", "sessions")
_ESTIMATORS = ("neyman", "stratified", "lin_hc2")


def verdicts(data: Data, found: Sequence[Effect], settings: Settings) -> list[dict[str, Any]]:
    """A verdict for each stratum and arm that has a direct effect on the first primary outcome.

    Args:
        data: rows that are left after exclusions, for the use of memory.
        found: effects with Holm's p-values.
        settings: margins and outcomes.
    """
    outcome = settings.primary[0]
    latency = _by_cell(found, outcome)
    throughput = _by_cell(found, "tokens_per_s")
    strata = data.stratum()
    rows = []
    for (stratum, arm), effect in sorted(latency.items()):
        other = throughput.get((stratum, arm))
        inside = data.where((strata == stratum) & (data.text("design") == effect.design))
        memory = memory_ratio(inside, arm, settings.control)
        verdict, words = judge(effect, other, memory, settings)
        rows.append(
            {
                "stratum": stratum,
                "arm": arm,
                "verdict": verdict,
                "latency": effect.to_dict(),
                "throughput": other.to_dict() if other else None,
                "memory_ratio": memory,
                "words": words,
            }
        )
    return rows


def judge(
    latency: Effect, throughput: Effect | None, memory: float | None, settings: Settings
) -> tuple[str, str]:
    """The verdict and its words; see the head of this module.

    Args:
        latency: effect on a time, relative to the control.
        throughput: effect on tokens per second; None if it was not measured.
        memory: of the arm over that of the control; None if it was not measured.
        settings: margins.
    """
    p = latency.p_holm
    significant = p is not None and p < ALPHA
    faster = significant and latency.found.estimate < 0.0
    slower = significant and latency.found.estimate > 0.0
    kept = _kept(throughput, settings)
    more_memory = memory is not None and memory > 1.0 + (settings.margin("memory_bytes") or 0.0)
    words = "; ".join(
        [_latency_words(latency), _throughput_words(throughput, kept), _memory_words(memory)]
    )
    if slower or kept == "lower":
        return "costs", words
    if faster and kept == "kept" and not more_memory:
        return "pays", words
    margin = settings.margin(latency.outcome) or 0.0
    _, low, high = latency.found.relative()
    if kept == "kept" and not more_memory and -margin < low and high < margin:
        return "no_difference", words
    return "undecided", words


def memory_ratio(data: Data, arm: str, control: str) -> float | None:
    """Mean memory of the engines under the arm over that under the control."""
    memory, names = data.number("memory_bytes"), data.text("arm")
    known = np.isfinite(memory)
    one, zero = (mean_of(memory[known & (names == name)]) for name in (arm, control))
    return one / zero if zero > 0.0 and one > 0.0 else None


def _by_cell(found: Sequence[Effect], outcome: str) -> Mapping[tuple[str, str], Effect]:
    cells: dict[tuple[str, str], Effect] = {}
    for each in found:
        fits = each.outcome == outcome and each.estimand == "direct"
        if not fits or each.stratum is None or each.design not in _DESIGNS:
            continue
        cell = (each.stratum, each.arm)
        if cell not in cells or _rank(each) < _rank(cells[cell]):
            cells[cell] = each
    return cells


def _rank(effect: Effect) -> tuple[int, int]:
    return _DESIGNS.index(effect.design), _ESTIMATORS.index(effect.estimator)


def _kept(throughput: Effect | None, settings: Settings) -> str:
    """Whether throughput is kept, lower, or neither is shown."""
    if throughput is None:
        return "unknown"
    margin = settings.margin("tokens_per_s") or 0.0
    _, low, high = throughput.found.relative()
    if low > -margin:
        return "kept"
    return "lower" if high < -margin else "unknown"


def _latency_words(latency: Effect) -> str:
    share, low, high = (100.0 * each for each in latency.found.relative())
    return f"{latency.outcome} {share:+.0f} % [{low:+.0f}, {high:+.0f}]"


def _throughput_words(throughput: Effect | None, kept: str) -> str:
    if throughput is None:
        return "throughput not measured"
    share, low, high = (100.0 * each for each in throughput.found.relative())
    said = {"kept": "not lower", "lower": "lower", "unknown": "not shown to be kept"}[kept]
    return f"throughput {said}: {share:+.0f} % [{low:+.0f}, {high:+.0f}]"


def _memory_words(memory: float | None) -> str:
    return "memory not measured" if memory is None else f"memory x {memory:.2f}"
