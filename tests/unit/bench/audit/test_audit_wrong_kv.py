"""Noise of the moments of correct KV."""

from __future__ import annotations

import numpy as np
import pytest

from kvrelay.bench.audit.controls.wrong_kv import KvShape, moment_matched, numbers, shape_of
from kvrelay.bench.errors import BenchError

TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4}


def correct(shape: KvShape, num_slots: int = 3) -> list[bytes]:
    """Every layer, head and part has a mean and a scale of its own."""
    rng = np.random.default_rng(7)
    parts = (shape.num_layers, shape.num_heads, 2, 1)
    means, scales = rng.uniform(-5, 5, parts), rng.uniform(0.1, 3, parts)
    noise = rng.exponential(size=(num_slots, *parts[:3], shape.part)) - 1
    values = (means + scales * noise).astype(np.float32)
    if shape.dtype == "bfloat16":
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        return [slot.tobytes() for slot in halves]
    return [slot.astype(shape.dtype).tobytes() for slot in values]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_each_heads_keys_and_values_keep_mean_and_variance(dtype: str) -> None:
    shape = KvShape(3, 2, 512, dtype)
    slots = correct(shape)
    noise = moment_matched(slots, shape, np.random.default_rng(1))
    assert [len(slot) for slot in noise] == [shape.slot_bytes] * 3
    before, after = numbers(slots, shape), numbers(noise, shape)
    for moment in (np.mean, np.std):
        wanted, found = moment(before, axis=(0, 4)), moment(after, axis=(0, 4))
        assert wanted.shape == (3, 2, 2)
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    # It says nothing of what it stands in for.
    own = before.reshape(3, 12, 512) - before.mean((0, 4)).reshape(12, 1)
    other = after.reshape(3, 12, 512) - after.mean((0, 4)).reshape(12, 1)
    scale = (before.std((0, 4)) * after.std((0, 4))).reshape(12)
    assert np.abs((own * other).mean((0, 2)) / scale).max() < 0.15


def test_another_seed_makes_other_noise() -> None:
    shape = KvShape(1, 1, 64, "float32")
    slots = correct(shape)
    one, same, other = (moment_matched(slots, shape, np.random.default_rng(n)) for n in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_head_without_variance_stays_what_it_is() -> None:
    shape = KvShape(1, 1, 8, "float32")
    slot = np.full(16, 2.5, np.float32).tobytes()
    (noise,) = moment_matched([slot], shape, np.random.default_rng(1))
    assert noise == slot


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    shape = KvShape(1, 1, 1, "bfloat16")
    slot = np.array([0x3F80, 0xC000], np.uint16).tobytes()
    np.testing.assert_array_equal(numbers([slot], shape).ravel(), [1.0, -2.0])
    above = np.array([0x3F81, 0xC000], np.uint16).tobytes()
    # Two numbers of noise are standardised to -1 and 1: both keys come back, in some order.
    for seed in range(10):
        noise = moment_matched([slot, above], shape, np.random.default_rng(seed))
        assert sorted(np.frombuffer(b"".join(noise), np.uint16)[::2]) == [0x3F80, 0x3F81]
        assert set(np.frombuffer(b"".join(noise), np.uint16)[1::2]) == {0xC000}


CACHE = ((50, 3, 32, 128), "torch.bfloat16")
BYTES = 4 * 3 * 32 * 128 * 2


def test_the_shape_of_an_engines_slots() -> None:
    assert shape_of([CACHE] * 4, 32, BYTES) == KvShape(4, 3, 32 * 64, "bfloat16")


@pytest.mark.parametrize(
    ("caches", "slot_bytes"),
    [
        ([], BYTES),
        ([CACHE, ((50, 6, 32, 128), "torch.bfloat16")], BYTES),
        ([((2, 50, 32, 3, 64), "torch.bfloat16")] * 4, BYTES),
        ([((50, 32, 3, 128), "torch.bfloat16")] * 4, BYTES),
        ([((50, 3, 32, 128), "torch.float8_e4m3fn")] * 4, BYTES // 2),
        ([CACHE] * 4, BYTES + 1),
    ],
    ids=["none", "unlike", "gpu", "heads-within", "float8", "bytes"],
)
def test_what_cannot_be_taken_apart_is_an_error(
    caches: list[tuple[tuple[int, ...], str]], slot_bytes: int
) -> None:
    with pytest.raises(BenchError, match=r"imitated|is no"):
        shape_of(caches, 32, slot_bytes)
