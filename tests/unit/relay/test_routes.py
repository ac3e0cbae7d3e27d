"""Which way is taken, and who is left alone, by what has happened so far."""

import pytest

from kvrelay.relay.routes import (
    MAX_SUSPECT_S,
    MAX_SUSPECT_TRANSPORT_S,
    SUSPECT_S,
    SUSPECT_TRANSPORT_S,
    Routes,
    Way,
)

BOTH = ("nixl", "plasma")
NIXL, PLASMA = Way("nixl", "raw"), Way("plasma", "raw")


class Bed:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.routes = Routes(now_s=lambda: self.now_s)

    def choose(self, *offered: str) -> Way | None:
        return self.routes.choose("n1", offered or BOTH, BOTH, ["raw"])

    def rest(self) -> None:
        """Wait until the source is trusted again."""
        while self.routes.is_suspect("n1"):
            self.now_s += SUSPECT_S / 4


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_each_way_is_tried_and_the_cheapest_is_kept(bed: Bed) -> None:
    assert bed.choose() == NIXL
    bed.routes.measured("n1", NIXL, 1000, 2.0)
    assert bed.choose() == PLASMA
    bed.routes.measured("n1", PLASMA, 1000, 1.0)
    ways = [bed.choose() for _ in range(98)]
    assert ways.count(PLASMA) == 96
    assert ways.count(NIXL) == 2  # a look now and then


def test_only_what_both_ends_have(bed: Bed) -> None:
    assert bed.choose("plasma") == PLASMA
    assert bed.choose("other") is None
    bed.routes.transport = "nixl"
    assert bed.choose("plasma") is None


def test_a_source_that_failed_is_left_alone_for_longer_and_longer(bed: Bed) -> None:
    waits = []
    for _ in range(7):
        bed.routes.failed("n1")
        assert bed.choose() is None
        assert bed.routes.choose("n2", BOTH, BOTH, ["raw"]) is not None
        start_s = bed.now_s
        bed.rest()
        waits.append(bed.now_s - start_s)
    assert waits == [1, 2, 4, 8, 16, MAX_SUSPECT_S, MAX_SUSPECT_S]
    bed.routes.measured("n1", NIXL, 1000, 1.0)
    bed.routes.failed("n1")
    bed.now_s += SUSPECT_S
    assert bed.choose() is not None


def test_reads_that_fail_together_count_once(bed: Bed) -> None:
    for _ in range(16):
        bed.routes.failed("n1", "nixl")
    bed.now_s += SUSPECT_S
    assert bed.choose() == PLASMA
    bed.now_s += SUSPECT_TRANSPORT_S
    assert bed.choose() == NIXL


def test_no_number_of_failures_is_too_large(bed: Bed) -> None:
    for _ in range(1100):
        bed.routes.failed("n1", "nixl")
        bed.now_s += MAX_SUSPECT_TRANSPORT_S
    assert bed.choose() is not None


def test_a_transport_that_never_works_gives_way_to_another(bed: Bed) -> None:
    assert bed.choose() == NIXL
    bed.routes.failed("n1", "nixl")
    bed.rest()
    assert bed.choose() == PLASMA
    bed.routes.measured("n1", PLASMA, 1000, 1.0)
    tried = []
    for second in range(2000):
        bed.now_s += 1.0
        if bed.choose() == NIXL:
            tried.append(second)
            bed.routes.failed("n1", "nixl")
            bed.rest()
    assert 5 <= len(tried) <= 10  # it may be back one day
    assert tried[-1] - tried[-2] >= MAX_SUSPECT_TRANSPORT_S / 2


def test_a_transport_that_works_again_is_taken_again(bed: Bed) -> None:
    bed.routes.measured("n1", NIXL, 1000, 1.0)
    bed.routes.measured("n1", PLASMA, 1000, 2.0)
    bed.routes.failed("n1", "nixl")
    bed.rest()
    assert bed.choose() == PLASMA
    bed.now_s += SUSPECT_TRANSPORT_S
    assert bed.choose() == NIXL


def test_the_only_transport_is_taken_whatever_it_did(bed: Bed) -> None:
    bed.routes.failed("n1", "nixl")
    bed.rest()
    assert bed.choose("nixl") == NIXL
    bed.routes.transport = "nixl"
    assert bed.choose() == NIXL


def test_if_all_transports_failed_none_is_left_out(bed: Bed) -> None:
    for transport in BOTH:
        bed.routes.failed("n1", transport)
    bed.rest()
    assert bed.choose() == NIXL
