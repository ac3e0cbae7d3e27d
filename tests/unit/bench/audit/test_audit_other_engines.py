"""Engine B of each kind: it loads what differs from A as it should, and that is gone afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.controls.other_engines import (
    OTHER_BLOCK_TOKENS,
    OTHER_LAYERS,
    SCALE,
    another_architecture,
    perturbed,
    prepared,
)
from kvrelay.bench.driven import BLOCK_TOKENS, tiny_llama
from kvrelay.bench.errors import BenchError
from kvrelay.relay.fingerprint import weights_digest

torch = pytest.importorskip("torch")
MATRIX = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


def config(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize(
    ("kind", "dtype", "arguments"),
    [
        (Kind.SAME, "bfloat16", {"dtype": "bfloat16"}),
        (Kind.DTYPE, "bfloat16", {"dtype": "float32"}),
        (Kind.DTYPE, "float32", {"dtype": "bfloat16"}),
        (Kind.BLOCK_SIZE, "bfloat16", {"dtype": "bfloat16", "block_size": OTHER_BLOCK_TOKENS}),
    ],
)
def test_kinds_that_need_no_other_model(
    kind: Kind, dtype: str, arguments: dict[str, object], tmp_path: Path
) -> None:
    with prepared(kind, "a model", dtype, tmp_path / "made") as other:
        assert other == ("a model", arguments)
        assert not (tmp_path / "made").exists()
    assert OTHER_BLOCK_TOKENS != BLOCK_TOKENS


@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.ARCHITECTURE])
def test_a_model_that_is_made_is_removed_whatever_happens(
    kind: Kind, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "of-a-run-that-was-killed").touch()
    with pytest.raises(ZeroDivisionError), prepared(kind, model, "float32", folder) as other:
        assert other == (folder, {"dtype": "float32"})
        assert (folder / "config.json").is_file()
        assert not (folder / "of-a-run-that-was-killed").exists()
        raise ZeroDivisionError
    assert not folder.exists()
    assert (model / "config.json").is_file()


def test_one_matrix_is_another_one_and_nothing_else(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    copy = perturbed(model, tmp_path / "one")
    (file,) = copy.glob("*.safetensors")
    before, after = load_file(model / file.name), load_file(file)
    assert set(before) == set(after)
    assert [name for name in before if not torch.equal(before[name], after[name])] == [MATRIX]
    assert after[MATRIX].dtype is before[MATRIX].dtype
    ratio = after[MATRIX].float() / before[MATRIX].float()
    assert ((ratio - SCALE).abs() < 0.01).all() and (ratio != 1).all()
    assert config(copy) == config(model)
    # The same again, and to a fingerprint another model.
    assert weights_digest(copy) == weights_digest(perturbed(model, tmp_path / "two"))
    assert weights_digest(copy) != weights_digest(model)


def test_a_model_without_layers_cannot_be_perturbed(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no safetensors with the weights of a layer"):
        perturbed(tmp_path, tmp_path / "made")


def test_another_architecture_has_the_same_tokens_and_widths(model: Path, tmp_path: Path) -> None:
    first = config(another_architecture(model, tmp_path / "qwen"))
    assert (config(model)["model_type"], first["model_type"]) == ("llama", "qwen2")
    again = config(another_architecture(tmp_path / "qwen", tmp_path / "llama"))
    assert again["model_type"] == "llama"
    for made in (first, again):
        assert made["num_hidden_layers"] == OTHER_LAYERS
        for name in ("vocab_size", "hidden_size", "num_key_value_heads"):
            assert made[name] == config(model)[name]


def test_a_model_of_unknown_shape_has_no_counterpart(model: Path, tmp_path: Path) -> None:
    given = {"model_type": "gpt2", "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(BenchError, match=r"has no .*intermediate_size"):
        another_architecture(tmp_path, tmp_path / "made")
