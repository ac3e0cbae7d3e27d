"""The bytes as they are: what the others are measured against."""

from kvrelay.relay.codecs.base import Codec, CodecError, Octets


class RawCodec(Codec):
    """Copies."""

    name = "raw"
    number = 0

    def _pack(self, raw: Octets, room: Octets) -> int | None:
        return None  # stored

    def _unpack(self, payload: Octets, target: Octets) -> None:
        raise CodecError("raw bytes are stored, never packed")
