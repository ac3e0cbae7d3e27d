from pathlib import Path

import pytest

from kvrelay.relay import memory
from kvrelay.relay.errors import OutOfMemory
from kvrelay.relay.fingerprint import ModelFingerprint, weights_digest
from kvrelay.relay.settings import RelaySettings


def test_settings_survive_the_way_through_the_engine() -> None:
    settings = RelaySettings(store="s", policy="min_tokens:64", agent="a")
    assert RelaySettings.from_extra_config(settings.to_extra_config()) == settings


@pytest.mark.parametrize(
    "extra",
    [
        {"polcy": "always"},
        {"policy": "sometimes"},
        {"load_deadline_s": 0},
        {"max_loads_in_flight": 0},
        {"max_held_fraction": 0},
        {"capacity_bytes": 0},
        {"encoded_bytes": -1},
        {"decisions_bytes": -1},
        {"load_patience": 0.5},
        {"exploration": 0.6, "policy": "cost"},
        {"queue_weight": -1.0, "policy": "cost"},
        {"switchback_s": 0.5, "policy": "cost"},
        {"switchback_s": float("inf"), "policy": "cost"},
        {"switchback_s": 60.0, "policy": "always"},
    ],
)
def test_impossible_settings_are_refused(extra: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(extra))):
        RelaySettings.from_extra_config(extra)


def machine(root: Path, available_mib: int, limit: str, used: int) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {available_mib * 1024} kB\n")
    cgroup = root / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text(limit)
    (cgroup / "memory.current").write_text(str(used))
    return root


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, 1000, str(600 << 20), 100 << 20)
    assert memory.available_bytes(root) == 500 << 20


def test_no_container_limit(tmp_path: Path) -> None:
    assert memory.available_bytes(machine(tmp_path, 1000, "max\n", 0)) == 1000 << 20


def test_too_little_memory_names_the_remedy() -> None:
    memory.require_capacity(1 << 30, 0, 2 << 30)
    with pytest.raises(OutOfMemory, match=r"relay\.capacity_bytes.*lower"):
        memory.require_capacity(2 << 30, 0, 2 << 30)
    with pytest.raises(OutOfMemory, match=r"relay\.encoded_bytes for 1\.00 GiB.*lower"):
        memory.require_capacity(1 << 30, 1 << 30, 2 << 30)


def fingerprint(**changes: object) -> bytes:
    fields: dict = {
        "weights": "w",
        "weight_epoch": "",
        "config": "{}",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": "None",
        "block_tokens": 128,
        "slot_bytes": 1,
        "attention": "x",
        "parallel": "tp 0/1",
        "engine": "e",
    }
    return ModelFingerprint(**fields | changes).digest()


def test_any_difference_changes_the_fingerprint() -> None:
    changes = [
        {},
        {"weights": "v"},
        {"weight_epoch": "1"},
        {"config": "[]"},
        {"dtype": "f"},
        {"kv_cache_dtype": "fp8"},
        {"quantization": "q"},
        {"block_tokens": 64},
        {"slot_bytes": 2},
        {"attention": "y"},
        {"parallel": "tp 1/2"},
        {"engine": "f"},
    ]
    assert len({fingerprint(**change) for change in changes}) == len(changes)


def test_weights_are_digested_by_content_and_remembered(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    weights = tmp_path / "model"
    weights.mkdir()
    (weights / "a.safetensors").write_bytes(b"1" * 1000)
    first = weights_digest(weights, cache)
    assert weights_digest(weights, cache) == first == weights_digest(weights, None)
    (weights / "a.safetensors").write_bytes(b"2" * 1000)
    assert weights_digest(weights, cache) != first
    cache.write_text("damaged")
    assert weights_digest(weights, cache) != first
    with pytest.raises(FileNotFoundError):
        weights_digest(tmp_path / "model" / "..", None)
