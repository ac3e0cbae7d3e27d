"""KV that looks like an example's own and says nothing of it: random, of the same moments.

Slots are opaque to relay. Here they are taken apart as vLLM 0.29's CPU attention lays them out
(`CPUAttentionBackendImpl.forward`): every layer has, for each KV head, its keys and then its
values. In what order the kernels of an instruction set pack the numbers of one such part does
not matter, since neither a mean nor a variance depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.errors import BenchError

Numbers = NDArray[np.float32]
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class KvShape:
    """What the bytes of a slot are: [num_layers, num_heads, 2, part], the parts K and V.

    Attributes:
        num_layers: layers with KV of their own.
        num_heads: KV heads of a layer.
        part: numbers in one head's K, or V, of a block: its tokens times the head's width.
        dtype: `bfloat16`, `float16` or `float32`.
    """

    num_layers: int
    num_heads: int
    part: int
    dtype: str

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.num_layers * self.num_heads * 2 * self.part * _BYTES[self.dtype]


def shape_of(
    caches: Sequence[tuple[Sequence[int], str]], block_tokens: int, slot_bytes: int
) -> KvShape:
    """The shape of the slots of an engine.

    Args:
        caches: shape, [num_blocks, num_heads, block_tokens, 2 * head_dim], and dtype, such as
            `torch.bfloat16`, of each layer's KV tensor.
        block_tokens: tokens of a block.
        slot_bytes: what the engine says that a slot has.

    Raises:
        BenchError: the layers are not alike, or laid out otherwise.
    """
    if len({(tuple(shape), dtype) for shape, dtype in caches}) != 1:
        raise BenchError(f"the KV of these layers cannot be imitated: {list(caches)}")
    shape, dtype = caches[0]
    name = dtype.removeprefix("torch.")
    if len(shape) != 4 or shape[2] != block_tokens or shape[3] % 2 or name not in _BYTES:
        raise BenchError(f"KV of shape {tuple(shape)} and {name} cannot be imitated")
    found = KvShape(len(caches), shape[1], math.prod(shape[2:]) // 2, name)
    if found.slot_bytes != slot_bytes:
        raise BenchError(f"a slot of {slot_bytes} bytes is no {found}")
    return found


def moment_matched(slots: Sequence[bytes], shape: KvShape, rng: np.random.Generator) -> list[bytes]:
    """Normal numbers with the mean and the variance that each head's K and V has over the slots.

    The noise is standardised before it is scaled, so that its moments are the wanted ones and not
    merely expected to be; what is left is the rounding to `shape.dtype`.

    Args:
        slots: the correct KV, at least one slot, `shape.slot_bytes` each.
        shape: of a slot.
        rng: makes the noise.

    Returns:
        As many slots.
    """
    correct = numbers(slots, shape)
    over = (0, 4)  # slots, and the numbers of a part
    noise = rng.standard_normal(correct.shape, np.float32)
    noise -= noise.mean(over, keepdims=True)
    noise /= noise.std(over, keepdims=True)
    wanted = correct.mean(over, keepdims=True) + correct.std(over, keepdims=True) * noise
    return [_packed(slot, shape.dtype) for slot in wanted]


def numbers(slots: Sequence[bytes], shape: KvShape) -> Numbers:
    """Slots as numbers: [num_slots, num_layers, num_heads, 2, part]."""
    found = np.stack([_unpacked(slot, shape.dtype) for slot in slots])
    return found.reshape(len(slots), shape.num_layers, shape.num_heads, 2, shape.part)


def _unpacked(data: bytes, dtype: str) -> Numbers:
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype).astype(np.float32)


def _packed(values: Numbers, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return values.astype(dtype).tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + to_even) >> np.uint32(16)).astype(np.uint16).tobytes()
