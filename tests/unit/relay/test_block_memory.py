"""Every kind of block memory moves blocks whole, and its checksum is of what arrived."""

import ctypes

import pytest
import torch
import xxhash

from kvrelay.relay.connector.blocks import (
    BlockMemory,
    DeviceBlocks,
    HostBlocks,
    UnsupportedLayout,
    block_memory,
)

BLOCKS, LAYERS, SHAPE = 6, 3, (2, 4, 8)


def layers_of_one_storage() -> dict[str, torch.Tensor]:
    whole = torch.zeros(LAYERS, BLOCKS, *SHAPE, dtype=torch.bfloat16)
    return {f"layer.{n}": whole[n] for n in range(LAYERS)}


def layers_apart() -> dict[str, torch.Tensor]:
    return {f"layer.{n}": torch.zeros(BLOCKS, *SHAPE, dtype=torch.bfloat16) for n in range(LAYERS)}


def layers_split_in_k_and_v() -> dict[str, torch.Tensor]:
    return {f"layer.{n}": torch.zeros(2, BLOCKS, 4, 8, dtype=torch.bfloat16) for n in range(LAYERS)}


LAYOUTS = [layers_of_one_storage, layers_apart, layers_split_in_k_and_v]


def block_of(layer: torch.Tensor, block_id: int) -> torch.Tensor:
    return layer[block_id] if layer.shape[0] == BLOCKS else layer[:, block_id]


def fill(layers: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(1)
    for layer in layers.values():
        layer.copy_(torch.randn(layer.shape))


@pytest.fixture(params=LAYOUTS)
def layers(request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    return request.param()


@pytest.fixture(params=["host", "device"])
def memory(request: pytest.FixtureRequest, layers: dict[str, torch.Tensor]) -> BlockMemory:
    if request.param == "host":
        return block_memory(layers, BLOCKS)
    parts = [
        part
        for layer in layers.values()
        for part in ([layer] if layer.shape[0] == BLOCKS else [layer[0], layer[1]])
    ]
    return DeviceBlocks(parts)


def test_a_block_goes_out_and_comes_back(
    memory: BlockMemory, layers: dict[str, torch.Tensor]
) -> None:
    fill(layers)
    before = {name: layer.clone() for name, layer in layers.items()}
    slot = ctypes.create_string_buffer(memory.slot_bytes)
    address = ctypes.addressof(slot)
    saved = memory.save(2, address)
    assert saved == xxhash.xxh3_128_digest(slot.raw[: memory.slot_bytes])
    assert memory.load(4, address) == saved
    for name, layer in layers.items():
        assert torch.equal(block_of(layer, 4), block_of(before[name], 2))
        for other in (0, 1, 2, 3, 5):
            assert torch.equal(block_of(layer, other), block_of(before[name], other))


def test_a_changed_byte_changes_the_checksum(memory: BlockMemory) -> None:
    slot = ctypes.create_string_buffer(memory.slot_bytes)
    saved = memory.save(1, ctypes.addressof(slot))
    slot[5] = b"\x01"
    assert memory.load(3, ctypes.addressof(slot)) != saved


def test_slot_bytes_do_not_depend_on_the_arrangement() -> None:
    slots = []
    for make in (layers_of_one_storage, layers_apart):
        layers = make()
        memory = block_memory(layers, BLOCKS)
        fill(layers)
        slot = ctypes.create_string_buffer(memory.slot_bytes)
        memory.save(3, ctypes.addressof(slot))
        slots.append(slot.raw)
    assert slots[0] == slots[1]


def test_layers_of_one_storage_become_one_piece_a_block() -> None:
    layers = layers_of_one_storage()
    memory = block_memory(layers, BLOCKS)
    assert isinstance(memory, HostBlocks)
    assert len(memory._pieces) == 1
    fill(layers)
    assert all(layer.shape == (BLOCKS, *SHAPE) for layer in layers.values())
    copies = {name: layer.clone() for name, layer in layers.items()}
    layers["layer.1"][3] = 0  # writing one layer's block leaves every other alone
    for name, layer in layers.items():
        for block in range(BLOCKS):
            if (name, block) != ("layer.1", 3):
                assert torch.equal(layer[block], copies[name][block])


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(UnsupportedLayout):
        block_memory({"layer.0": torch.zeros(5, 5)}, BLOCKS)
    with pytest.raises(UnsupportedLayout):
        block_memory({}, BLOCKS)
