"""Damaged encodings: refused or decoded to something, but never written past the target.

Run as a program it is the same fuzzing without pytest; `test_bounds` does so where numba checks
every index.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from kvrelay.relay.codecs.base import ENVELOPE_BYTES, NAMES, Codec, CodecError, Octets, codec

GUARD = 256
ENVELOPE = struct.Struct("<4sBBBBQQ")


def block(rng: np.random.Generator, num_bytes: int) -> Octets:
    numbers = rng.standard_normal(num_bytes // 2 + 1).astype(np.float32)
    numbers[::97] = 0.0
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)[:num_bytes]


def resealed(encoded: Octets, raw_bytes: int) -> Octets:
    """With an envelope that fits, so that the payload is looked at."""
    fields = list(ENVELOPE.unpack_from(encoded))
    fields[2:4] = encoded[5], min(int(encoded[6]), 1)
    fields[5:] = raw_bytes, encoded.size
    out = encoded.copy()
    ENVELOPE.pack_into(out, 0, *fields)
    return out


def damage(rng: np.random.Generator, encoded: Octets) -> Octets:
    """One kind of damage, at a random place; places where structure lies are the likelier."""
    kind = rng.integers(6)
    data = encoded.copy()
    near = ENVELOPE_BYTES + int(rng.integers(8))
    place = near if rng.random() < 0.4 and near < data.size else int(rng.integers(data.size))
    if kind == 0:
        data[place] ^= 1 << rng.integers(8)
    elif kind == 1:
        data[place : place + 9] = rng.integers(256, size=data[place : place + 9].size)
    elif kind == 2:
        data = data[:place]
    elif kind == 3:
        data = np.concatenate([data, rng.integers(256, size=1 + place % 99).astype(np.uint8)])
    elif kind == 4:
        data = np.delete(data, slice(place, place + 3))
    else:
        data[ENVELOPE_BYTES:] = rng.integers(256, size=data.size - ENVELOPE_BYTES)
    return data


def fuzz(each: Codec, rounds: int, seed: int = 1) -> tuple[int, int]:
    """How many damaged encodings were refused, and how many decoded to something."""
    rng = np.random.default_rng(seed)
    refused = decoded = 0
    for number in range(rounds):
        if number % 50 == 0:
            size = int(rng.choice([40, 1000, 16_384, 40_003, 140_001]))
            raw = block(rng, size)
            encoded = np.frombuffer(each.encode(raw), np.uint8)
            memory = np.empty(size + 2 * GUARD, np.uint8)
        damaged = damage(rng, encoded)
        if damaged.size >= ENVELOPE_BYTES and rng.random() < 0.7:
            damaged = resealed(damaged, size)
        memory[:] = 0xC3
        try:
            each.decode(damaged, memory[GUARD:-GUARD])
            decoded += 1
        except CodecError:
            refused += 1
        assert (memory[:GUARD] == 0xC3).all() and (memory[-GUARD:] == 0xC3).all()
    return refused, decoded


@pytest.fixture(params=NAMES)
def each(request: pytest.FixtureRequest) -> Codec:
    return codec(request.param)


def test_damage(each: Codec) -> None:
    refused, decoded = fuzz(each, 2000)
    assert refused > 400
    # A number's flipped bit is what the slot's checksum is for.
    assert decoded > 100


@pytest.mark.slow
def test_bounds(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, __file__], env=environment, cwd=tmp_path, check=True)


def test_every_field_of_the_envelope_is_checked(each: Codec) -> None:
    raw = block(np.random.default_rng(1), 4096)
    encoded = np.frombuffer(each.encode(raw), np.uint8)
    target = bytearray(raw.size)
    for place in range(ENVELOPE_BYTES):
        for bit in range(8):
            damaged = encoded.copy()
            damaged[place] ^= 1 << bit
            # Whether it is stored: packed bytes read as raw ones, or the other way round.
            if place == 6 and bit == 0 and each.name == "raw":
                match = "never packed"
            else:
                match = {4: "format", 5: "codec", 6: "payload"}.get(place, "encoding")
            with pytest.raises(CodecError, match=match):
                each.decode(damaged, target)


def test_wrong_lengths(each: Codec) -> None:
    raw = block(np.random.default_rng(1), 100_000)
    encoded = bytes(each.encode(raw))
    for wrong in (b"", encoded[: ENVELOPE_BYTES - 1], encoded[:-1], encoded + b"\0"):
        with pytest.raises(CodecError, match="encoding"):
            each.decode(wrong, bytearray(raw.size))
    for size in (0, raw.size - 1, raw.size + 1):
        with pytest.raises(CodecError, match="wanted"):
            each.decode(encoded, bytearray(size))


@pytest.mark.parametrize("name", ["lz4", "split"])
def test_bytes_behind_or_missing_from_a_payload_are_refused(name: str) -> None:
    raw = block(np.random.default_rng(1), 40_003)
    encoded = np.frombuffer(codec(name).encode(raw), np.uint8)
    for wrong in (np.append(encoded, encoded[-1:]), encoded[:-1], encoded[:ENVELOPE_BYTES]):
        with pytest.raises(CodecError, match=r"behind the last plane|ends|bytes for|do not have"):
            codec(name).decode(resealed(wrong, raw.size), bytearray(raw.size))


def test_an_encoding_of_another_codec_is_named() -> None:
    encoded = codec("lz4").encode(bytes(4096))
    with pytest.raises(CodecError, match=r"codec 1, not of split \(2\)"):
        codec("split").decode(encoded, bytearray(4096))


def test_a_payload_longer_than_its_raw_bytes_is_refused(each: Codec) -> None:
    head = ENVELOPE.pack(b"KVRC", 1, each.number, 0, 0, 64, ENVELOPE_BYTES + 65)
    with pytest.raises(CodecError, match="65 bytes for 64"):
        each.decode(head + bytes(65), bytearray(64))


@pytest.mark.parametrize("claim", [2**20, 2**31, 2**63])
def test_nothing_is_allocated_for_what_is_claimed(each: Codec, claim: int) -> None:
    raw = block(np.random.default_rng(1), 300_000)
    encoded = np.frombuffer(each.encode(raw), np.uint8).copy()
    lies = []
    for place, size in ((8, 8), (16, 8), (24, 4)):
        lie = encoded.copy()
        lie[place : place + size] = np.frombuffer(claim.to_bytes(8, "little"), np.uint8)[:size]
        lies.append(lie)
    target = np.empty(raw.size, np.uint8)
    each.decode(encoded, target)
    tracemalloc.start()
    try:
        for lie in lies:
            try:
                each.decode(lie, target)
            except CodecError:
                continue
            assert lie is lies[-1], "an envelope that lies was believed"
        assert tracemalloc.get_traced_memory()[1] < 512 * 1024
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    for name in NAMES:
        print(name, *fuzz(codec(name), 3000, seed=2))
