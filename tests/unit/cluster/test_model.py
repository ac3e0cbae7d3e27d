"""cluster/model.py: what a model name means, and the one-time conversion of the demo model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelay.cluster import model as model_module
from kvrelay.cluster.errors import ModelError
from kvrelay.cluster.model import ensure_model


@pytest.fixture
def fake_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A demo model of a few bytes in a cache of its own; the list tells each conversion."""
    gguf = tmp_path / "fake.gguf"
    gguf.write_bytes(b"gguf")
    calls: list[str] = []

    def convert(source: Path, out: Path) -> None:
        calls.append(source.name)
        out.mkdir()
        (out / "config.json").write_text("{}")
        (out / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_module, "_gguf", lambda _cache, _say: gguf)
    monkeypatch.setattr(model_module, "_convert", convert)
    return calls


def test_demo_is_converted_once(fake_conversion: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    first = ensure_model("demo", said.append)
    assert ensure_model("demo", said.append) == first
    assert first == model_module.demo_model_dir()
    assert tmp_path / "cache" in Path(first).parents
    assert fake_conversion == ["fake.gguf"]
    assert said == ["converting the demo model (once, about half a minute)"]
    manifest = json.loads((Path(first) / "MANIFEST.json").read_text())
    assert manifest["files"]["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()


def _flip_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"Weights")


def _drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _tear_manifest(folder: Path) -> None:
    (folder / "MANIFEST.json").write_text('{"files": {')


@pytest.mark.parametrize("damage", [_flip_weights, _drop_config, _tear_manifest])
def test_a_damaged_model_is_made_again(
    fake_conversion: list[str], damage: Callable[[Path], None]
) -> None:
    folder = Path(ensure_model("demo"))
    damage(folder)
    assert not model_module.is_complete(folder)
    assert ensure_model("demo") == folder
    assert model_module.is_complete(folder)
    assert len(fake_conversion) == 2
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".")] == []


def test_a_failed_conversion_leaves_nothing(
    fake_conversion: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = model_module._convert

    def fail(source: Path, out: Path) -> None:
        out.mkdir()
        raise ModelError("no")

    monkeypatch.setattr(model_module, "_convert", fail)
    with pytest.raises(ModelError):
        ensure_model("demo")
    assert [p.suffix for p in model_module.models_dir().iterdir()] == [".lock"]
    monkeypatch.setattr(model_module, "_convert", convert)
    ensure_model("demo")
    assert len(fake_conversion) == 1


def test_two_at_once_convert_once(fake_conversion: list[str]) -> None:
    # flock is held per open file, so two threads stand for two processes.
    threads = [threading.Thread(target=ensure_model, args=("demo",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake_conversion) == 1


def test_a_gguf_that_is_not_the_known_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"other")
    with pytest.raises(ModelError, match="reinstall"):
        model_module._verified(other, "reinstall it")


def test_an_unwritable_cache_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
        ensure_model("demo")


def test_local_folders_and_ids_pass_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    assert ensure_model("org/name") == "org/name"
    with pytest.raises(ModelError, match=r"no config\.json"):
        ensure_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert ensure_model(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match="does not exist"):
        ensure_model(str(tmp_path / "absent"))


def test_offline_and_not_cached_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(model_module, "_in_hub_cache", lambda _name: False)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        ensure_model("org/name")


@pytest.mark.slow
def test_the_real_demo_model_is_right() -> None:
    transformers = pytest.importorskip("transformers")
    folder = ensure_model("demo")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "The capital of France is Paris." in tokenizer.decode(out[0])
