"""Whether the experiment was what it was meant to be, whatever came out of it.

A check fails at p < 1 %, so that a sound audit with its handful of checks is seldom blamed. One
that the data do not allow is left out: absence of a check is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvrelay.bench.audit.analysis.data import Bools, Data, Floats, Ints, codes, expected_shares
from kvrelay.bench.audit.analysis.matched import match
from kvrelay.bench.audit.analysis.schema import Design
from kvrelay.bench.audit.estimate import did
from kvrelay.bench.audit.estimate.base import Estimate, students
from kvrelay.bench.audit.estimate.cate import holm
from kvrelay.bench.audit.estimate.neyman import difference, within_pairs
from kvrelay.bench.audit.estimate.regression import cr2, lin
from kvrelay.bench.audit.estimate.switchback import block_means

ALPHA = 0.01
PLACEBOS = 400
_PLACEBO_ALPHA = 0.05
_MIN_PAIRS = 8
# Shared prefix of prompts that are taken to have nothing to relay.
_NOTHING = 0.05
# A random covariate moves a sound estimate by far less than its own uncertainty.
_MOVED = 0.5
# Spans come from several clocks' differences; and this share of rows has to keep to them.
_SPAN_SLACK, _SPAN_SLACK_S, _SPAN_SHARE = 1.05, 0.005, 0.99


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and whether it is as it should be."""

    name: str
    passed: bool
    statistic: float
    p: float | None
    words: str


def sample_ratio(data: Data) -> Check | None:
    """Whether the arms have the shares that they were assigned, by chi-squared.

    Counts requests that were drawn one by one, and sessions where those were drawn, among the rows
    that are analysed: failing more often is one way to be lost from an arm.

    Source: Fabijan et al., KDD 2019 (sample ratio mismatch).
    """
    from scipy import stats

    statistic, degrees, words = 0.0, 0, []
    for design in (Design.RANDOMISED, Design.SESSIONS):
        rows = data.where(data.text("design") == design)
        if design is Design.SESSIONS and len(rows):
            once = np.zeros(len(rows), np.bool_)
            once[np.unique(rows.text("session"), return_index=True)[1]] = True
            rows = rows.where(once)
        strata = rows.stratum()
        # The arms of an audit differ between strata; their shares within one are what was drawn.
        for label in np.unique(strata).tolist():
            cell = rows.where(strata == label)
            shares = expected_shares(cell)
            if len(shares) < 2:
                continue
            seen = [int((cell.text("arm") == name).sum()) for name in shares]
            expected = [share * len(cell) for share in shares.values()]
            statistic += float(stats.chisquare(seen, expected).statistic)
            degrees += len(shares) - 1
            counts = ", ".join(f"{n} {name}" for name, n in zip(shares, seen, strict=True))
            words.append(f"{design} {label}: {counts}")
    if not degrees:
        return None
    p = float(stats.chi2.sf(statistic, degrees))
    shown = "; ".join(words[:4]) + (f"; and {len(words) - 4} more" if len(words) > 4 else "")
    return Check("srm", p >= ALPHA, statistic, p, shown)


def a_a(data: Data, outcome: str) -> Check | None:
    """Whether the control differs from itself: design `aa`, both arms of a pair the control.

    The two are told apart by their arm, or if that is the same, by the name of the request, which
    is not drawn by the outcome.
    """
    rows = data.where(data.text("design") == Design.AA)
    y, request, key = rows.number(outcome), rows.text("request"), rows.text("pair")
    strata = rows.stratum()
    rows_of: dict[str, list[int]] = {}
    for index in np.flatnonzero(np.isfinite(y)).tolist():
        rows_of.setdefault(f"{key[index]}\t{strata[index]}", []).append(index)
    arm = rows.text("arm")
    pairs = [
        sorted(found, key=lambda i: (arm[i], request[i]))
        for _, found in sorted(rows_of.items())
        if len(found) == 2
    ]
    if len(pairs) < 4:
        return None
    index = np.array(pairs)
    session = codes(rows.text("session"))[index[:, 1]]
    found = within_pairs(y[index[:, 0]], y[index[:, 1]], session)
    return _from_estimate("aa", found, f"the control against itself, {len(pairs)} pairs")


def carry_over(data: Data, outcome: str, control: str) -> Check | None:
    """Whether what came before shows: in the first half of a block after the other arm, in blocks
    after treated ones, and in pairs by which arm came first.

    Each is tested where the design is there; the smallest of Holm's p-values counts.

    Source: Bojinov, Simchi-Levi and Zhao, Management Science 69, 2023.
    """
    found: dict[str, Estimate] = {}
    rows = data.where((data.text("design") == Design.SWITCHBACK) & data_has(data, outcome, "block"))
    strata = rows.stratum()
    for label in np.unique(strata).tolist():
        stream = rows.where(strata == label)
        y, block = stream.number(outcome), stream.number("block").astype(np.int64)
        treated = stream.text("arm") != control
        found[f"{label}: halves of blocks"] = _halves(y, treated, block)
        found[f"{label}: the block before"] = _lagged(y, treated, block)
    for arm in sorted(set(data.text("arm").tolist()) - {control}):
        pairs = match(data, arm, control)
        one, zero = pairs.outcome(outcome)
        known = np.isfinite(one - zero)
        if len(np.unique(pairs.first[known])) == 2 and int(known.sum()) >= _MIN_PAIRS:
            # Each pair over its own mean: strata with long prompts must not drown the others.
            scaled = ((one - zero) / ((one + zero) / 2.0))[known]
            none = np.empty((len(scaled), 0))
            order = lin(scaled, pairs.first[known], none, pairs.sessions[known])
            found[f"{arm}: order within pairs"] = order
    tested = {name: each for name, each in found.items() if each.p is not None}
    if not tested:
        return None
    corrected = holm([each.p for each in tested.values()])
    p, name = min((p, name) for p, name in zip(corrected, tested, strict=True) if p is not None)
    return Check("carry_over", p >= ALPHA, tested[name].estimate, p, f"most in {name}")


def manipulation(data: Data, control: str) -> Check | None:
    """Whether relays that completed moved something, and the control nothing."""
    if not (data.has("completed") and (data.has("relayed_tokens") or data.has("bytes_moved"))):
        return None
    moved = np.nan_to_num(data.number("relayed_tokens")) > 0
    moved |= np.nan_to_num(data.number("bytes_moved")) > 0
    is_control, completed = data.text("arm") == control, data.flag("completed")
    used = completed & ~is_control
    wrong = int((used & ~moved).sum()) + int((is_control & moved).sum())
    words = (
        f"{int(used.sum())} relays completed, {int((used & ~moved).sum())} of them moved nothing; "
        f"{int((is_control & moved).sum())} of {int(is_control.sum())} controls moved something"
    )
    return Check("manipulation", wrong == 0 and bool(used.any()), float(wrong), None, words)


def negative_control(data: Data, outcome: str, control: str, arm: str) -> Check | None:
    """Whether texts that are alike, but share no more tokens, relay better: they must not.

    The difference within pairs on cosine, with a level and a slope of the shared prefix for each
    link, length and load.
    """
    pairs = match(data, arm, control)
    one, zero = pairs.outcome(outcome)
    prefix, cosine = pairs.covariate("shared_prefix_fraction"), pairs.covariate("cosine")
    known = np.isfinite(one - zero) & np.isfinite(prefix) & np.isfinite(cosine)
    if int(known.sum()) < 20:
        return None
    cells = np.array(["/".join(label.split("/")[:-2]) for label in pairs.strata.tolist()])[known]
    columns = [cosine[known]]
    for cell in np.unique(cells).tolist():
        inside = (cells == cell).astype(np.float64)
        columns += [inside, inside * prefix[known]]
    x = _full_rank(columns)
    if not np.array_equal(x[:, 0], columns[0]) or len(x) - x.shape[1] < 8:
        return None
    # Relative to the control, so that long prompts over slow links do not decide alone.
    slope, error, degrees = cr2(((one - zero) / zero)[known], x, pairs.sessions[known], 0)
    p = _p_of(slope, error, degrees)
    words = f"{slope:+.3f} of TTFT per unit of cosine, given the shared prefix"
    return Check("negative_control", p >= ALPHA, slope, p, words)


def nothing_shared(data: Data, outcome: str, control: str, arm: str) -> Check | None:
    """Whether relays of prompts that share next to nothing save more than what they share."""
    pairs = match(data, arm, control)
    one, zero = pairs.outcome(outcome)
    rows = np.isfinite(one - zero) & (pairs.covariate("shared_prefix_fraction") <= _NOTHING)
    if len(np.unique(pairs.sessions[rows])) < _MIN_PAIRS:
        return None
    share, low, high = within_pairs(one[rows], zero[rows], pairs.sessions[rows]).relative()
    words = (
        f"sharing at most {_NOTHING:.0%} changes {outcome} by {share:+.1%} "
        f"[{low:+.1%}, {high:+.1%}], {int(rows.sum())} pairs"
    )
    return Check("nothing_shared", not high < -_NOTHING, share, None, words)


def parallel_trends(data: Data, outcome: str, control: str) -> Check | None:
    """Whether replicas that were enabled early moved like the others before any was."""
    rows = data.where((data.text("design") == Design.STAGGERED) & data_has(data, outcome, "block"))
    if not len(rows):
        return None
    treated, period = rows.text("arm") != control, rows.number("block").astype(np.int64)
    cells = did.panel(rows.number(outcome), treated, codes(rows.text("unit")), period)
    found = did.trend_before(*cells) if cells is not None else None
    if found is None or found.p is None:
        return None
    return _from_estimate("parallel_trends", found, "early less late replicas, per period")


def placebo(y: Floats, strata: Ints, seed: int) -> Check | None:
    """Whether a treatment that is none is found to work: controls divided at random.

    About 5 % of divisions have to be significant at 5 %; counted with a bound that a sound test
    exceeds once in a hundred audits.

    Args:
        y: outcomes of the control [n].
        strata: number of each row's stratum, whose mean is taken out [n].
        seed: of the divisions.
    """
    from scipy import stats

    if len(y) < 20:
        return None
    sizes = np.bincount(strata)
    centred = y - (np.bincount(strata, y) / np.maximum(sizes, 1))[strata]
    rng = np.random.default_rng(seed)
    half = np.arange(len(y)) % 2 == 0
    divided = rng.permuted(np.tile(half, (PLACEBOS, 1)), axis=1)
    drawn = np.broadcast_to(centred, divided.shape)
    one = drawn[divided].reshape(PLACEBOS, -1)
    zero = drawn[~divided].reshape(PLACEBOS, -1)
    significant = int(
        (stats.ttest_ind(one, zero, axis=1, equal_var=False).pvalue < _PLACEBO_ALPHA).sum()
    )
    most = int(stats.binom.ppf(1.0 - ALPHA, PLACEBOS, _PLACEBO_ALPHA))
    words = f"{significant} of {PLACEBOS} placebo treatments significant at 5 %, at most {most}"
    return Check("placebo", significant <= most, significant / PLACEBOS, None, words)


def random_common_cause(
    y: Floats, treated: Bools, covariates: Floats, seed: int, sessions: Ints | None = None
) -> Check | None:
    """Whether the estimate stays when a covariate is added that is noise."""
    if min(int(treated.sum()), int((~treated).sum())) < 10:
        return None
    noise = np.random.default_rng(seed).normal(size=(len(y), 1))
    without = lin(y, treated, covariates, sessions)
    with_noise = lin(y, treated, np.hstack([covariates, noise]), sessions)
    moved = abs(with_noise.estimate - without.estimate)
    reach = (without.high - without.low) / 2.0
    share = moved / reach if 0.0 < reach < math.inf else 0.0
    words = f"the estimate moved by {share:.1%} of half its interval"
    return Check("random_common_cause", share < _MOVED, share, None, words)


def conservation(data: Data) -> Check | None:
    """Whether the parts of a TTFT fit into it: transfer and prefill follow each other."""
    parts = np.nan_to_num(data.number("wire_s")) + np.nan_to_num(data.number("prefill_s"))
    whole = data.number("ttft_s")
    known = np.isfinite(whole) & (parts > 0.0) & ~data.flag("failed")
    if not known.any():
        return None
    fits = parts[known] <= whole[known] * _SPAN_SLACK + _SPAN_SLACK_S
    share = float(fits.mean())
    words = f"wire and prefill are within the TTFT in {share:.1%} of {int(known.sum())} requests"
    return Check("conservation", share >= _SPAN_SHARE, share, None, words)


def present(checks: Iterable[Check | None]) -> list[Check]:
    """Those that the data allowed."""
    return [check for check in checks if check is not None]


def data_has(data: Data, *names: str) -> Bools:
    """Rows that have a value in all of these columns of numbers."""
    return np.logical_and.reduce([np.isfinite(data.number(name)) for name in names])


def _halves(y: Floats, treated: Bools, block: Ints) -> Estimate:
    """First less second half, of treated blocks after the control less the other way round."""
    second = np.zeros(len(y), np.bool_)
    for number in np.unique(block):
        rows = np.flatnonzero(block == number)
        second[rows[len(rows) // 2 :]] = True
    early, arms = block_means(y[~second], treated[~second], block[~second])
    late, _ = block_means(y[second], treated[second], block[second])
    if len(early) != len(late):  # a block of one request
        return difference(np.empty(0), np.empty(0, np.bool_))
    changed = np.flatnonzero(arms[1:] != arms[:-1]) + 1
    return difference((early - late)[changed], arms[changed])


def _lagged(y: Floats, treated: Bools, block: Ints) -> Estimate:
    """What the arm of the block before adds to a block's mean, given its own."""
    means, arms = block_means(y, treated, block)
    own = arms[1:].astype(np.float64)
    x = np.column_stack([np.ones(len(own)), arms[:-1], own])
    # Arms that strictly alternate tell nothing: the one before is just the other one.
    if len(own) < 6 or np.linalg.matrix_rank(x) < 3:
        return difference(np.empty(0), np.empty(0, np.bool_))
    effect, error, degrees = cr2(means[1:], x, np.arange(len(own)), 1)
    return students(effect, error, degrees, len(own), len(own))


def _from_estimate(name: str, found: Estimate, words: str) -> Check:
    if found.p is None:
        # No variation at all: the two are the same.
        return Check(name, found.estimate == 0.0, found.estimate, None, words)
    return Check(name, found.p >= ALPHA, found.estimate, found.p, words)


def _full_rank(columns: list[Floats]) -> Floats:
    kept: list[Floats] = []
    for column in columns:
        trial = np.column_stack([*kept, column])
        if np.linalg.matrix_rank(trial) == trial.shape[1]:
            kept.append(column)
    return np.column_stack(kept)


def _p_of(estimate: float, error: float, degrees: float) -> float:
    from scipy import stats

    if not error > 0.0:
        return 1.0
    return float(2.0 * stats.t.sf(abs(estimate) / error, degrees))


def strata_codes(data: Data) -> Ints:
    """The stratum of each row as a number."""
    return codes(data.stratum())
