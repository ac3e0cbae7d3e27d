"""`kvrelay bench codecs`: encode and decode real blocks, one at a time, on one core.

A pass is all blocks through one codec. Blocks are encoded and decoded in batches, so that a block
comes from memory for both, as it does in a transfer, and not from the core's own cache. Buffers
are there beforehand. What was decoded is compared with the block, outside the timed parts.

Times are CPU times of the one thread that does it: a codec waits for nothing, so that on a quiet
machine they are the wall's, and elsewhere they leave out when others had the core.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvrelay.bench.errors import BenchError
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Row
from kvrelay.relay.codecs.base import NAMES, Codec, Octets, codec, max_encoded_bytes

BATCH = 16


@dataclass(frozen=True, slots=True)
class Pass:
    """One codec over all blocks.

    Attributes:
        encode_s, decode_s: CPU time, sums over the blocks.
        encoded_bytes: of each block.
    """

    encode_s: float
    decode_s: float
    encoded_bytes: list[int]


@dataclass(slots=True)
class Bench:
    """The blocks, and memory to encode and decode them into."""

    blocks: Sequence[Octets]
    gate: QuietGate
    samples: list[Row]
    _encoded: list[Octets] = field(init=False)
    _decoded: list[Octets] = field(init=False)

    def __post_init__(self) -> None:
        num_bytes = self.blocks[0].size
        # Zeros are written, so that no first touch of a page is in a time.
        self._encoded = [np.full(max_encoded_bytes(num_bytes), 0, np.uint8) for _ in range(BATCH)]
        self._decoded = [np.full(num_bytes, 0, np.uint8) for _ in range(BATCH)]

    def run(self, repeats: int, rng: random.Random, advance: Callable[[float], None]) -> None:
        """All codecs in random order, as often as asked.

        Raises:
            BenchError: a codec did not give a block back.
        """
        for repeat in range(repeats):
            for name in rng.sample(NAMES, len(NAMES)):
                self._measure(codec(name), repeat)
                advance(1)

    def warm_up(self) -> None:
        """Each codec once over a batch: compiles what is compiled."""
        for name in NAMES:
            self._pass(codec(name), self.blocks[:BATCH])

    def _measure(self, each: Codec, repeat: int) -> None:
        done, watched = self.gate.watch(lambda: self._pass(each, self.blocks))
        raw_bytes = self.blocks[0].size
        self.samples.append(
            {
                "codec": each.name,
                "repeat": repeat,
                "block_bytes": raw_bytes,
                "encode_s": round(done.encode_s, 6),
                "decode_s": round(done.decode_s, 6),
                "encoded_bytes": done.encoded_bytes,
                **watched.to_dict(),
            }
        )

    def _pass(self, each: Codec, blocks: Sequence[Octets]) -> Pass:
        encode_s = decode_s = 0.0
        encoded_bytes: list[int] = []
        for first in range(0, len(blocks), BATCH):
            batch = blocks[first : first + BATCH]
            lengths = []
            for block, room in zip(batch, self._encoded, strict=False):
                start_s = time.thread_time()
                lengths.append(each.encode_into(block, room))
                encode_s += time.thread_time() - start_s
            for room, length, target in zip(self._encoded, lengths, self._decoded, strict=False):
                start_s = time.thread_time()
                each.decode(room[:length], target)
                decode_s += time.thread_time() - start_s
            for block, target in zip(batch, self._decoded, strict=False):
                if not np.array_equal(block, target):
                    raise BenchError(f"codec '{each.name}' gave another block back")
                target.fill(0)
            encoded_bytes += lengths
        return Pass(encode_s, decode_s, encoded_bytes)
