"""How many bytes of KV a token has, by a model's configuration in Hugging Face form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay.cluster.errors import ConfigError
from kvrelay.cluster.model import DEMO_MODEL, demo_model_dir

# Engines hold KV in 16 bits unless told otherwise, whatever the weights are stored in.
_BYTES = 2
_REMEDY = "give --config or --kv-bytes-per-token"
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
# Within a configuration of several parts, the one of the text model.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# Some layers of such models keep something else than KV of every token.
_HYBRID = (
    "attn_layer_period",
    "full_attn_idxs",
    "hybrid_override_pattern",
    "layers_block_type",
    "mamba_d_state",
    "ssm_cfg",
)


@dataclass(frozen=True, slots=True)
class KvSize:
    """Bytes of KV per token, and how they come about in words."""

    bytes_per_token: float
    words: str


def kv_size(config: Mapping[str, Any]) -> KvSize:
    """The size by a `config.json`.

    Raises:
        ValueError: it does not tell, or not every layer keeps KV of every token.
    """
    if _first(config, _LAYERS) is None:
        config = next((config[name] for name in _TEXT_PARTS if name in config), config)
    layers = _number(config, _LAYERS)
    _check_layers(config)
    if config.get("kv_lora_rank"):
        width = _number(config, ("kv_lora_rank",)) + int(config.get("qk_rope_head_dim") or 0)
        words = f"{layers} layers of {width} latent values in 16 bits; not relayed by kvrelay yet"
        return KvSize(layers * width * _BYTES, words)
    heads = _number(config, _HEADS)
    shared = config.get("multi_query") and not config.get("new_decoder_architecture")
    kv_heads = 1 if shared else _number(config, (*_KV_HEADS, *_HEADS))
    head_dim = config.get("head_dim") or _number(config, _HIDDEN) // heads
    words = f"{layers} layers, {kv_heads} KV heads of {head_dim} values, K and V in 16 bits"
    return KvSize(2 * layers * kv_heads * int(head_dim) * _BYTES, words)


def load_config(where: str) -> dict[str, Any]:
    """A model's configuration.

    Args:
        where: a `config.json`, its folder, a Hugging Face id, or `demo`. Of an id only that file
            is fetched, unless the local cache has it.

    Raises:
        ConfigError: it is not there, cannot be fetched, or is not JSON.
    """
    path = demo_model_dir() if where == DEMO_MODEL else Path(where).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        looks_like_id = where.count("/") == 1 and not where.startswith((".", "/", "~"))
        if not looks_like_id:
            raise ConfigError(f"model {where}: no such file, folder or Hugging Face id; {_REMEDY}")
        path = _fetched(where)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {path}: {error}; {_REMEDY}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"model {path}: not a model's configuration; {_REMEDY}")
    return found


def size_of_model(where: str) -> KvSize:
    """The size by the configuration at `where`, see `load_config`.

    Raises:
        ConfigError: there is none, or it does not tell.
    """
    config = load_config(where)
    try:
        return kv_size(config)
    except ValueError as error:
        raise ConfigError(f"model {where}: {error}; {_REMEDY}") from None


def _check_layers(config: Mapping[str, Any]) -> None:
    kinds = {str(kind) for kind in config.get("layer_types") or ()}
    marks = sorted(kinds - {"full_attention"}) + [name for name in _HYBRID if name in config]
    window = config.get("sliding_window")
    if window and not kinds and config.get("use_sliding_window", True):
        marks.append(f"sliding_window {window}")
    if marks:
        raise ValueError(f"not every layer keeps KV of every token ({', '.join(marks)})")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = _first(config, names)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{names[0]} is {'missing' if value is None else f'{value!r}'}")
    return value


def _fetched(model_id: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(
            f"model {model_id}: fetching it needs huggingface_hub; {_REMEDY}"
        ) from None
    try:
        return Path(hf_hub_download(model_id, "config.json"))
    except Exception as error:  # whatever the hub, its cache and the network raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model {model_id}: cannot fetch its config.json ({reason}); {_REMEDY}"
        ) from None
