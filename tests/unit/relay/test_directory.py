from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay.directory import Batch, DirectoryCore

KEYS = [bytes([n]) * 32 for n in range(6)]


def test_a_store_that_came_back_replaces_what_was_known() -> None:
    directory = DirectoryCore()
    assert directory.publish(Batch("n1", b"1", True, (KEYS[0], KEYS[1]), ()))
    assert directory.publish(Batch("n2", b"2", True, (KEYS[1],), ()))
    assert directory.lookup(KEYS[:2]) == [["n1"], ["n1", "n2"]]
    assert not directory.publish(Batch("n1", b"new", False, (KEYS[2],), ()))
    assert directory.publish(Batch("n1", b"new", True, (KEYS[2],), ()))
    assert directory.lookup(KEYS[:3]) == [[], ["n2"], ["n1"]]


def test_a_directory_that_came_back_asks_for_everything() -> None:
    assert not DirectoryCore().publish(Batch("n1", b"1", False, (KEYS[0],), ()))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2"]),
            st.booleans(),
            st.sets(st.sampled_from(KEYS)),
            st.sets(st.sampled_from(KEYS)),
        )
    )
)
def test_any_history_keeps_it_consistent(history: list) -> None:
    directory = DirectoryCore()
    model: dict[str, set[bytes]] = {}
    for node, whole, added, removed in history:
        if directory.publish(Batch(node, b"i", whole, tuple(added), tuple(removed))):
            before = set() if whole else model[node]
            model[node] = (before - removed) | added
        directory.check_integrity()
    for key, nodes in zip(KEYS, directory.lookup(KEYS), strict=True):
        assert nodes == sorted(node for node, keys in model.items() if key in keys)
