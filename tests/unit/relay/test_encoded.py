"""The memory of encoded blocks: pages go round, bytes stay, damage is seen."""

import numpy as np
import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvrelay.relay.codecs.base import codec, max_encoded_bytes
from kvrelay.relay.encoded import PAGE_BYTES, EncodedBlock, EncodedMemory, Pages, num_pages

SIZE = 24_000
NUM_PAGES = 24


def like_kv(seed: int, num_bytes: int = SIZE) -> np.ndarray:
    """Bytes of bf16 numbers around 1, which `split` makes a quarter shorter."""
    numbers = np.random.default_rng(seed).standard_normal(num_bytes // 2).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def encoded(memory: EncodedMemory, raw: np.ndarray, name: str = "split") -> EncodedBlock:
    encoding = np.frombuffer(codec(name).encode(raw), np.uint8)
    pages = memory.take(num_pages(encoding.size, raw.size))
    assert pages is not None
    memory.write(pages, encoding)
    checksum = xxhash.xxh3_128_digest(raw)
    return EncodedBlock(
        bytes(32), bytes(32), bytes(8), checksum, name, encoding.size, pages, memory
    )


def decoded(block: EncodedBlock) -> bytes | None:
    target, room = np.zeros(SIZE, np.uint8), np.zeros(max_encoded_bytes(SIZE), np.uint8)
    return target.tobytes() if block.decode_to(target.data, room) else None


class MemoryMachine(RuleBasedStateMachine):
    """Any order of taking and giving back: no page is lost, none has two owners."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.memory = EncodedMemory(NUM_PAGES * PAGE_BYTES + 100)
        self.held: list[Pages] = []

    @rule(target=taken, num_bytes=st.integers(1, 8 * PAGE_BYTES), seed=st.integers(0, 255))
    def take(self, num_bytes: int, seed: int) -> tuple[Pages | None, bytes]:
        count = num_pages(num_bytes, 0)
        free = self.memory.num_free
        pages = self.memory.take(count)
        assert (pages is None) == (count > free)
        content = np.random.default_rng(seed).bytes(num_bytes)
        if pages is not None:
            self.memory.write(pages, np.frombuffer(content, np.uint8))
            self.held.append(pages)
        return pages, content

    @rule(each=consumes(taken))
    def give_back(self, each: tuple[Pages | None, bytes]) -> None:
        pages, content = each
        if pages is None:
            return
        found = np.empty(len(content), np.uint8)
        self.memory.read(pages, found)
        assert found.tobytes() == content
        self.memory.give_back(pages)
        self.held = [each for each in self.held if each is not pages]
        with pytest.raises(KeyError):
            self.memory.give_back(pages)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.memory.check_integrity(self.held)
        assert self.memory.used_bytes == PAGE_BYTES * sum(map(len, self.held))


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("name", ["split", "lz4", "raw"])
def test_a_block_comes_back_as_it_was(name: str) -> None:
    memory = EncodedMemory(NUM_PAGES * PAGE_BYTES)
    for seed in range(30):  # pages go round
        raw = like_kv(seed)
        block = encoded(memory, raw, name)
        assert decoded(block) == raw.tobytes()
        block.discard()
    assert memory.num_free == NUM_PAGES


def test_an_encoding_is_shorter_and_never_takes_less_than_half_a_slot() -> None:
    memory = EncodedMemory(NUM_PAGES * PAGE_BYTES)
    block = encoded(memory, like_kv(1))
    assert block.num_bytes < 0.8 * SIZE
    assert len(block.pages) == -(-block.num_bytes // PAGE_BYTES)
    assert num_pages(100, SIZE) == num_pages(SIZE // 2, 0) == 3


def test_damage_is_seen_wherever_it_is() -> None:
    memory = EncodedMemory(NUM_PAGES * PAGE_BYTES)
    raw = like_kv(2)
    block = encoded(memory, raw)
    assert decoded(block) == raw.tobytes()
    for at in (0, 12, 30, block.num_bytes // 2, block.num_bytes - 1):
        page, offset = divmod(at, PAGE_BYTES)
        memory._pages[block.pages[page], offset] ^= 0x40
        assert decoded(block) is None, at
        memory._pages[block.pages[page], offset] ^= 0x40
    assert decoded(block) == raw.tobytes()


def test_what_is_read_stays_until_the_last_reader_is_done() -> None:
    memory = EncodedMemory(NUM_PAGES * PAGE_BYTES)
    raw = like_kv(3)
    block = encoded(memory, raw)
    block.pins += 2
    block.discard()
    block.unpin()
    assert memory.used_bytes == len(block.pages) * PAGE_BYTES
    assert decoded(block) == raw.tobytes()
    block.unpin()
    assert memory.used_bytes == 0
    memory.check_integrity([])
