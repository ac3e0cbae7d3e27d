"""The loops over single numbers, compiled (numba); they run without the GIL.

They know lengths and nothing else of what they read: every access is inside an array whose
length was checked before.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from kvrelay.relay.codecs.base import Octets

Words = NDArray[np.uint16]

CHUNK_VALUES = 8192  # 16 KiB: with what it becomes it stays in the core's first cache
UNIT_BYTES = 32  # codes are searched in words of 16
_CHUNK_HEAD = 3  # top, number of escapes
_WINDOW = 15  # exponents that have a code; the code 15 is the escape
_SAMPLE, _SAMPLE_EVERY = 8, 128  # values counted for `top`: enough to see where most lie
_LOWEST = np.uint64(0x1111111111111111)
_ONE, _TWO = np.uint64(1), np.uint64(2)


def _octets(readonly: bool = False) -> Any:
    return types.Array(types.uint8, 1, "C", readonly=readonly, aligned=False)


def _words(readonly: bool = False) -> Any:
    return types.Array(types.uint16, 1, "C", readonly=readonly, aligned=False)


def _compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile now; what comes out is kept for later processes where there is a place for it."""

    def compile_now(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any]
        try:
            compiled = njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            compiled = njit(signature, nogil=True)(function)
        return compiled

    return compile_now


@_compiled(types.void(_octets(readonly=True), _octets(), _octets()))
def split_bytes(mixed: Octets, even: Octets, odd: Octets) -> None:
    """Part the bytes at even places from those at odd ones; `even` may have one more."""
    for j in range(odd.size):
        even[j] = mixed[2 * j]
        odd[j] = mixed[2 * j + 1]
    if even.size > odd.size:
        even[odd.size] = mixed[mixed.size - 1]


@_compiled(types.void(_octets(readonly=True), _octets(readonly=True), _octets()))
def join_bytes(even: Octets, odd: Octets, mixed: Octets) -> None:
    """Undo `split_bytes`."""
    for j in range(odd.size):
        mixed[2 * j] = even[j]
        mixed[2 * j + 1] = odd[j]
    if even.size > odd.size:
        mixed[mixed.size - 1] = even[odd.size]


@njit(nogil=True)
def _choose_top(values: Words, counts: NDArray[np.int64]) -> np.uint8:
    """The highest exponent of the window that most values lie in, judged by a sample.

    Not the highest of all: one infinity or a few outliers must not make escapes of the rest.
    """
    counts[:] = 0
    for begin in range(0, values.size, _SAMPLE_EVERY):
        for value in values[begin : begin + _SAMPLE]:
            counts[(value >> 7) & 0xFF] += 1
    inside = 0
    for exponent in range(_WINDOW):
        inside += counts[exponent]
    top, most = _WINDOW - 1, inside
    for exponent in range(_WINDOW, 256):
        inside += counts[exponent] - counts[exponent - _WINDOW]
        if inside > most:
            top, most = exponent, inside
    # The sample may have missed the largest: room above costs nothing if the lowest is unused.
    if counts[top - _WINDOW + 1] == 0 and top < 255:
        top += 1
    return np.uint8(top)


@njit(nogil=True)
def _pack(values: Words, top: np.uint8, mantissas: Octets, codes: Octets) -> None:
    """A byte of codes is that of a value, and above it that of the one half a chunk further."""
    half = codes.size
    first, second = values[:half], values[half:]
    for j in range(values.size):
        mantissas[j] = np.uint8(values[j] & 0x7F) | np.uint8((values[j] >> 8) & 0x80)
    for j in range(half):
        low = min(np.uint8(top - np.uint8(first[j] >> 7)), np.uint8(_WINDOW))
        high = min(np.uint8(top - np.uint8(second[j] >> 7)), np.uint8(_WINDOW))
        codes[j] = low | (high << 4)


@njit(nogil=True)
def _unpack(mantissas: Octets, codes: Octets, top: np.uint8, values: Words) -> None:
    half = codes.size
    first, second = values[:half], values[half:]
    for j in range(half):
        low = np.uint16(mantissas[j])
        exponent = np.uint16(np.uint8(top - (codes[j] & 15)))
        first[j] = (exponent << 7) | (low & 0x7F) | ((low & 0x80) << 8)
    rest = mantissas[half:]
    for j in range(half):
        high = np.uint16(rest[j])
        exponent = np.uint16(np.uint8(top - (codes[j] >> 4)))
        second[j] = (exponent << 7) | (high & 0x7F) | ((high & 0x80) << 8)


@njit(nogil=True)
def _copy(source: Octets, target: Octets) -> None:
    """As `target[:] = source`, which numba makes six times slower."""
    for j in range(source.size):
        target[j] = source[j]


@njit(nogil=True)
def _find_escapes(codes: Octets, places: Words) -> int:
    """Which values have the escape for a code; how many. They are few: 16 codes a look."""
    words = codes.view(np.uint64)
    found = 0
    for number in range(words.size):
        ones = words[number]
        ones &= ones >> _ONE
        ones &= ones >> _TWO
        if ones & _LOWEST:  # some four bits are all ones
            for j in range(8 * number, 8 * number + 8):
                if codes[j] & 15 == _WINDOW:
                    places[found] = j
                    found += 1
                if codes[j] >> 4 == _WINDOW:
                    places[found] = codes.size + j
                    found += 1
    return found


@_compiled(types.int64(_words(readonly=True), _octets()))
def pack_exponents(values: Words, room: Octets) -> int:
    """Write the chunks of `values`, a multiple of `UNIT_BYTES`; their length, -1 if too long."""
    counts = np.empty(256, np.int64)
    scratch = np.empty(CHUNK_VALUES // 2, np.uint8)  # aligned, as the search for escapes needs
    places = np.empty(CHUNK_VALUES, np.uint16)
    at = 0
    for begin in range(0, values.size, CHUNK_VALUES):
        chunk = values[begin : begin + CHUNK_VALUES]
        codes = scratch[: chunk.size // 2]
        mantissas_at = at + _CHUNK_HEAD
        codes_at = mantissas_at + chunk.size
        end = codes_at + codes.size
        if end > room.size:
            return -1
        top = _choose_top(chunk, counts)
        _pack(chunk, top, room[mantissas_at:codes_at], codes)
        _copy(codes, room[codes_at:end])
        num_escapes = _find_escapes(codes, places)
        if num_escapes > room.size - end:
            return -1
        for number in range(num_escapes):
            room[end + number] = np.uint8(chunk[places[number]] >> 7)
        room[at] = top
        room[at + 1] = num_escapes & 0xFF
        room[at + 2] = num_escapes >> 8
        at = end + num_escapes
    return at


@_compiled(types.int64(_octets(readonly=True), _words()))
def unpack_exponents(payload: Octets, values: Words) -> int:
    """Undo `pack_exponents`; the length of the chunks, -1 if they do not fit each other."""
    scratch = np.empty(CHUNK_VALUES // 2, np.uint8)
    places = np.empty(CHUNK_VALUES, np.uint16)
    at = 0
    for begin in range(0, values.size, CHUNK_VALUES):
        chunk = values[begin : begin + CHUNK_VALUES]
        codes = scratch[: chunk.size // 2]
        mantissas_at = at + _CHUNK_HEAD
        codes_at = mantissas_at + chunk.size
        end = codes_at + codes.size
        if end > payload.size:
            return -1
        num_escapes = int(payload[at + 1]) | int(payload[at + 2]) << 8
        if num_escapes > payload.size - end:
            return -1
        _copy(payload[codes_at:end], codes)
        _unpack(payload[mantissas_at:codes_at], codes, payload[at], chunk)
        if _find_escapes(codes, places) != num_escapes:
            return -1
        for number in range(num_escapes):
            place = places[number]
            chunk[place] = (chunk[place] & 0x807F) | (np.uint16(payload[end + number]) << 7)
        at = end + num_escapes
    return at
