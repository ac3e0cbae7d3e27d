"""Identity of a block of KV: a hash chain over everything the KV is a function of.

    root  = H(fingerprint, salt, LoRA digest)
    key_i = H(key_{i-1}, tokens of block i, multimodal items that touch block i)

Every field is length-prefixed, so no two different inputs have the same encoding. blake2b
with 32 bytes, unkeyed but for the salt, which enters as a keyed digest: a key or a dump of
the store does not give a tenant's salt away. See RFC 7693.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NewType

BlockKey = NewType("BlockKey", bytes)
KEY_BYTES = 32
TOKEN_BYTES = 4


def digest_fields(fields: Iterable[bytes], person: bytes) -> bytes:
    """Hash of length-prefixed fields under a domain (`person`, at most 16 bytes)."""
    hasher = hashlib.blake2b(digest_size=KEY_BYTES, person=person)
    for field in fields:
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.digest()


def root_key(fingerprint: bytes, salt: str | None = None, lora: bytes = b"") -> BlockKey:
    """Start of the chain of one (model, tenant, adapter).

    Args:
        fingerprint: digest of the model fingerprint, 32 bytes.
        salt: as `request_salt` makes it; None and "" differ.
        lora: content digest of the adapter; empty without one.
    """
    sealed = b"" if salt is None else hashlib.blake2b(salt.encode(), key=fingerprint).digest()
    return BlockKey(digest_fields((fingerprint, sealed, lora), b"kvrelay.root"))


def request_salt(tenant: str | None, client_salt: str | None) -> str | None:
    """The salt of a request: its tenant's, with the client's own mixed in.

    Always a digest, so that a client who knows how it is made cannot name one: whatever it sends
    is hashed beside its tenant, and nothing that it sends is taken as it is.

    Args:
        tenant: as the ingress has found; None where there is one only.
        client_salt: `cache_salt` of the request's body.

    Returns:
        None if both are None: everybody shares.
    """
    if tenant is None and client_salt is None:
        return None
    parts = [b"" if each is None else b"=" + each.encode() for each in (tenant, client_salt)]
    return digest_fields(parts, b"kvrelay.salt").hex()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit words, the form keys and slots use.

    Raises:
        OverflowError: an id that is negative or does not fit.
    """
    return array("I", tokens).tobytes()


def child_key(parent: BlockKey, tokens: bytes, extra: bytes = b"") -> BlockKey:
    """Key of the block with these packed tokens after `parent`.

    Args:
        tokens: as `pack_tokens` returns them; fewer than a block's make a tail's key.
        extra: digest of multimodal items that reach into the block.
    """
    return BlockKey(digest_fields((parent, tokens, extra), b"kvrelay.block"))


def common_prefix_tokens(left: bytes, right: bytes) -> int:
    """How many leading tokens two packed sequences share."""
    length = min(len(left), len(right)) // TOKEN_BYTES * TOKEN_BYTES
    if left[:length] == right[:length]:
        return length // TOKEN_BYTES
    low, high = 0, length // TOKEN_BYTES  # tokens [0, low) are equal; [0, high) are not
    while high - low > 1:
        middle = (low + high) // 2
        if left[: middle * TOKEN_BYTES] == right[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low
