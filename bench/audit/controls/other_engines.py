"""Makes engine B for each kind of difference: which model it loads, and with what arguments."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.driven import BLOCK_TOKENS
from kvrelay.bench.errors import BenchError

OTHER_BLOCK_TOKENS = 2 * BLOCK_TOKENS
# A step of bfloat16 is at most 1/128 of a number: hardly one stays what it is.
SCALE = 1.02
OTHER_LAYERS = 4
# What the other architecture shares with A: token ids, and how wide everything is.
_SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


class Other(NamedTuple):
    """An engine.

    Attributes:
        model: what vLLM loads.
        arguments: of vLLM.
    """

    model: Path | str
    arguments: dict[str, Any]


@contextmanager
def prepared(kind: Kind, model: Path | str, dtype: str, folder: Path) -> Iterator[Other]:
    """Engine B of a kind, for as long as the context lasts.

    Args:
        kind: what it has otherwise than A.
        model: of A.
        dtype: of A. B of kind `dtype` has bfloat16, or float32 where A has that already.
        folder: there a model is made where one is needed; afterwards, and before, it is removed.

    Raises:
        BenchError: the model has no weights that could be changed, or no such shape.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    of_a: dict[str, Any] = {"dtype": dtype}
    try:
        match kind:
            case Kind.SAME:
                yield Other(model, of_a)
            case Kind.WEIGHTS:
                yield Other(perturbed(_folder_of(model), folder), of_a)
            case Kind.DTYPE:
                yield Other(model, {"dtype": "float32" if dtype == "bfloat16" else "bfloat16"})
            case Kind.BLOCK_SIZE:
                yield Other(model, of_a | {"block_size": OTHER_BLOCK_TOKENS})
            case Kind.ARCHITECTURE:
                yield Other(another_architecture(model, folder), of_a)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def perturbed(model: Path, folder: Path) -> Path:
    """A copy of a model in which one matrix of its first layer is scaled by `SCALE`.

    Not the embedding, whose scale a norm takes out again. KV differs from the second layer on.

    Raises:
        BenchError: no matrix of a layer is found.
    """
    from safetensors.torch import load_file, save_file

    for file in sorted(model.glob("*.safetensors")):
        tensors = load_file(file)
        name = min((n for n, t in tensors.items() if ".mlp." in n and t.ndim == 2), default=None)
        if name is None:
            continue
        skipped = shutil.ignore_patterns(file.name)
        shutil.copytree(model, folder, ignore=skipped, copy_function=shutil.copyfile)
        tensors[name] = tensors[name] * SCALE
        save_file(tensors, folder / file.name, metadata={"format": "pt"})
        return folder
    raise BenchError(f"{model}: no safetensors with the weights of a layer to change")


def another_architecture(model: Path | str, folder: Path) -> Path:
    """A small model with A's vocabulary and widths, random weights and other layers than A's.

    Qwen2, or Llama where A is Qwen2. It is asked with token ids, so that it needs no tokenizer.

    Raises:
        BenchError: A's configuration does not tell its shape.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    given = transformers.AutoConfig.from_pretrained(str(model)).get_text_config()
    missing = [name for name in _SHAPE if getattr(given, name, None) is None]
    if missing:
        raise BenchError(f"{model}: its configuration has no {', '.join(missing)}")
    other = transformers.LlamaConfig if given.model_type == "qwen2" else transformers.Qwen2Config
    config = other(
        **{name: getattr(given, name) for name in _SHAPE},
        num_hidden_layers=OTHER_LAYERS,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config)
    made.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _folder_of(model: Path | str) -> Path:
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(model), local_files_only=True))  # A has loaded it
