"""Labels travel in the request's parameters, and a client cannot write them."""

from typing import Any

import pytest

from kvrelay.relay.labels import FIELD, Labels, without_labels

LABELS = Labels("b", 0.5, 0.9, next_agent="c", next_probability=0.5, foreseen=True)
FORGED = {
    FIELD: {"agent": "a", "embedding_cosine": 1.0, "is_probe": True},
    "kvrelay": {"mode": "auto"},
}


@pytest.mark.parametrize("params", [None, {}, {"kvrelay": {"mode": "auto"}}, FORGED])
def test_they_travel_and_replace_others(params: dict[str, Any] | None) -> None:
    carried = LABELS.added_to(params)
    assert Labels.of(carried) == LABELS
    assert carried.get("kvrelay") == (params or {}).get("kvrelay")


def test_forged_ones_are_taken_out() -> None:
    assert without_labels(FORGED) == {"kvrelay": {"mode": "auto"}}
    assert without_labels({FIELD: 1}) is None
    assert without_labels({}) is without_labels(None) is None


@pytest.mark.parametrize(
    "params", [None, {}, 3, "x", {"kvrelay": {}}, {FIELD: 3}, {FIELD: {"agent": 3}}]
)
def test_a_request_without_labels(params: object) -> None:
    assert Labels.of(params) == Labels()
    assert Labels.of(params).similarity_band is None


@pytest.mark.parametrize(
    ("jaccard", "cosine", "name"),
    [
        (None, None, None),
        (0.9, None, "high"),
        (0.9, 0.75, "mid"),
        (0.1, 0.9, "high"),
        (0.0, None, "low"),
    ],
)
def test_the_band_is_of_the_cosine_if_there_is_one(
    jaccard: float | None, cosine: float | None, name: str | None
) -> None:
    assert Labels("b", jaccard, cosine).similarity_band == name


def test_what_the_record_says() -> None:
    assert LABELS.in_record("a") == {
        "agent": "b",
        "served_by": "a",
        "minhash_jaccard": 0.5,
        "embedding_cosine": 0.9,
        "similarity_band": "high",
        "next_agent": "c",
        "next_probability": 0.5,
        "foreseen": True,
    }
    assert Labels().in_record("a")["agent"] == "a"
