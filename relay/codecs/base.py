"""What every codec can do, and the envelope around what it writes.

    | magic 4 | format 1 | codec 1 | stored 1 | zero 1 | raw bytes 8 | whole length 8 | payload |

Little-endian. `stored` says that the payload is the raw bytes themselves: so ends whatever a
codec cannot shorten, and an encoding is never longer than its raw bytes and one envelope.

A codec is lossless for any bytes of any length: attention backends pack K and V in ways of their
own. It may hope for bf16 numbers, but only its ratio depends on them.

What the caller guarantees:
- `raw`, `encoded` and `target` are contiguous and do not overlap;
- after `decode` it compares the XXH3-128 of `target` with that of the raw bytes, which a slot
  carries anyway. Damage to the envelope or to the structure of a payload is refused here, a
  flipped bit of a number is not: another checksum would add a fifth to the time of `split`.

What a codec owes:
- `decode` writes nowhere but in `target`, and allocates nothing whose size the encoding tells;
- it has no state: any thread may call it, and others run meanwhile.
"""

import struct
from abc import ABC, abstractmethod
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvrelay.relay.errors import RelayError

Octets = NDArray[np.uint8]
Bytes = bytes | bytearray | memoryview | Octets

MAGIC = b"KVRC"
FORMAT = 1
MAX_RAW_BYTES = 1 << 30
_ENVELOPE = struct.Struct("<4sBBBBQQ")
ENVELOPE_BYTES = _ENVELOPE.size


class CodecError(RelayError):
    """Bytes that this codec did not write, or that are too long. The caller recomputes."""


def max_encoded_bytes(raw_bytes: int) -> int:
    """The longest that `raw_bytes` can become, with any codec."""
    return ENVELOPE_BYTES + raw_bytes


class Codec(ABC):
    """One way of writing a block in fewer bytes.

    Attributes:
        name: as settings, records and benchmarks call it.
        number: as the envelope calls it; never used again for another format.
    """

    name: ClassVar[str]
    number: ClassVar[int]

    def encode(self, raw: Bytes) -> memoryview:
        """The encoding of `raw`, in fresh memory."""
        target = np.empty(max_encoded_bytes(_octets(raw).size), np.uint8)
        return target.data[: self.encode_into(raw, target)]

    def encode_into(self, raw: Bytes, target: Bytes) -> int:
        """Write the encoding of `raw` to the beginning of `target`; how many bytes it takes.

        Raises:
            CodecError: `raw` is longer than `MAX_RAW_BYTES`, or `target` is shorter than
                `max_encoded_bytes` of it.
        """
        source, room = _octets(raw), _octets(target)
        if source.size > MAX_RAW_BYTES:
            raise CodecError(f"{source.size} bytes to encode, the limit is {MAX_RAW_BYTES}")
        if room.size < max_encoded_bytes(source.size):
            raise CodecError(f"{source.size} bytes to encode into {room.size}")
        payload = room[ENVELOPE_BYTES : ENVELOPE_BYTES + source.size]
        length = self._pack(source, payload)
        stored = length is None
        if length is None:
            payload[:] = source
            length = source.size
        whole = ENVELOPE_BYTES + length
        fields = (MAGIC, FORMAT, self.number, stored, 0, source.size, whole)
        _ENVELOPE.pack_into(room.data, 0, *fields)
        return whole

    def decode(self, encoded: Bytes, target: Bytes) -> None:
        """Write the raw bytes that were encoded to `target`, which has their length.

        Raises:
            CodecError: `encoded` is not what this codec wrote for that length. `target` may
                have been written to.
        """
        source, room = _octets(encoded), _octets(target)
        payload, stored = self._open(source, room.size)
        if stored:
            room[:] = payload
        else:
            self._unpack(payload, room)

    @abstractmethod
    def _pack(self, raw: Octets, room: Octets) -> int | None:
        """Write the payload to `room`, as long as `raw`; its length, None if it does not fit."""

    @abstractmethod
    def _unpack(self, payload: Octets, target: Octets) -> None:
        """Undo `_pack`; `payload` is at most as long as `target`.

        Raises:
            CodecError: `_pack` did not write this for that length.
        """

    def _open(self, encoded: Octets, raw_bytes: int) -> tuple[Octets, bool]:
        """The payload, and whether it is the raw bytes."""
        if encoded.size < ENVELOPE_BYTES:
            raise CodecError(f"{encoded.size} bytes are no encoding")
        magic, form, number, stored, zero, raw, whole = _ENVELOPE.unpack_from(encoded.data)
        if magic != MAGIC or form != FORMAT or zero:
            raise CodecError(f"not an encoding of format {FORMAT}")
        if number != self.number:
            raise CodecError(f"an encoding of codec {number}, not of {self.name} ({self.number})")
        if raw != raw_bytes:
            raise CodecError(f"an encoding of {raw} bytes, wanted {raw_bytes}")
        if whole != encoded.size:
            raise CodecError(f"an encoding of {whole} bytes in {encoded.size}")
        payload = encoded[ENVELOPE_BYTES:]
        if stored > 1 or payload.size > raw or (stored and payload.size != raw):
            raise CodecError(f"a payload of {payload.size} bytes for {raw}")
        return payload, bool(stored)


@cache
def codec(name: str) -> Codec:
    """The codec of that name.

    The first of a process that is not `raw` takes up to seconds: what it runs is compiled,
    and kept for the next process where that can be written. Whoever serves asks beforehand.

    Raises:
        CodecError: there is none.
    """
    match name:
        case "raw":
            from kvrelay.relay.codecs.raw import RawCodec

            return RawCodec()
        case "lz4":
            from kvrelay.relay.codecs.lz4 import Lz4Codec

            return Lz4Codec()
        case "split":
            from kvrelay.relay.codecs.split import SplitCodec

            return SplitCodec()
    raise CodecError(f"no codec '{name}'; known: {', '.join(NAMES)}")


NAMES = ("raw", "lz4", "split")


def _octets(buffer: Bytes) -> Octets:
    return np.frombuffer(buffer, np.uint8)
