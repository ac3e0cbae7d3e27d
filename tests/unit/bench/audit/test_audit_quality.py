"""Measures of quality against values worked out by hand or published."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from kvrelay.bench.audit.workload.quality import (
    Output,
    agreement,
    bleu,
    common_prefix,
    consistency,
    logprob_drift,
    output_perplexity,
    perplexity,
    rouge_l,
    units,
)


@pytest.mark.parametrize(
    ("one", "two", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([2], [1], 0)],
)
def test_common_prefix(one: list[int], two: list[int], length: int) -> None:
    assert common_prefix(one, two) == common_prefix(two, one) == length


def test_agreement_counts_places_of_the_longer() -> None:
    assert agreement([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert agreement([1, 2, 3, 4], [1, 9, 3, 8]) == 0.5
    assert agreement([1, 2], [1, 2, 3, 4]) == agreement([1, 2, 3, 4], [1, 2]) == 0.5
    assert agreement([], []) == 1.0
    assert agreement([], [1]) == 0.0


def test_drift_is_of_the_places_up_to_the_first_difference() -> None:
    reference = Output((5, 6, 7), ({5: -0.1, 6: -2.0}, {6: -0.5, 8: -1.0}, {7: -0.2}))
    assert logprob_drift(reference, reference) == 0.0
    moved = Output((5, 8, 7), ({5: -0.3, 6: -2.4}, {6: -0.9, 8: -0.8}, {7: -9.0}))
    # (0.2 + 0.4) / 2 and (0.4 + 0.2) / 2; the third place goes on from another text.
    assert logprob_drift(moved, reference) == pytest.approx(0.3)
    assert logprob_drift(reference, moved) == pytest.approx(0.3)
    # A place without logprobs tells nothing.
    silent = Output((5, 8), ({}, {6: -0.9, 8: -0.8}))
    assert logprob_drift(silent, reference) == pytest.approx(0.3)
    for nothing in (Output((), ()), Output((5,), ({},))):
        with pytest.raises(ValueError, match="at which both answers have logprobs"):
            logprob_drift(nothing, reference)


def test_a_token_that_one_list_lacks_has_the_drift_that_is_certain() -> None:
    reference = Output((5,), ({5: -0.1, 6: -2.0},))
    # 1.9 of token 1, which the reference has at -2.0 at most; nothing is certain of 5 and 6.
    strange = Output((1,), ({1: -0.1},))
    assert logprob_drift(strange, reference) == pytest.approx(1.9 / 3)
    assert logprob_drift(reference, strange) == pytest.approx(1.9 / 3)
    # 0.1 of token 5, 0.5 of 6, which the other has at -2.5 at most, and nothing certain of 7.
    other = Output((5,), ({5: -0.2, 7: -2.5},))
    assert logprob_drift(other, reference) == pytest.approx((0.1 + 0.5 + 0.0) / 3)


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 5.0])
def test_the_drift_is_never_above_the_true_one(sharpness: float) -> None:
    """Of whole distributions, of which the lists are the tops; half of them share no token."""
    rng = random.Random(7)
    for _ in range(50):
        whole = [normalised([sharpness * rng.gauss(0, 1) for _ in range(600)]) for _ in range(2)]
        tops = [sorted(range(600), key=each.__getitem__)[-20:] for each in whole]
        ours, theirs = (
            Output((top[-1],), ({token: each[token] for token in top},))
            for each, top in zip(whole, tops, strict=True)
        )
        listed = {*tops[0], *tops[1]}
        true = statistics.fmean(abs(whole[0][token] - whole[1][token]) for token in listed)
        found = logprob_drift(ours, theirs)
        assert found == logprob_drift(theirs, ours)
        assert 0 < found <= true + 1e-12


def normalised(scores: list[float]) -> list[float]:
    """Scores as logprobs."""
    total = math.log(sum(map(math.exp, scores)))
    return [score - total for score in scores]


def test_every_token_has_logprobs() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 sets"):
        Output((1, 2), ({1: 0.0},))


def test_perplexity() -> None:
    assert perplexity([0.0, 0.0]) == 1.0
    assert perplexity([math.log(0.25)] * 7) == pytest.approx(4.0)
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="at least one token"):
        perplexity([])
    output = Output((3, 4), ({3: math.log(0.5), 4: -3.0}, {4: math.log(0.125), 3: -5.0}))
    assert output_perplexity(output) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="token 9 is not among"):
        output_perplexity(Output((9,), ({3: -1.0},)))


def test_consistency_is_the_mean_over_pairs() -> None:
    assert consistency([[1, 2], [1, 2], [1, 2]]) == 1.0
    # 1, 1/2, 1/2
    assert consistency([[1, 2], [1, 2], [1, 3]]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="at least two"):
        consistency([[1]])


def test_units_are_words_and_single_ideographs() -> None:
    assert units("It's 3.5 GB_s, ok?") == [
        "It",
        "'",
        "s",
        "3",
        ".",
        "5",
        "GB",
        "_",
        "s",
        ",",
        "ok",
        "?",
    ]
    assert units("KV缓存很快。") == ["KV", "缓", "存", "很", "快", "。"]
    assert units("テスト 시험") == ["テ", "ス", "ト", "시", "험"]
    assert units("naïve café") == ["naïve", "café"]
    assert units("  \n") == []


@pytest.mark.parametrize(
    ("candidate", "reference", "value"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 1.0),
        # 5/6, 3/5, 1/4, and half a match of 3: sacrebleu 2 gives 37.99 for it.
        ("the cat sat on the mat", "the cat is on the mat", (5 / 6 * 3 / 5 / 4 / 6) ** 0.25),
        # The classic case of clipping: 2 of 7; no other order matches: 1/12, 1/20, 1/32.
        (
            "the the the the the the the",
            "the cat is on the mat",
            (2 / 7 / 12 / 20 / 32) ** 0.25,
        ),
        # Half as long as the reference.
        ("a b c d", "a b c d e f g h", math.exp(-1)),
        # Shorter than four: two orders only.
        ("a b", "a b", 1.0),
        ("x y z", "a b c", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
        ("a", "", 0.0),
        # By characters: 5/6, 3/5, 2/4, 1/3.
        ("今天天气不好", "今天天气很好", (5 / 6 * 3 / 5 * 2 / 4 / 3) ** 0.25),
    ],
)
def test_bleu(candidate: str, reference: str, value: float) -> None:
    assert bleu(candidate, reference) == pytest.approx(value)


@pytest.mark.parametrize(
    ("candidate", "reference", "value"),
    [
        # Lin 2004, section 3: sentences of one reference and their ROUGE-L.
        ("police kill the gunman", "police killed the gunman", 3 / 4),
        ("the gunman kill police", "police killed the gunman", 2 / 4),
        ("the gunman police killed", "police killed the gunman", 2 / 4),
        # Precision 2/2, recall 2/4.
        ("a d", "a b c d", 2 / 3),
        ("x", "a b", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
        ("今天天气不好", "今天天气很好", 5 / 6),
    ],
)
def test_rouge_l(candidate: str, reference: str, value: float) -> None:
    assert rouge_l(candidate, reference) == pytest.approx(value)
