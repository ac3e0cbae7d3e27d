"""Who gets a request under owner affinity."""

import random
from collections import Counter
from collections.abc import Hashable

import pytest

from kvrelay.policies.affinity import CHUNK_BYTES, MAX_AHEAD, OwnerAffinity, prefix_hashes

TEXT = "".join(random.Random(1).choices("abcdefgh ", k=4 * CHUNK_BYTES))
IDS = [random.Random(2).randrange(50_000) for _ in range(1000)]
IDLE = Counter[str]()


def prefix(text: str = TEXT, scope: Hashable = "pool") -> list[bytes]:
    return prefix_hashes(scope, text)


def test_hashes_are_of_whole_chunks_and_all_before() -> None:
    assert len(prefix()) == 4
    assert prefix(TEXT + "more") == prefix(TEXT)
    assert prefix(TEXT[:-1]) == prefix(TEXT)[:3]
    changed = prefix("x" + TEXT[1:])
    assert not set(changed) & set(prefix())
    later = TEXT[: 2 * CHUNK_BYTES] + "x" + TEXT[2 * CHUNK_BYTES + 1 :]
    assert prefix(later)[:2] == prefix()[:2]
    assert not set(prefix(later)[2:]) & set(prefix())
    assert prefix("") == []


def test_token_ids_are_chunked_as_engine_blocks_are() -> None:
    assert len(prefix_hashes("pool", IDS)) == 1000 // 128
    assert prefix_hashes("pool", [*IDS[:300], 1, 2]) == prefix_hashes("pool", IDS)[:2]
    assert prefix_hashes("pool", [2**70]) == []


def test_scopes_have_nothing_in_common() -> None:
    assert not set(prefix(scope=("pool", "tenant-1"))) & set(prefix(scope=("pool", "tenant-2")))


def test_who_is_named_serves_what_nobody_holds() -> None:
    assert OwnerAffinity().choose("b", prefix(), IDLE) == "b"
    assert OwnerAffinity().choose("b", [], IDLE) == "b"


def test_the_owner_of_the_prefix_serves() -> None:
    affinity = OwnerAffinity()
    affinity.served("a", prefix()[:2])
    assert affinity.choose("b", prefix(), IDLE) == "a"
    assert affinity.choose("a", prefix(), IDLE) == "a"


def test_who_holds_more_wins_and_who_is_named_at_a_tie() -> None:
    affinity = OwnerAffinity()
    affinity.served("b", prefix()[:2])
    affinity.served("a", prefix()[:3])
    assert affinity.choose("b", prefix(), IDLE) == "a"
    affinity.served("b", prefix()[:3])
    assert affinity.choose("b", prefix(), IDLE) == "b"
    assert affinity.choose("a", prefix(), IDLE) == "a"
    assert affinity.choose("c", prefix(), IDLE) in ("a", "b")


@pytest.mark.parametrize(("named", "ahead", "chosen"), [(0, -1, "a"), (0, 0, "b"), (5, -1, "a")])
def test_a_busy_owner_is_passed_over(named: int, ahead: int, chosen: str) -> None:
    affinity = OwnerAffinity()
    affinity.served("a", prefix())
    in_flight = {"a": named + MAX_AHEAD + ahead, "b": named}
    assert affinity.choose("b", prefix(), in_flight) == chosen


def test_a_busy_owner_gives_way_to_one_that_holds_less() -> None:
    affinity = OwnerAffinity()
    affinity.served("a", prefix())
    affinity.served("c", prefix()[:2])
    assert affinity.choose("b", prefix(), {"a": 100}) == "c"


def test_an_owner_that_is_gone_owns_nothing() -> None:
    affinity = OwnerAffinity()
    affinity.served("c", prefix()[:1])
    affinity.served("a", prefix())
    affinity.forget("a")
    assert affinity.choose("b", prefix(), IDLE) == "c"
    affinity.forget("c")
    assert affinity.choose("b", prefix(), IDLE) == "b"


def test_memory_is_bounded_and_heads_outlive_ends() -> None:
    affinity = OwnerAffinity(max_chunks=6)
    affinity.served("a", prefix())
    other = prefix(TEXT[::-1])
    affinity.served("c", other)
    assert affinity.choose("b", other, IDLE) == "c"
    assert affinity.choose("b", prefix(), IDLE) == "a"  # its first two chunks are left
    affinity.served("c", prefix(TEXT.upper()))
    assert affinity.choose("b", prefix(), IDLE) == "b"


def test_few_holders_are_remembered_the_latest_ones() -> None:
    affinity = OwnerAffinity()
    for agent in "acdefg":
        affinity.served(agent, prefix())
    assert affinity.choose("a", prefix(), dict.fromkeys("defg", 100)) == "a"
    assert affinity.choose("b", prefix(), dict.fromkeys("def", 100)) == "g"
    affinity.forget("g")
    assert affinity.choose("b", prefix(), dict.fromkeys("def", 100)) == "b"
