"""LZ4 over shuffled bytes: the widely known yardstick.

    payload = chunk*      chunk = plane(even bytes) plane(odd bytes)      plane = length 4, bytes

A chunk is `CHUNK_BYTES` of raw bytes, the last one what is left. Its bytes at even places and
those at odd places, the low and the high halves of 2-byte numbers, are an LZ4 block each, or as
they are where that is no shorter: then `length` is the plane's.

LZ4 finds repeated strings only, and exponents hardly repeat in strings of four. See
https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
"""

import struct

import lz4.block
import numpy as np

from kvrelay.relay.codecs.base import Codec, CodecError, Octets
from kvrelay.relay.codecs.kernels import join_bytes, split_bytes

# A plane is as long as LZ4 looks back; with both it stays in the core's own cache.
CHUNK_BYTES = 128 * 1024
_LENGTH = struct.Struct("<I")


class Lz4Codec(Codec):
    """Byte shuffle of 2-byte elements, then LZ4."""

    name = "lz4"
    number = 1

    def _pack(self, raw: Octets, room: Octets) -> int | None:
        planes = np.empty(CHUNK_BYTES, np.uint8)
        at = 0
        for start in range(0, raw.size, CHUNK_BYTES):
            chunk = raw[start : start + CHUNK_BYTES]
            even, odd = _planes(planes, chunk.size)
            split_bytes(chunk, even, odd)
            for plane in (even, odd):
                packed: Octets = plane
                block = lz4.block.compress(plane, store_size=False)
                if len(block) < plane.size:
                    packed = np.frombuffer(block, np.uint8)
                end = at + _LENGTH.size + packed.size
                if end > room.size:
                    return None
                _LENGTH.pack_into(room.data, at, packed.size)
                room[at + _LENGTH.size : end] = packed
                at = end
        return at

    def _unpack(self, payload: Octets, target: Octets) -> None:
        planes = np.empty(CHUNK_BYTES, np.uint8)
        at = 0
        for start in range(0, target.size, CHUNK_BYTES):
            chunk = target[start : start + CHUNK_BYTES]
            even, odd = _planes(planes, chunk.size)
            for plane in (even, odd):
                at = _unpack_plane(payload, at, plane)
            join_bytes(even, odd, chunk)
        if at != payload.size:
            raise CodecError(f"{payload.size - at} bytes behind the last plane")


def _planes(scratch: Octets, num_bytes: int) -> tuple[Octets, Octets]:
    """Where the bytes at even and at odd places of a chunk go."""
    half = (num_bytes + 1) // 2
    return scratch[:half], scratch[half:num_bytes]


def _unpack_plane(payload: Octets, at: int, plane: Octets) -> int:
    """Fill a plane from the payload's bytes from `at` on; where they end."""
    begin = at + _LENGTH.size
    if begin > payload.size:
        raise CodecError("the payload ends where a plane should begin")
    length: int = _LENGTH.unpack_from(payload.data, at)[0]
    end = begin + length
    if end > payload.size or length > plane.size:
        raise CodecError(f"a plane of {length} bytes for {plane.size}")
    packed = payload[begin:end]
    if length == plane.size:
        plane[:] = packed
        return end
    try:
        block = lz4.block.decompress(packed, uncompressed_size=plane.size)
    except lz4.block.LZ4BlockError as error:
        raise CodecError(f"not an LZ4 block: {error}") from error
    if len(block) != plane.size:
        raise CodecError(f"an LZ4 block of {len(block)} bytes for {plane.size}")
    plane[:] = np.frombuffer(block, np.uint8)
    return end
