"""How alike two answers are: tokens, logprobs, words. Pure functions.

The answer of an arm is compared with the one that recomputing gave to the same prompt, and what
two recomputed answers differ by is the floor that no arm can be under.

Texts are compared in units: words and signs, and every Chinese, Japanese or Korean character by
itself, since those languages put no spaces between words.

Sources: BLEU: Papineni et al., ACL 2002, with the smoothing that NIST's mteval-v13a.pl applies to
single sentences (method 3 of Chen and Cherry, WMT 2014). ROUGE-L: Lin, "ROUGE: a package for
automatic evaluation of summaries", 2004, section 3, with precision and recall weighted alike.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MAX_ORDER = 4
# Ideographs with extension A and the compatibility block, kana, hangul.
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_UNITS = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+|[^\w\s]|_")


@dataclass(frozen=True, slots=True)
class Output:
    """What an engine has generated, greedily.

    Attributes:
        tokens: ids, [num_tokens].
        logprobs: at each of them, the natural logarithm of the probability of the most likely
            tokens, the chosen one included; [num_tokens].
    """

    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens, {len(self.logprobs)} sets of logprobs")


def common_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """Length of the common prefix of two sequences of token ids."""
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return i
    return min(len(one), len(two))


def agreement(tokens: Sequence[int], reference: Sequence[int]) -> float:
    """Share of places with the same token, of the longer answer's; 1 for two empty ones."""
    longer = max(len(tokens), len(reference))
    same = sum(a == b for a, b in zip(tokens, reference, strict=False))
    return same / longer if longer else 1.0


def logprob_drift(output: Output, reference: Output) -> float:
    """How far the logprobs of two answers are apart, at least: a lower bound.

    It is the mean absolute difference over the tokens that either answer lists, and then over the
    comparable places: those before which both answers are the same, the first difference
    included, since after it they go on from different texts.

    A list has the likeliest tokens only. One that it lacks is at most as likely there as the last
    one that it has, and counts with the least difference which that leaves: zero, if the other
    list has it no higher either. Where both list the same tokens, nothing is left open.

    Returns:
        In nats, 0 or more; the same with the answers exchanged.

    Raises:
        ValueError: there is no comparable place at which both have logprobs.
    """
    same = common_prefix(output.tokens, reference.tokens)
    places = zip(output.logprobs[: same + 1], reference.logprobs[: same + 1], strict=False)
    drifts = [_least_apart(ours, theirs) for ours, theirs in places if ours and theirs]
    if not drifts:
        raise ValueError("a drift needs a place at which both answers have logprobs")
    return statistics.fmean(drifts)


def _least_apart(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """The least that two lists of logprobs can differ by, in the mean over the tokens of either."""
    our_last, their_last = min(ours.values()), min(theirs.values())

    def of(token: int) -> float:
        if token not in theirs:
            return max(0.0, ours[token] - their_last)
        if token not in ours:
            return max(0.0, theirs[token] - our_last)
        return abs(ours[token] - theirs[token])

    return statistics.fmean(map(of, ours.keys() | theirs.keys()))


def perplexity(logprobs: Sequence[float]) -> float:
    """Perplexity of tokens with these logprobs: 1 if each was certain.

    Of a greedy answer it says how sure the model was of what it wrote, not how right.

    Raises:
        ValueError: there is none.
    """
    if not logprobs:
        raise ValueError("perplexity needs at least one token")
    return math.exp(-statistics.fmean(logprobs))


def output_perplexity(output: Output) -> float:
    """Perplexity of an output by its own logprobs.

    Raises:
        ValueError: it is empty, or a chosen token is not among its logprobs.
    """
    chosen = []
    for token, logprobs in zip(output.tokens, output.logprobs, strict=True):
        if token not in logprobs:
            raise ValueError(f"token {token} is not among its own logprobs")
        chosen.append(logprobs[token])
    return perplexity(chosen)


def consistency(repeats: Sequence[Sequence[int]]) -> float:
    """Mean agreement of all pairs of repeated answers to one prompt: the floor for `agreement`.

    Raises:
        ValueError: fewer than two.
    """
    if len(repeats) < 2:
        raise ValueError("consistency needs at least two answers")
    return statistics.fmean(agreement(a, b) for a, b in itertools.combinations(repeats, 2))


def units(text: str) -> list[str]:
    """A text's words, signs and single characters, as they come and in their case."""
    return _UNITS.findall(text)


def bleu(candidate: str, reference: str) -> float:
    """BLEU of one text against one reference, in 0 to 1.

    Up to four units in a row count, fewer if the candidate is shorter; an order without a match
    counts as half a match, the next such order as a quarter, and so on. Two empty texts are
    alike, and an empty one is unlike any other.
    """
    ours, theirs = units(candidate), units(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    logs, part = [], 1.0
    for order in range(1, min(_MAX_ORDER, len(ours)) + 1):
        counted = _ngrams(ours, order)
        matches: float = (counted & _ngrams(theirs, order)).total()
        if not matches:
            if order == 1:
                return 0.0
            part /= 2
            matches = part
        logs.append(math.log(matches / counted.total()))
    brevity = min(0.0, 1 - len(theirs) / len(ours))
    return math.exp(brevity + statistics.fmean(logs))


def _ngrams(sequence: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(sequence[i:] for i in range(order)), strict=False))


def rouge_l(candidate: str, reference: str) -> float:
    """ROUGE-L's F measure of one text against one reference, in 0 to 1.

    Two empty texts are alike, and an empty one is unlike any other.
    """
    ours, theirs = units(candidate), units(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * _common_subsequence(ours, theirs) / (len(ours) + len(theirs))


def _common_subsequence(one: Sequence[str], two: Sequence[str]) -> int:
    """Length of the longest one, by the usual table, a row at a time."""
    row = [0] * (len(two) + 1)
    for a in one:
        diagonal = 0
        for j, b in enumerate(two, 1):
            above = row[j]
            row[j] = diagonal + 1 if a == b else max(above, row[j - 1])
            diagonal = above
    return row[-1]
