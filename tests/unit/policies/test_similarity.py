"""MinHash against exact Jaccard, and the memory of recent prompts."""

import random
import time

import numpy as np
import pytest

from kvrelay.policies.similarity import (
    NUM_MINIMA,
    Band,
    Recent,
    band,
    cosine,
    jaccard,
    prompt_words,
    shingles,
    signature,
)

TEXTS = [
    "The kettle boils while the rain falls on the roof of the old station.",
    "def add(a, b):\n    return a + b  # nothing else",
    "Größe, naïve, 東京は雨です。 Ça va?",
]


def ids(seed: int, count: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(50_000) for _ in range(count)]


def exact(a: list[int], b: list[int]) -> float:
    """Jaccard index of the sets of five tokens in a row."""
    first, second = ({tuple(s[i : i + 5]) for i in range(len(s) - 4)} for s in (a, b))
    return len(first & second) / len(first | second)


def estimated(a: list[int] | str, b: list[int] | str) -> float:
    one, other = signature(prompt_words(a)), signature(prompt_words(b))
    assert one is not None and other is not None
    return float(jaccard(one[None], other)[0])


@pytest.mark.parametrize("shared", [0.0, 0.05, 0.25, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("count", [60, 1000, 8000])
def test_signatures_estimate_the_exact_jaccard_index(shared: float, count: int) -> None:
    errors = []
    for seed in range(40):
        head = ids(seed, int(count * shared))
        a = head + ids(1000 + seed, count - len(head))
        b = head + ids(2000 + seed, count - len(head))
        errors.append(estimated(a, b) - exact(a, b))
    worst = 0.5 / NUM_MINIMA**0.5  # standard error at an index of one half, where it is largest
    assert max(map(abs, errors)) <= 4.5 * worst
    assert abs(float(np.mean(errors))) <= 3.5 * worst / len(errors) ** 0.5
    assert float(np.std(errors)) <= 1.5 * worst


def test_a_sequence_with_few_different_tokens() -> None:
    chooser = random.Random(7)
    a = [chooser.randrange(4) for _ in range(3000)]
    b = a[:1500] + [chooser.randrange(2, 8) for _ in range(1500)]
    assert estimated(a, b) == pytest.approx(exact(a, b), abs=0.2)
    assert estimated([0] * 50, [0] * 900) == 1.0
    padded = [0] * 9 + ids(8, 500), [0] * 9 + ids(9, 500)
    assert estimated(*padded) == pytest.approx(exact(*padded), abs=0.1)


@pytest.mark.parametrize("text", TEXTS)
def test_white_space_does_not_count_but_words_and_their_order_do(text: str) -> None:
    spaced = "  " + text.replace(" ", " \n\t ") + "  "
    assert prompt_words(text).tolist() == prompt_words(spaced).tolist()
    turned = " ".join(reversed(text.split(" ")))
    assert prompt_words(text).tolist() != prompt_words(turned).tolist()
    assert estimated(text * 20, turned * 20) < 1.0


def test_words_of_a_text() -> None:
    words = prompt_words("a_b a1 a_b: é")
    names = ["a", "_", "b", "a1", "a", "_", "b", ":", "é"]
    numbers = dict(zip(names, words.tolist(), strict=True))
    assert [numbers[name] for name in names] == words.tolist()
    assert len(set(numbers.values())) == len(numbers)
    assert prompt_words("ab").tolist() != prompt_words("ba").tolist()
    long = "x" * 1000
    assert len(prompt_words(long)) == 1
    assert prompt_words(long).tolist() != prompt_words(long + "x").tolist()


def test_a_text_that_goes_on_is_like_its_beginning() -> None:
    chooser = random.Random(3)
    words = [f"word{chooser.randrange(3000)}" for _ in range(4000)]
    begun, whole = " ".join(words[:3600]), " ".join(words)
    assert estimated(begun, whole) == pytest.approx(0.9, abs=0.12)


@pytest.mark.parametrize("prompt", ["", " \n\t", [], [2**70], [2**63]])
def test_prompts_without_words_have_no_signature(prompt: str | list[int]) -> None:
    assert signature(prompt_words(prompt)) is None


@pytest.mark.parametrize("prompt", ["\ud800 lone", "x", [0], [5, 6], "\x00\x01"])
def test_odd_and_short_prompts_have_one(prompt: str | list[int]) -> None:
    words = prompt_words(prompt)
    assert signature(words) is not None
    assert len(shingles(words)) == 1


def test_eight_thousand_tokens_take_little_time() -> None:
    chooser = random.Random(5)
    text = " ".join(f"word{chooser.randrange(3000)}" for _ in range(6000))
    recent = Recent(jaccard)

    def measure_s(prompt: str | list[int]) -> float:
        start_s = time.thread_time()  # others may have the cores meanwhile
        row = signature(prompt_words(prompt))
        assert row is not None
        recent.compare_and_add("scope", row)
        return time.thread_time() - start_s

    for prompt in (ids(1, 8000), text):
        for _ in range(600):  # until the memory is full
            last_s = measure_s("a b c")
        best_s = min(measure_s(prompt) for _ in range(20))
        assert last_s < 0.1
        assert best_s < 0.005, f"{best_s * 1e3:.2f} ms"


def row(seed: int) -> np.ndarray:
    made = signature(prompt_words(ids(seed, 100)))
    assert made is not None
    return made


def test_the_best_match_is_reported() -> None:
    recent = Recent(jaccard)
    assert recent.compare_and_add("x", row(1)) is None
    assert recent.compare_and_add("x", row(2)) == pytest.approx(0.0, abs=0.05)
    assert recent.compare_and_add("x", row(1)) == 1.0


def test_scopes_are_kept_apart() -> None:
    recent = Recent(jaccard)
    recent.compare_and_add(("model", "tenant-1"), row(1))
    assert recent.compare_and_add(("model", "tenant-2"), row(1)) is None
    assert recent.compare_and_add(("model", "tenant-1"), row(1)) == 1.0


def test_the_oldest_are_forgotten() -> None:
    recent = Recent(jaccard, size=3)
    for seed in (1, 2, 3):
        recent.compare_and_add("x", row(seed))
    assert recent.compare_and_add("x", row(1)) == 1.0
    assert recent.compare_and_add("x", row(2)) == 1.0  # the first row(1) made room for the second
    for seed in (4, 5, 6):
        recent.compare_and_add("x", row(seed))
    best = recent.compare_and_add("x", row(1))
    assert best is not None and best < 0.2


def test_vectors_are_compared_by_cosine() -> None:
    recent = Recent(cosine)
    recent.compare_and_add("x", np.array([1.0, 0.0], np.float32))
    assert recent.compare_and_add("x", np.array([0.6, 0.8], np.float32)) == pytest.approx(0.6)
    assert recent.compare_and_add("x", np.array([-1.0, 0.0], np.float32)) == 0.0


@pytest.mark.parametrize(
    ("similarity", "name"),
    [(1.0, Band.HIGH), (0.85, Band.HIGH), (0.849, Band.MID), (0.7, Band.MID), (0.69, Band.LOW)],
)
def test_bands(similarity: float, name: Band) -> None:
    assert band(similarity) is name
