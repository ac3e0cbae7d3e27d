"""What vLLM's configuration says about identity, and which models can be relayed."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvrelay.relay.connector.request import adapter_folder
from kvrelay.relay.fingerprint import (
    ModelFingerprint,
    canonical_json,
    default_cache,
    folder_digest,
    weights_digest,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


def unsupported(config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> str | None:
    """Why this engine cannot relay, or None if it can."""
    parallel = config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    if parallel.world_size > 1:
        return f"{parallel.world_size} ranks (tensor or pipeline parallel)"
    if parallel.decode_context_parallel_size > 1:
        return "decode context parallelism"
    if len(groups) != 1:
        return f"{len(groups)} groups of KV layers (hybrid attention)"
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:  # its subclasses keep or drop other blocks
        return f"{type(spec).__name__} layers"
    if spec.non_causal:
        return "non-causal attention"
    if spec.tokens_per_state != 1:
        return f"{spec.tokens_per_state} tokens in a state"
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        return "windowed attention"
    if config.model_config.runner_type != "generate":
        return f"a {config.model_config.runner_type} model"
    return None


def slot_bytes(kv_cache_config: "KVCacheConfig") -> int:
    """Bytes of one block of all layers."""
    (group,) = kv_cache_config.kv_cache_groups
    return int(group.kv_cache_spec.page_size_bytes) * len(group.layer_names)


def fingerprint(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", weight_epoch: str
) -> ModelFingerprint:
    """The fingerprint of this engine.

    Reads all weights once; later starts find the digest in a cache.

    Raises:
        OSError: the weights are not on this machine.
    """
    model = config.model_config
    hf_config = model.hf_config.to_dict()
    for volatile in ("_name_or_path", "transformers_version"):
        hf_config.pop(volatile, None)
    resolved = canonical_json(hf_config)
    if "longrope" in resolved:  # vLLM takes its long or its short factors for all sequences alike
        resolved += f" max_model_len {model.max_model_len}"
    if (drafter := _drafter(config)) is not None:
        resolved += f" drafter {drafter}"
    if config.load_config.load_format == "dummy":
        weights = f"dummy:{model.seed}"
    else:
        weights = weights_digest(_weights_path(model.model, model.revision), default_cache())
    return ModelFingerprint(
        weights=weights,
        weight_epoch=weight_epoch,
        config=resolved,
        dtype=str(model.dtype),
        kv_cache_dtype=str(config.cache_config.cache_dtype),
        quantization=str(model.quantization),
        block_tokens=config.cache_config.block_size,
        slot_bytes=slot_bytes(kv_cache_config),
        attention=_attention(config),
        parallel=f"tp {config.parallel_config.rank}/{config.parallel_config.world_size}",
        engine=f"vllm {vllm.__version__} torch {torch.__version__}",
    )


def _drafter(config: "VllmConfig") -> str | None:
    """What guesses tokens ahead, whose layers may lie in the same blocks; None if nothing does."""
    speculative = config.speculative_config
    if speculative is None:
        return None
    draft = speculative.draft_model_config
    if draft is None:
        return str(speculative.method)
    weights = weights_digest(_weights_path(draft.model, draft.revision), default_cache())
    return f"{speculative.method} {weights}"


def _weights_path(model: str, revision: str | None) -> Path:
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, local_files_only=True))


def _attention(config: "VllmConfig") -> str:
    """Backend and whatever decides how it packs a block."""
    parts: list[Any] = [config.attention_config.backend]
    if torch.cuda.is_available():
        parts += [
            torch.cuda.get_device_capability(),
            config.cache_config.get_resolved_kv_cache_layout(),
        ]
    else:
        parts.append(torch.backends.cpu.get_cpu_capability())
        parts.append(torch.cpu._is_amx_tile_supported())
    return canonical_json(parts)


class AdapterDigests:
    """Content digests of LoRA adapters, computed off the scheduler's thread.

    vLLM tells adapters apart by name only; two adapters of one name must not share KV. An adapter
    that was unloaded and loaded anew has another number, and may have other weights in its folder.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "kvrelay-lora")
        self._digests: dict[tuple[int, str], Future[bytes]] = {}

    def get(self, adapter: "LoRARequest") -> bytes | None:
        """The adapter's digest; None while it is being computed or if it cannot be."""
        path = adapter.lora_path
        future = self._digests.get((adapter.lora_int_id, path))
        if future is None:
            future = self._pool.submit(_adapter_digest, path)
            self._digests[adapter.lora_int_id, path] = future
        if not future.done() or future.exception() is not None:
            return None
        return future.result()

    def close(self) -> None:
        """Stop computing."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _adapter_digest(path: str) -> bytes:
    folder = adapter_folder(path)
    config = folder_digest(folder.glob("*.json"))
    return config + bytes.fromhex(weights_digest(folder, default_cache()))
