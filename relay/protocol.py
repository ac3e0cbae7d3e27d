"""The messages between a client and its node's store; this file is their specification.

Carried over a SOCK_SEQPACKET Unix socket with an abstract name, one message a packet,
msgpack. The client speaks, the store answers each message with one reply:

    Hello     -> Welcome         first on every connection
    OpenSlab  -> SlabOpened      carries the memfds of the slab and of the catalog beside it
    Reserve   -> Reserved
    Commit    -> Done
    Abort     -> Done
    Drop      -> Done            for operators and fault tests
    Stats     -> StatsReply
    Check     -> Done            runs check_integrity()
    Expect    -> Done            other nodes may want to have blocks before they are asked for
    Fetch     -> Landed ...      as blocks come in from other nodes, or decoded, and at last
              -> FetchEnded
    EndFetch                     no answer: the client needs no more of it, or has copied it

Fetch goes over a connection that is used for nothing else. Failed answers anything the
store refuses; the connection stays usable. A packet that does not parse closes the
connection. When a connection closes, the store takes back what the client had reserved or
leased.

Look-ups, and loads of what this node holds, send nothing: they read the slab. Why a socket
and not Ray actor calls: the kernel tells the store at once when a client dies, memory can be
passed as a descriptor (so no file is left behind), and no engine process has to join Ray.
"""

import msgspec

MAX_PACKET_BYTES = 160 * 1024
MAX_KEYS = 256  # in one Reserve, Commit or Drop
MAX_FETCH_KEYS = 4096


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Who connects.

    Attributes:
        role: for display only.
        pid: of its process.
        agent: whose engine it is a part of; empty: nobody comes here for blocks by this client.
    """

    role: str
    pid: int
    agent: str = ""


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The connection's number, which is also its lease row, and the store's incarnation."""

    client_id: int
    incarnation: bytes


class OpenSlab(msgspec.Struct, tag=True, frozen=True):
    """Ask for the slab of these sizes."""

    slot_bytes: int
    block_tokens: int


# The slab whose pages the store has in memory from the start. All share the capacity, so that the
# pages of others come as their slots are used, and nobody may touch them before.
POPULATED_SLAB = 0


class SlabOpened(msgspec.Struct, tag=True, frozen=True):
    """The slab's number; descriptors, the slab's and its catalog's, come as ancillary data."""

    slab_id: int


class Reserve(msgspec.Struct, tag=True, frozen=True):
    """Ask for slots to write these keys into."""

    slab_id: int
    keys: list[bytes]


class Reserved(msgspec.Struct, tag=True, frozen=True):
    """Granted (key, slot), and counts of refusals by reason (`Refusal`)."""

    granted: list[tuple[bytes, int]]
    refused: dict[str, int]


class CommitEntry(msgspec.Struct, frozen=True):
    """One written slot; see `store.Entry`."""

    slot: int
    key: bytes
    parent: bytes
    tokens: bytes
    checksum: bytes


class Commit(msgspec.Struct, tag=True, frozen=True):
    """Seal these slots."""

    slab_id: int
    entries: list[CommitEntry]


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Give these reserved slots back."""

    slab_id: int
    slots: list[int]


class Drop(msgspec.Struct, tag=True, frozen=True):
    """Evict these keys; all of them if `keys` is None."""

    keys: list[bytes] | None


class Stats(msgspec.Struct, tag=True, frozen=True):
    """Ask for counts."""


class Check(msgspec.Struct, tag=True, frozen=True):
    """Ask the store to check its integrity."""


class Expect(msgspec.Struct, tag=True, frozen=True):
    """An agent is expected to need these blocks next, see `directory.Expected`."""

    slab_id: int
    agent: str
    probability: float
    prefill_s: float | None
    keys: list[bytes]


class Fetch(msgspec.Struct, tag=True, frozen=True):
    """Bring these blocks, in order, into the slab: encoded ones, and those of other nodes.

    Attributes:
        number: the client's own, not used for anything else that is under way.
        deadline_ns: on this node's monotonic clock; what has not landed by then is given up.
    """

    number: int
    slab_id: int
    keys: list[bytes]
    deadline_ns: int


class EndFetch(msgspec.Struct, tag=True, frozen=True):
    """What has landed may be evicted, what has not need not."""

    number: int


class LandedBlock(msgspec.Struct, frozen=True):
    """A block that is sealed in the slab, and verified."""

    key: bytes
    slot: int
    state: int
    checksum: bytes


class Landed(msgspec.Struct, tag=True, frozen=True):
    """More of a fetch has come; leased until EndFetch, or a second past the deadline."""

    number: int
    blocks: list[LandedBlock]


class FetchEnded(msgspec.Struct, tag=True, frozen=True):
    """No more will come.

    Attributes:
        failure: why not all has come, a `kvrelay.policies.Reason`; empty if all has.
        sources: nodes that blocks came from.
        transport, path, codec: how they came, comma-separated if it was not one way only.
        num_bytes: KV bytes that came from other nodes.
        decoded_bytes: KV bytes that this node held encoded.
        wire_bytes: bytes that were moved for them.
        queue_s: waited for others' reads from the same source.
        transfer_s: from the fetch's arrival to its end; 0 if nothing came or was decoded.
    """

    number: int
    failure: str = ""
    sources: tuple[str, ...] = ()
    transport: str = ""
    path: str = ""
    codec: str = ""
    num_bytes: int = 0
    decoded_bytes: int = 0
    wire_bytes: int = 0
    queue_s: float = 0.0
    transfer_s: float = 0.0


class Done(msgspec.Struct, tag=True, frozen=True):
    """It was done; `count` says to how many, where that is of interest."""

    count: int = 0


class StatsReply(msgspec.Struct, tag=True, frozen=True):
    """The store's counts, see `StoreCore.stats`."""

    counts: dict[str, int]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The store refuses; `message` says why."""

    message: str


Request = (
    Hello | OpenSlab | Reserve | Commit | Abort | Drop | Stats | Check | Expect | Fetch | EndFetch
)
Reply = Welcome | SlabOpened | Reserved | Done | StatsReply | Landed | FetchEnded | Failed

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
