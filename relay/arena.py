"""The arena: slabs of equal slots in anonymous shared memory, mapped by every engine.

One slab holds the blocks of one (slot size, block size); one slot is one engine block of
all layers, opaque bytes. A slab is one memfd, so no file is left behind however a process
dies, and a mapping outlives the store: a reader never faults because its store was killed.

    | superblock | key table | parent table | headers | last access | tokens | leases | data |

Who writes what (nothing needs a lock, since every word has one writer at a time):

    superblock, tables, headers, tokens   the store
    data of a reserved slot               the client that reserved it, until commit or abort
    lease row c                           client c
    last access                           any reader; a lost update only blurs what eviction knows

A header's state word is generation << 1 | sealed. The store clears `sealed` and raises the
generation before a slot is reused. So a reader that finds the same sealed state after its
copy, and the right checksum over what it copied, has copied what was committed.
"""

import mmap
import os
import struct
import weakref
from dataclasses import dataclass

import numpy as np

from kvrelay.relay import memory
from kvrelay.relay.errors import ArenaError
from kvrelay.relay.keys import KEY_BYTES, TOKEN_BYTES

MAGIC = b"kvrelay.slab.arena"
MAX_CLIENTS = 64
INCARNATION_BYTES = 16
NO_KEY = bytes(KEY_BYTES)

_SUPERBLOCK = struct.Struct("<32s16sQQQQ")
_HEADER = struct.Struct("<Q32s32s16sII")  # state, key, parent, checksum, num_tokens, ahead
HEADER_BYTES = 128
_PAGE = 4096
_HUGE = 2 << 20


def _align(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True, slots=True)
class SlabGeometry:
    """Sizes of a slab, and where its regions lie.

    Attributes:
        slot_bytes: bytes of one block of all layers.
        block_tokens: tokens of a full block.
        num_slots: how many slots.
    """

    slot_bytes: int
    block_tokens: int
    num_slots: int

    def __post_init__(self) -> None:
        if self.slot_bytes < 1 or self.block_tokens < 1 or self.num_slots < 1:
            raise ArenaError(f"impossible slab: {self}")

    @property
    def num_buckets(self) -> int:
        """Buckets of each table: a power of two, at most a quarter full."""
        return 1 << (4 * self.num_slots - 1).bit_length()

    @property
    def stride_bytes(self) -> int:
        """Distance between slots."""
        return _align(self.slot_bytes, 64)

    @property
    def key_table(self) -> int:
        return _PAGE

    @property
    def parent_table(self) -> int:
        return self.key_table + 4 * self.num_buckets

    @property
    def headers(self) -> int:
        return _align(self.parent_table + 4 * self.num_buckets, HEADER_BYTES)

    @property
    def accesses(self) -> int:
        return self.headers + HEADER_BYTES * self.num_slots

    @property
    def tokens(self) -> int:
        return self.accesses + 8 * self.num_slots

    @property
    def leases(self) -> int:
        return _align(self.tokens + TOKEN_BYTES * self.block_tokens * self.num_slots, 64)

    @property
    def data(self) -> int:
        return _align(self.leases + 8 * MAX_CLIENTS * self.num_slots, _HUGE)

    @property
    def total_bytes(self) -> int:
        return _align(self.data + self.stride_bytes * self.num_slots, _PAGE)


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """What a sealed slot holds.

    Attributes:
        slot: its number.
        state: generation << 1 | sealed, as it was read.
        key: identity of the block.
        parent: key of the block before; `NO_KEY` if the block may only match as a whole.
        checksum: XXH3-128 over the slot's bytes.
        num_tokens: tokens held; fewer than a block's in a tail.
        ahead: it was read from another node before any engine asked for it.
    """

    slot: int
    state: int
    key: bytes
    parent: bytes
    checksum: bytes
    num_tokens: int
    ahead: bool = False


class Slab:
    """A mapped slab. Readers and the store use the same class."""

    def __init__(self, fd: int, geometry: SlabGeometry, incarnation: bytes) -> None:
        """Map `fd`, which the slab then owns: it is closed with it."""
        self.fd = fd
        self.geometry = geometry
        self.incarnation = incarnation
        try:
            self._map = mmap.mmap(fd, geometry.total_bytes)
        except OSError as error:
            raise ArenaError(
                f"cannot map {geometry.total_bytes >> 20} MiB of shared memory: {error}; "
                "lower relay.capacity_bytes or raise the memory limit"
            ) from error
        self._close = weakref.finalize(self, os.close, fd)
        memory.advise_huge(self._map)
        view = memoryview(self._map)
        self._bytes = view
        g = geometry
        self.key_table = view[g.key_table : g.parent_table].cast("I")
        self.parent_table = view[g.parent_table : g.parent_table + 4 * g.num_buckets].cast("I")
        self.accesses = view[g.accesses : g.tokens].cast("Q")
        self.leases = view[g.leases : g.leases + 8 * MAX_CLIENTS * g.num_slots].cast("Q")
        # The state word of slot s is element 16 * s.
        self._states = view[g.headers : g.accesses].cast("Q")
        self.base_address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    @classmethod
    def create(cls, geometry: SlabGeometry, incarnation: bytes) -> "Slab":
        """Make a new, empty slab (store only).

        Raises:
            ArenaError: the kernel refuses the memory.
        """
        try:
            fd = os.memfd_create("kvrelay-arena", os.MFD_CLOEXEC)
            os.ftruncate(fd, geometry.total_bytes)
        except OSError as error:
            raise ArenaError(f"cannot make shared memory: {error}") from error
        slab = cls(fd, geometry, incarnation)
        _SUPERBLOCK.pack_into(
            slab._map,
            0,
            MAGIC,
            incarnation,
            geometry.slot_bytes,
            geometry.block_tokens,
            geometry.num_slots,
            geometry.total_bytes,
        )
        return slab

    @classmethod
    def attach(cls, fd: int) -> "Slab":
        """Map a slab that a store sent.

        Raises:
            ArenaError: not a slab, or one whose size does not match its superblock.
        """
        head = os.pread(fd, _SUPERBLOCK.size, 0)
        if len(head) != _SUPERBLOCK.size:
            raise ArenaError("not a kvrelay slab: too short")
        magic, incarnation, slot_bytes, block_tokens, num_slots, total = _SUPERBLOCK.unpack(head)
        if magic.rstrip(b"\0") != MAGIC:
            raise ArenaError("not a kvrelay slab")
        geometry = SlabGeometry(slot_bytes, block_tokens, num_slots)
        if geometry.total_bytes != total or os.fstat(fd).st_size < total:
            raise ArenaError("a slab of another layout")
        return cls(fd, geometry, incarnation)

    def close(self) -> None:
        """Let go of the descriptor; the memory goes with the last mapping and view of it."""
        self._close()  # at most once
        self.fd = -1

    def state(self, slot: int) -> int:
        """The state word of a slot: generation << 1 | sealed."""
        return self._states[16 * slot]

    def set_state(self, slot: int, state: int) -> None:
        """Set the state word (store only)."""
        self._states[16 * slot] = state

    def read_header(self, slot: int) -> SlotHeader | None:
        """The header of a slot if it is sealed and was so while it was read."""
        offset = self.geometry.headers + HEADER_BYTES * slot
        state, key, parent, checksum, num_tokens, ahead = _HEADER.unpack_from(self._bytes, offset)
        if not state & 1 or self._states[16 * slot] != state:
            return None
        return SlotHeader(slot, state, key, parent, checksum, num_tokens, bool(ahead))

    def write_header(self, header: SlotHeader, tokens: bytes) -> None:
        """Write all but the state, which is set last, by `set_state` (store only)."""
        g = self.geometry
        offset = g.headers + HEADER_BYTES * header.slot
        _HEADER.pack_into(
            self._map,
            offset,
            self.state(header.slot),
            header.key,
            header.parent,
            header.checksum,
            header.num_tokens,
            header.ahead,
        )
        at = g.tokens + TOKEN_BYTES * g.block_tokens * header.slot
        self._bytes[at : at + len(tokens)] = tokens

    def tokens(self, header: SlotHeader) -> bytes:
        """The packed token ids of a slot."""
        g = self.geometry
        at = g.tokens + TOKEN_BYTES * g.block_tokens * header.slot
        return bytes(self._bytes[at : at + TOKEN_BYTES * header.num_tokens])

    def address(self, slot: int) -> int:
        """Address of a slot's bytes in this process."""
        return self.base_address + self.geometry.data + self.geometry.stride_bytes * slot

    def data(self, slot: int) -> memoryview:
        """A slot's bytes."""
        at = self.geometry.data + self.geometry.stride_bytes * slot
        return self._bytes[at : at + self.geometry.slot_bytes]

    def data_range(self, slot: int) -> tuple[int, int]:
        """Offset and length of a slot's bytes in the mapping."""
        at = self.geometry.data + self.geometry.stride_bytes * slot
        return at, self.geometry.stride_bytes

    def populate(self, start_slot: int, end_slot: int, write: bool) -> None:
        """Have the pages of slots [start, end) in memory and mapped, without touching them.

        First touch costs 246 ms per 94 MB (measured), too much inside a request.
        """
        at, stride = self.data_range(start_slot)
        memory.populate(self.base_address + at, stride * (end_slot - start_slot), write)

    def release_pages(self, slot: int) -> None:
        """Give a slot's whole pages back to the system (store only)."""
        at, stride = self.data_range(slot)
        start, end = _align(at, _PAGE), (at + stride) // _PAGE * _PAGE
        if end > start:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)
