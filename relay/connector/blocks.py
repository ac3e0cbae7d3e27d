"""The engine's KV blocks as bytes: copied to and from slots, whole and opaque.

Attention backends pack K and V inside a block as they like (on CPU it depends on the
instruction set), so nothing here looks into a block. A slot is the blocks of all layers in
layer order. `save` and `load` return the XXH3-128 of the bytes *at the destination*, read
while they are still in cache: it proves what was written, not what was meant to be.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache

import torch
import xxhash

from kvrelay.relay import memory
from kvrelay.relay.errors import RelayError

# Hashing whole blocks fetches them from memory again: a fifth slower (measured, 2.9 MB).
_STEP_BYTES = 256 * 1024


class UnsupportedLayout(RelayError):
    """These KV tensors cannot be taken apart into blocks."""


class BlockMemory(ABC):
    """All KV blocks of one engine worker."""

    slot_bytes: int

    @abstractmethod
    def save(self, block_id: int, address: int) -> bytes:
        """Copy a block to `slot_bytes` bytes at `address`; their checksum."""

    @abstractmethod
    def load(self, block_id: int, address: int) -> bytes:
        """Copy `slot_bytes` bytes at `address` into a block; checksum of what came in."""

    def fence(self) -> None:
        """Called after a forward pass, before its blocks are saved; the host needs none."""
        return


class HostBlocks(BlockMemory):
    """Blocks in host memory, moved with memmove, which lets other threads run."""

    def __init__(self, pieces: list[tuple[int, int, int]]) -> None:
        """`pieces` of every block: (address in block 0, distance to the next block, bytes)."""
        self._pieces = pieces
        self.slot_bytes = sum(num_bytes for _, _, num_bytes in pieces)

    def save(self, block_id: int, address: int) -> bytes:
        hasher = xxhash.xxh3_128()
        for base, stride, num_bytes in self._pieces:
            _move(address, base + block_id * stride, num_bytes, hasher)
            address += num_bytes
        return hasher.digest()

    def load(self, block_id: int, address: int) -> bytes:
        hasher = xxhash.xxh3_128()
        for base, stride, num_bytes in self._pieces:
            _move(base + block_id * stride, address, num_bytes, hasher)
            address += num_bytes
        return hasher.digest()


class DeviceBlocks(BlockMemory):
    """Blocks in device memory, moved by torch copies on a stream of their own.

    The checksum of a load is taken over the slot's bytes on the host.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        """`tensors`: [num_blocks, ...] each, one or two a layer."""
        self._tensors = tensors
        self._sizes = [t[0].numel() * t.element_size() for t in tensors]
        self.slot_bytes = sum(self._sizes)
        device = tensors[0].device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fence(self) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def save(self, block_id: int, address: int) -> bytes:
        self._copy(block_id, address, to_host=True)
        return _digest(address, self.slot_bytes)

    def load(self, block_id: int, address: int) -> bytes:
        checksum = _digest(address, self.slot_bytes)
        self._copy(block_id, address, to_host=False)
        return checksum

    def _copy(self, block_id: int, address: int, to_host: bool) -> None:
        with torch.cuda.stream(self._stream):  # a no-op for None
            at = address
            for tensor, num_bytes in zip(self._tensors, self._sizes, strict=True):
                block = tensor[block_id]
                host = torch.frombuffer(_view(at, num_bytes), dtype=torch.uint8)
                host = host.view(tensor.dtype).view(block.shape)
                (host if to_host else block).copy_(block if to_host else host)
                at += num_bytes
        if self._stream is not None:
            self._stream.synchronize()


def block_memory(kv_caches: Mapping[str, torch.Tensor], num_blocks: int) -> BlockMemory:
    """The blocks behind an engine's KV tensors, one tensor a layer.

    On the host the tensors are rearranged in place, block by block instead of layer by
    layer, where they allow it, so that a block is one piece: half the copying time.

    Raises:
        UnsupportedLayout: a tensor without a recognisable block dimension.
    """
    layers = list({t.data_ptr(): t for t in kv_caches.values()}.values())
    if not layers or num_blocks < 3:
        raise UnsupportedLayout(f"{len(layers)} KV tensors of {num_blocks} blocks")
    if layers[0].device.type == "cpu" and _interleave(layers, num_blocks):
        return HostBlocks(_one_piece(layers))
    tensors = [part for layer in layers for part in _block_major(layer, num_blocks)]
    if layers[0].device.type != "cpu":
        return DeviceBlocks(tensors)
    pieces = []
    for tensor in tensors:
        if not tensor[0].is_contiguous():
            raise UnsupportedLayout(f"blocks in pieces: {tuple(tensor.shape)}")
        size = tensor.element_size()
        memory.populate(tensor.data_ptr(), tensor.stride(0) * num_blocks * size, write=True)
        pieces.append((tensor.data_ptr(), tensor.stride(0) * size, tensor[0].numel() * size))
    return HostBlocks(pieces)


def _block_major(layer: torch.Tensor, num_blocks: int) -> list[torch.Tensor]:
    """Views of a layer's tensor whose first dimension counts blocks."""
    if layer.shape[0] == num_blocks:
        return [layer]
    if layer.dim() > 1 and layer.shape[:2] == (2, num_blocks):
        return [layer[0], layer[1]]
    raise UnsupportedLayout(f"no dimension of {num_blocks} blocks in {tuple(layer.shape)}")


def _interleave(layers: list[torch.Tensor], num_blocks: int) -> bool:
    """Rearrange equal layers of one storage so that all layers of a block are neighbours.

    Same storage, other strides: nothing is allocated, and the tensors stay the objects that
    the attention layers hold. Done before anything has been computed.
    """
    first = layers[0]
    if any(
        t.shape != first.shape
        or t.dtype != first.dtype
        or not t.is_contiguous()
        or t.shape[0] != num_blocks
        or t.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        for t in layers
    ):
        return False
    per_layer = first[0].numel()
    start = min(t.storage_offset() for t in layers)
    tiled = {start + n * num_blocks * per_layer for n in range(len(layers))}
    if {t.storage_offset() for t in layers} != tiled:
        return False
    size = first.element_size()
    memory.populate(
        first.untyped_storage().data_ptr() + start * size,
        len(layers) * num_blocks * per_layer * size,
        write=True,
    )
    strides = (len(layers) * per_layer, *first.stride()[1:])
    for number, layer in enumerate(layers):
        layer.set_(layer.untyped_storage(), start + number * per_layer, layer.shape, strides)
    return True


def _one_piece(layers: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    size = layers[0].element_size()
    stride = layers[0].stride(0) * size
    return [(min(t.data_ptr() for t in layers), stride, stride)]


@lru_cache(maxsize=64)
def _array(num_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * num_bytes


def _view(address: int, num_bytes: int) -> ctypes.Array[ctypes.c_char]:
    return _array(num_bytes).from_address(address)


def _move(target: int, source: int, num_bytes: int, hasher: xxhash.xxh3_128) -> None:
    """Copy and hash what has arrived, in steps that stay in the core's own cache."""
    for at in range(0, num_bytes, _STEP_BYTES):
        step = min(_STEP_BYTES, num_bytes - at)
        ctypes.memmove(target + at, source + at, step)
        hasher.update(_view(target + at, step))


def _digest(address: int, num_bytes: int) -> bytes:
    return xxhash.xxh3_128_digest(_view(address, num_bytes))
