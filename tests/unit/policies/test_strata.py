"""Strata: the same at the decision and from the record, and never too many."""

import pytest

from kvrelay.policies.base import Candidate, RelayView
from kvrelay.policies.strata import MAX_STRATA, OTHER, Stratum, bounded, stratum, stratum_of


@pytest.mark.parametrize(
    ("tokens", "band"),
    [(0, "<512"), (511, "<512"), (512, "512-2k"), (2048, "2k-8k"), (8191, "2k-8k"), (8192, ">=8k")],
)
def test_prompt_bands(tokens: int, band: str) -> None:
    assert stratum("arena", tokens, 0.0).prompt == band


@pytest.mark.parametrize(
    ("fraction", "band"),
    [(0.0, "<50%"), (0.5, "50-90%"), (0.899, "50-90%"), (0.9, ">=90%"), (1.0, ">=90%")],
)
def test_shared_bands(fraction: float, band: str) -> None:
    assert stratum("arena", 1, fraction).shared == band


def test_a_view_and_its_record_have_one_stratum() -> None:
    view = RelayView(1000, 128, (Candidate("nodes", 512, 1), Candidate("arena", 256, 1)))
    assert stratum_of(view) == stratum("nodes", 1000, 0.64)
    assert stratum_of(view).label == "nodes/512-2k/50-90%"


def test_strata_are_bounded() -> None:
    known = {Stratum(f"link-{i}", "any", "any") for i in range(MAX_STRATA)}
    kept = next(iter(known))
    assert bounded(kept, known) == kept
    assert bounded(Stratum("link-new", "any", "any"), known) == OTHER
    assert bounded(kept, ()) == kept
