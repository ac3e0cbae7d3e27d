"""What the trials of the controls come to: `controls` of the analysis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kvrelay.bench.audit.controls.trials import WRONG, Content, Trial
from kvrelay.bench.errors import BenchError
from kvrelay.bench.report import Row

# Correct KV may cost that much agreement: it is computed in other pieces than a whole prompt, and
# rounding tips the scales between two tokens now and then.
KEPT = 0.9
# Of what correct KV has, wrong KV may keep that much to count as collapsed.
COLLAPSED = 0.5
ALPHA = 0.05


def rows(trials: Sequence[Trial]) -> list[Row]:
    """One row per control: `name`, `expected` and `seen` in words, and whether it `passed`.

    Args:
        trials: as `trials.measure` returns them.

    Raises:
        BenchError: trials of some kind are missing.
    """
    found = [_kept(trials, is_guarded) for is_guarded in (True, False)]
    found += [_refused(trials, content, True) for content in WRONG]
    found += [_refused(trials, Content.OFFERED, is_guarded) for is_guarded in (True, False)]
    found += [_collapsed(trials, content) for content in WRONG]
    found.append(_gain(trials, "agreement", [(t, t.agreement) for t in trials]))
    judged = [(t, float(t.is_right)) for t in trials if t.is_right is not None]
    if judged:
        found.append(_gain(trials, "right answers", judged))
    return found


def _kept(trials: Sequence[Trial], is_guarded: bool) -> Row:
    chosen = _of(trials, Content.CORRECT, is_guarded)
    mean = _mean_agreement(chosen)
    return {
        "name": _name(Content.CORRECT, is_guarded),
        "expected": f"whole context injected, agreement with recompute at least {KEPT:g}",
        "seen": _seen(chosen),
        "passed": all(_is_whole(t) for t in chosen) and mean >= KEPT,
    }


def _refused(trials: Sequence[Trial], content: Content, is_guarded: bool) -> Row:
    chosen = _of(trials, content, is_guarded)
    return {
        "name": _name(content, is_guarded),
        "expected": "0 tokens injected, every answer recompute's",
        "seen": _seen(chosen),
        "passed": all(t.injected_tokens == 0 and t.agreement == 1 for t in chosen),
    }


def _collapsed(trials: Sequence[Trial], content: Content) -> Row:
    chosen = _of(trials, content, False)
    correct = _of(trials, Content.CORRECT, False)
    most = COLLAPSED * _mean_agreement(correct)
    passed = all(_is_whole(t) for t in chosen) and _mean_agreement(chosen) <= most
    both = zip(chosen, correct, strict=True)
    passed = passed and all(wrong.logprob_drift > own.logprob_drift for wrong, own in both)
    expected = (
        f"whole context injected, agreement at most {most:.3f}, log probabilities further off than "
        "correct KV's in every example"
    )
    right = _num_right(correct)
    if right is not None:
        most_right = math.floor(COLLAPSED * right)
        expected += f", at most {most_right} right answers"
        passed = passed and right > 0 and (_num_right(chosen) or 0) <= most_right
    return {
        "name": _name(content, False),
        "expected": expected,
        "seen": _seen(chosen),
        "passed": passed,
    }


def _gain(trials: Sequence[Trial], what: str, scored: Sequence[tuple[Trial, float]]) -> Row:
    """Correct minus deranged, example by example, both injected."""
    score = {(t.example, t.content): value for t, value in scored if not t.is_guarded}
    correct = _of(trials, Content.CORRECT, False)
    gains = [
        score[t.example, Content.CORRECT] - score[t.example, Content.DERANGED]
        for t in correct
        if (t.example, Content.CORRECT) in score
    ]
    mean, p = statistics.fmean(gains), sign_test(gains)
    return {
        "name": f"content-attributable gain in {what}",
        "expected": f"correct minus deranged above 0 (one-sided sign test, p at most {ALPHA:g})",
        "seen": f"{mean:+.3f} (p = {p:.2g}, {len(gains)} examples)",
        "passed": mean > 0 and p <= ALPHA,
    }


def sign_test(differences: Sequence[float]) -> float:
    """Probability of so many positive differences if positive and negative were equally likely.

    One-sided and exact; zeros say nothing and are left out (Conover, "Practical Nonparametric
    Statistics", section 3.4). 1 if nothing is left.
    """
    positive = sum(d > 0 for d in differences)
    num = positive + sum(d < 0 for d in differences)
    return float(sum(math.comb(num, k) for k in range(positive, num + 1)) / 2**num)


def _of(trials: Sequence[Trial], content: Content, is_guarded: bool) -> list[Trial]:
    found = [t for t in trials if t.content is content and t.is_guarded is is_guarded]
    if not found:
        raise BenchError(f"no trial of {_name(content, is_guarded)}")
    return found


def _name(content: Content, is_guarded: bool) -> str:
    guard = "on" if is_guarded else "off"
    if content is Content.OFFERED:
        return f"another example's blocks under their own keys, guard {guard}"
    return f"{content} KV, guard {guard}"


def _is_whole(trial: Trial) -> bool:
    return trial.injected_tokens == trial.context_tokens


def _mean_agreement(trials: Sequence[Trial]) -> float:
    return statistics.fmean(t.agreement for t in trials)


def _num_right(trials: Sequence[Trial]) -> int | None:
    answers = [t.is_right for t in trials if t.is_right is not None]
    return sum(answers) if answers else None


def _seen(trials: Sequence[Trial]) -> str:
    injected = [t.injected_tokens for t in trials]
    tokens = f"{injected[0]}" if len(set(injected)) == 1 else f"{min(injected)} to {max(injected)}"
    words = [
        f"{tokens} of {trials[0].context_tokens} tokens injected",
        f"agreement {_mean_agreement(trials):.3f}",
        f"log probabilities at least {statistics.fmean(t.logprob_drift for t in trials):.3f} off",
    ]
    right = _num_right(trials)
    if right is not None:
        recomputed = sum(bool(t.recompute_is_right) for t in trials)
        words.append(f"{right} of {len(trials)} answers right (recomputed {recomputed})")
    return ", ".join(words)
