"""Every codec gives back any bytes, in the target and nowhere else, whatever they are like."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvrelay.relay.codecs import base, kernels
from kvrelay.relay.codecs.base import (
    ENVELOPE_BYTES,
    NAMES,
    Codec,
    CodecError,
    Octets,
    codec,
    max_encoded_bytes,
)
from kvrelay.relay.codecs.lz4 import CHUNK_BYTES

GUARD = 64
# Around every border that some codec has, odd ones included.
BORDERS = (0, kernels.UNIT_BYTES, 2 * kernels.CHUNK_VALUES, 4 * kernels.CHUNK_VALUES, CHUNK_BYTES)
SIZES = sorted({max(0, border + n) for border in BORDERS for n in (-33, -1, 0, 1, 2, 31, 33)})


def bf16(values: NDArray[np.float32]) -> Octets:
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def like_kv(rng: np.random.Generator, num_bytes: int) -> Octets:
    """Numbers whose scale differs from one run of 64 to the next, as channels' do."""
    scales = np.exp2(rng.normal(0, 1, num_bytes // 128 + 1)).repeat(64)
    numbers = rng.standard_normal(num_bytes // 2 + 1) * scales[: num_bytes // 2 + 1]
    return bf16(numbers.astype(np.float32))[:num_bytes]


def unused_rest(rng: np.random.Generator, num_bytes: int) -> Octets:
    data = like_kv(rng, num_bytes)
    data[num_bytes // 3 :] = 0
    return data


def outliers(rng: np.random.Generator, num_bytes: int) -> Octets:
    data = like_kv(rng, num_bytes)
    words = data[: num_bytes // 2 * 2].view(np.uint16)
    words[::5] = 0x7F80  # infinity
    words[1::7] = 0x0001  # subnormal
    return data


def every_value(rng: np.random.Generator, num_bytes: int) -> Octets:
    words = np.arange(num_bytes // 2 + 1, dtype=np.uint16) + rng.integers(65536, dtype=np.uint16)
    return words.view(np.uint8)[:num_bytes]


def half_noise(rng: np.random.Generator, num_bytes: int) -> Octets:
    data = rng.integers(256, size=num_bytes, dtype=np.uint8)
    data[: num_bytes // 2] = like_kv(rng, num_bytes // 2)
    return data


def noise(rng: np.random.Generator, num_bytes: int) -> Octets:
    return rng.integers(256, size=num_bytes, dtype=np.uint8)


def zeros(rng: np.random.Generator, num_bytes: int) -> Octets:
    return np.zeros(num_bytes, np.uint8)


def float16(rng: np.random.Generator, num_bytes: int) -> Octets:
    return rng.standard_normal(num_bytes // 2 + 1).astype(np.float16).view(np.uint8)[:num_bytes]


KINDS = (like_kv, unused_rest, outliers, every_value, half_noise, noise, zeros, float16)


@pytest.fixture(params=NAMES)
def each(request: pytest.FixtureRequest) -> Codec:
    return codec(request.param)


def there_and_back(each: Codec, raw: Octets, offset: int = 0) -> int:
    """Encode and decode between guards; how long the encoding is."""
    room = np.full(offset + max_encoded_bytes(raw.size) + GUARD, 0xA5, np.uint8)
    length = each.encode_into(raw, room[offset:-GUARD])
    assert length <= max_encoded_bytes(raw.size)
    assert (room[-GUARD:] == 0xA5).all() and (room[:offset] == 0xA5).all()
    target = np.full(offset + raw.size + GUARD, 0x5A, np.uint8)
    each.decode(room[offset : offset + length], target[offset : offset + raw.size])
    assert np.array_equal(target[offset : offset + raw.size], raw)
    assert (target[offset + raw.size :] == 0x5A).all() and (target[:offset] == 0x5A).all()
    return length


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_at_all_borders(each: Codec, kind) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    for size in SIZES:
        there_and_back(each, kind(rng, size))


@given(data=st.binary(max_size=3000), name=st.sampled_from(NAMES), offset=st.integers(0, 3))
def test_any_bytes(data: bytes, name: str, offset: int) -> None:
    there_and_back(codec(name), np.frombuffer(data, np.uint8), offset)


@given(
    exponents=st.lists(st.integers(0, 255), min_size=16, max_size=64),
    size=st.integers(0, 40_000),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_mixture_of_exponents(exponents: list[int], size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = rng.choice(np.array(exponents, np.uint16), size // 2 + 1) << 7
    words |= rng.integers(128, size=words.size, dtype=np.uint16)
    there_and_back(codec("split"), words.view(np.uint8)[:size])


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_odd_addresses(each: Codec, offset: int) -> None:
    rng = np.random.default_rng(offset)
    raw = like_kv(rng, 100_003)
    shifted = np.empty(raw.size + offset, np.uint8)[offset:]
    shifted[:] = raw
    there_and_back(each, shifted, offset)


def test_ratios() -> None:
    raw = like_kv(np.random.default_rng(1), 1 << 20)
    assert len(codec("raw").encode(raw)) == max_encoded_bytes(raw.size)
    assert len(codec("lz4").encode(raw)) < raw.size
    assert raw.size / len(codec("split").encode(raw)) > 1.31
    assert raw.size / len(codec("lz4").encode(zeros(np.random.default_rng(1), raw.size))) > 100


def test_what_cannot_be_shortened_is_stored(each: Codec) -> None:
    raw = noise(np.random.default_rng(1), 50_001)
    encoded = each.encode(raw)
    assert len(encoded) == max_encoded_bytes(raw.size)
    assert bytes(encoded[ENVELOPE_BYTES:]) == raw.tobytes()


def test_a_few_infinities_cost_only_themselves() -> None:
    raw = like_kv(np.random.default_rng(1), 1 << 18)
    plain = len(codec("split").encode(raw))
    raw.view(np.uint16)[::1024] = 0x7F80
    assert len(codec("split").encode(raw)) <= plain + raw.size // 2048


def test_all_kinds_of_buffers(each: Codec) -> None:
    raw = like_kv(np.random.default_rng(1), 4096).tobytes()
    with mmap.mmap(-1, 4096) as memory:
        memory[:] = raw
        view = memoryview(memory)
        for source in (raw, bytearray(raw), view, np.frombuffer(raw, np.uint16)):
            encoded = each.encode(source)
            for target in (bytearray(4096), np.zeros(2048, np.uint16), view):
                each.decode(encoded, target)
                assert bytes(target) == raw
        del source, target
        view.release()


def test_what_is_no_buffer_of_one_piece_is_refused(each: Codec) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        each.encode(np.zeros((8, 8), np.uint8)[:, :4])
    with pytest.raises((ValueError, TypeError)):
        each.decode(each.encode(bytes(4096)), bytes(4096))  # cannot be written


def test_lengths_are_checked_before_anything_is_done(
    each: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CodecError, match="into 123"):
        each.encode_into(bytes(100), bytearray(123))
    monkeypatch.setattr(base, "MAX_RAW_BYTES", 99)
    with pytest.raises(CodecError, match="the limit is 99"):
        each.encode(bytes(100))


def test_threads_share_a_codec(each: Codec) -> None:
    rng = np.random.default_rng(1)
    blocks = [like_kv(rng, 200_000 + n) for n in range(16)]
    with ThreadPoolExecutor(4) as pool:
        lengths = list(pool.map(lambda raw: there_and_back(each, raw), blocks))
    assert lengths == [len(each.encode(raw)) for raw in blocks]


def test_names_and_numbers() -> None:
    assert [codec(name).name for name in NAMES] == list(NAMES)
    assert {codec(name).number for name in NAMES} == set(range(len(NAMES)))
    assert codec("split") is codec("split")
    with pytest.raises(CodecError, match="no codec 'zip'; known: raw, lz4, split"):
        codec("zip")


@pytest.mark.slow
def test_no_place_for_what_is_compiled(tmp_path: Path) -> None:
    script = (
        "from kvrelay.relay.codecs.base import codec;"
        "c = codec('split'); t = bytearray(4096); c.decode(c.encode(b'kv' * 2048), t);"
        "assert bytes(t) == b'kv' * 2048"
    )
    # The only locator that is left wants NUMBA_CACHE_DIR, and that is not set.
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    environment.pop("NUMBA_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True)
