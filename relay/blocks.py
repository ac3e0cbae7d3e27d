"""The block chain of one token sequence, and the look-up of what a slab holds of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvrelay.relay import index
from kvrelay.relay.arena import Slab, SlotHeader
from kvrelay.relay.catalog import ELSEWHERE
from kvrelay.relay.keys import BlockKey, child_key, common_prefix_tokens, pack_tokens
from kvrelay.relay.protocol import MAX_FETCH_KEYS


@dataclass(slots=True)
class BlockChain:
    """Keys of a growing token sequence, computed once and only as far as asked for.

    Attributes:
        root: start of the chain.
        block_tokens: tokens of a full block.
        extras: digest of the multimodal items in a block, by block number.
    """

    root: BlockKey
    block_tokens: int
    extras: dict[int, bytes] = field(default_factory=dict)
    _keys: list[BlockKey] = field(default_factory=list)
    _tokens: list[bytes] = field(default_factory=list)

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Compute keys of the first `num_blocks` full blocks of `token_ids`.

        `token_ids` must start with what was given before.
        """
        size = self.block_tokens
        for number in range(len(self._keys), num_blocks):
            tokens = pack_tokens(token_ids[number * size : (number + 1) * size])
            if len(tokens) != 4 * size:
                raise ValueError(f"block {number} is not full")
            self._keys.append(child_key(self.parent(number), tokens, self.extra(number)))
            self._tokens.append(tokens)

    def key(self, number: int) -> BlockKey:
        """Key of a full block that `extend` has computed."""
        return self._keys[number]

    def tokens(self, number: int) -> bytes:
        """Packed tokens of a full block that `extend` has computed."""
        return self._tokens[number]

    def parent(self, number: int) -> BlockKey:
        """Key of the block before block `number`; the root for the first."""
        return self._keys[number - 1] if number else self.root

    def extra(self, number: int) -> bytes:
        """Multimodal digest of a block; empty without."""
        return self.extras.get(number, b"")


@dataclass(frozen=True, slots=True)
class Match:
    """What is held of a sequence beyond what the engine has.

    Attributes:
        headers: slots to copy, in block order from the first missing block.
        absent: positions in `headers` of blocks that are not in this node's arena.
        num_tokens: tokens of the whole prefix that the engine has after loading them.
        tail_tokens: how many of those come from a block that is not taken whole.
    """

    headers: tuple[SlotHeader, ...]
    absent: frozenset[int]
    num_tokens: int
    tail_tokens: int

    @property
    def local(self) -> list[SlotHeader]:
        """Slots of this node's arena."""
        return [h for n, h in enumerate(self.headers) if n not in self.absent]

    @property
    def ahead_tokens(self) -> int:
        """Tokens of blocks that had come to this node before anybody asked for them."""
        counts = [header.num_tokens for header in self.headers]
        if self.tail_tokens:
            counts[-1] = self.tail_tokens
        return sum(n for n, header in zip(counts, self.headers, strict=True) if header.ahead)

    @property
    def place(self) -> str:
        """The slowest place that a block comes from: `nodes`, `encoded` or `arena`."""
        if self._elsewhere:
            return "nodes"
        return "encoded" if self.absent else "arena"

    def parts(self, first_token: int, block_tokens: int) -> "list[Match]":
        """What there is to choose from, longest first: all of it, and what stands in front of
        the first block of other nodes, and of the first that is not in the arena."""
        parts = [self]
        for missing in (self._elsewhere, self.absent):
            count = min(missing, default=len(self.headers))
            if 0 < count < len(parts[-1].headers):
                num_tokens = first_token + count * block_tokens
                absent = frozenset(n for n in self.absent if n < count)
                parts.append(Match(self.headers[:count], absent, num_tokens, 0))
        return parts

    @property
    def _elsewhere(self) -> list[int]:
        """Positions of blocks that other nodes alone hold."""
        return [n for n in self.absent if self.headers[n].checksum == ELSEWHERE]


def match(
    places: tuple[Slab, Slab],
    chain: BlockChain,
    token_ids: Sequence[int],
    num_local: int,
    max_tokens: int,
) -> Match | None:
    """The longest prefix of `token_ids` that can be had beyond `num_local` tokens.

    Whole blocks are found by key. Behind the last of them, among the blocks that come after
    it, the one that shares most leading tokens is taken, be it a tail or a full block: KV
    of a position depends on no later token. This reuses more than vLLM's own prefix hit. No
    more blocks that are not in the arena are taken than one fetch may ask for.

    Args:
        places: the arena, and the catalog of what else can be had, taken second.
        chain: of `token_ids`.
        token_ids: the sequence.
        num_local: tokens the engine has, whole blocks.
        max_tokens: upper bound of the prefix; less than the sequence, since at least one
            token has to be computed.

    Returns:
        None if there is nothing beyond `num_local`.
    """
    slab, catalog = places
    size = chain.block_tokens
    first = num_local // size
    full = max_tokens // size
    headers: list[SlotHeader] = []
    absent: set[int] = set()
    for number in range(first, full):
        chain.extend(token_ids, number + 1)
        header = index.find(slab, chain.key(number))
        if header is None:
            more = len(absent) < MAX_FETCH_KEYS
            header = index.find(catalog, chain.key(number)) if more else None
            if header is None:
                break
            absent.add(len(headers))
        headers.append(header)
    number = first + len(headers)
    chain.extend(token_ids, number)
    num_tokens = number * size
    wanted = min(max_tokens - num_tokens, size)
    tail_tokens = 0
    if wanted > 0 and not chain.extra(number):
        tokens = pack_tokens(token_ids[num_tokens : num_tokens + wanted])
        best: SlotHeader | None = None
        for place in places if len(absent) < MAX_FETCH_KEYS else places[:1]:
            for header in index.children(place, chain.parent(number)):
                shared = common_prefix_tokens(tokens, place.tokens(header))
                # Those are another block's if the slot was given away since its header was read.
                if shared > tail_tokens and place.state(header.slot) == header.state:
                    best, tail_tokens = header, shared
                    absent -= {len(headers)}
                    if place is catalog:
                        absent.add(len(headers))
        if best is not None:
            headers.append(best)
    if not headers:
        return None
    return Match(tuple(headers), frozenset(absent), num_tokens + tail_tokens, tail_tokens)
