"""Salts of requests: no tenant reaches another one's blocks, whatever it sends as its own salt."""

from hypothesis import given
from hypothesis import strategies as st

from kvrelay.relay.keys import request_salt, root_key

FINGERPRINT = bytes(range(32))
Origin = tuple[str | None, str | None]
ORIGINS = st.tuples(st.none() | st.text(max_size=40), st.none() | st.text(max_size=80))


def test_with_one_tenant_nothing_changes() -> None:
    assert request_salt(None, None) is None


@given(ORIGINS, ORIGINS)
def test_no_two_origins_share_a_salt(one: Origin, other: Origin) -> None:
    assert (request_salt(*one) == request_salt(*other)) == (one == other)


@given(ORIGINS)
def test_nothing_that_a_client_sends_is_taken_as_it_is(origin: Origin) -> None:
    salt = request_salt(*origin)
    assert salt is None or (salt != origin[1] and len(salt) == 64)


def test_whoever_knows_the_derivation_gains_nothing() -> None:
    """A client that sends another tenant's salt, what it is made of, or what that is hashed to."""
    victims = {str(request_salt("a", sent)) for sent in (None, "x")}
    known = ["a", "=a", "x", "a\0x", *victims]
    for _ in range(3):  # what comes of a forgery may be sent, too
        forged = {str(request_salt(tenant, sent)) for tenant in ("b", None) for sent in known}
        assert not forged & victims
        known += forged
    roots = {root_key(FINGERPRINT, salt) for salt in (*victims, *known, None)}
    assert len(roots) == len({*victims, *known, None})
