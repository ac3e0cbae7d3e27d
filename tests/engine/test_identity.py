"""Which engines can relay at all, and what of a request is part of a block's identity."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from vllm.config import ParallelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from kvrelay.relay.connector.identity import AdapterDigests, fingerprint, unsupported
from kvrelay.relay.connector.request import multimodal_extras, unsupported_request

ATTENTION: dict[str, Any] = {
    "block_size": 32,
    "num_kv_heads": 2,
    "head_size": 32,
    "dtype": torch.bfloat16,
}
FULL = FullAttentionSpec(**ATTENTION)


def why_not(*specs: Any, runner: str = "generate", **parallel: int) -> str | None:
    config: Any = SimpleNamespace(
        parallel_config=ParallelConfig(**parallel),
        model_config=SimpleNamespace(runner_type=runner),
    )
    groups = [KVCacheGroupSpec([f"layer.{n}"], spec) for n, spec in enumerate(specs)]
    return unsupported(config, KVCacheConfig(8, [], groups))


def test_full_attention_on_one_rank_is_relayed() -> None:
    assert why_not(FULL) is None


@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_ranks_are_not(parallel: str) -> None:
    ranks = {"distributed_executor_backend": "mp", parallel: 2}
    assert why_not(FULL, **ranks) == "2 ranks (tensor or pipeline parallel)"


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([FULL, SlidingWindowSpec(**ATTENTION, sliding_window=64)], "2 groups of KV layers"),
        ([FULL, MambaSpec(32, ((4,),), (torch.float32,))], "2 groups of KV layers"),
        ([MambaSpec(32, ((4,),), (torch.float32,))], "MambaSpec layers"),
        ([MLAAttentionSpec(**ATTENTION)], "MLAAttentionSpec layers"),
        ([SlidingWindowSpec(**ATTENTION, sliding_window=64)], "SlidingWindowSpec layers"),
        # These are kinds of full attention to vLLM, and would be wrong all the same.
        ([RSWASpec(**ATTENTION, rswa_window=64)], "RSWASpec layers"),
        ([FullAttentionSpec(**ATTENTION, sliding_window=64)], "windowed attention"),
        ([FullAttentionSpec(**ATTENTION, attention_chunk_size=64)], "windowed attention"),
        ([FullAttentionSpec(**ATTENTION, non_causal=True)], "non-causal attention"),
        ([FullAttentionSpec(**ATTENTION, tokens_per_state=4)], "4 tokens in a state"),
    ],
)
def test_kv_that_is_more_or_less_than_a_function_of_the_prefix_is_not(
    specs: list[Any], reason: str
) -> None:
    assert reason in (why_not(*specs) or "")


def test_models_that_do_not_generate_are_not() -> None:
    assert why_not(FULL, runner="pooling") == "a pooling model"


# The model


def digest_of(folder: Path, max_model_len: int) -> bytes:
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=max_model_len,
    ).create_engine_config()
    return fingerprint(config, KVCacheConfig(8, [], [KVCacheGroupSpec(["l"], FULL)]), "").digest()


def test_the_longest_sequence_counts_where_positions_depend_on_it(
    model: Path, tmp_path: Path
) -> None:
    """Of Phi-3 and its kin two engines have other KV if only one takes long sequences."""
    rope = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    transformers.Phi3Config(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        pad_token_id=0,
        max_position_embeddings=512,
        original_max_position_embeddings=128,
        rope_scaling=rope,
        architectures=["Phi3ForCausalLM"],
    ).save_pretrained(tmp_path)
    assert digest_of(tmp_path, 128) == digest_of(tmp_path, 128) != digest_of(tmp_path, 512)
    # To other models it makes no difference: their agents share whatever each of them takes.
    assert digest_of(model, 128) == digest_of(model, 512)


def test_a_drafter_counts_by_its_weights(model: Path, tmp_path: Path) -> None:
    """Its layers may lie in the blocks, where those of another one would be taken for them."""
    config = EngineArgs(
        model=str(model), skip_tokenizer_init=True, load_format="dummy"
    ).create_engine_config()

    def digest(method: str, weights: bytes | None) -> bytes:
        draft = None
        if weights is not None:
            (tmp_path / "drafter.safetensors").write_bytes(weights)
            draft = SimpleNamespace(model=str(tmp_path), revision=None)
        drafting = SimpleNamespace(method=method, draft_model_config=draft)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(config, "speculative_config", drafting)
            groups = [KVCacheGroupSpec(["l"], FULL)]
            return fingerprint(config, KVCacheConfig(8, [], groups), "").digest()

    one = digest("eagle", b"one")
    assert one == digest("eagle", b"one") != digest("eagle", b"other")
    assert len({one, digest("mtp", b"one"), digest("ngram", None), digest_of(model, 512)}) == 4


# Adapters


def write_adapter(folder: Path, weights: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)


def digest(digests: AdapterDigests, adapter: LoRARequest) -> bytes | None:
    end = time.monotonic() + 10
    while (found := digests.get(adapter)) is None and time.monotonic() < end:
        time.sleep(0.005)
    return found


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digests = AdapterDigests()
    yield digests
    digests.close()


def test_adapters_are_told_apart_by_content_not_by_name(
    digests: AdapterDigests, tmp_path: Path
) -> None:
    for name, weights in (("a", b"1" * 100), ("b", b"2" * 100), ("c", b"1" * 100)):
        write_adapter(tmp_path / name, weights)
    found = [
        digest(digests, LoRARequest("same name", number, str(tmp_path / folder)))
        for number, folder in enumerate("abc", 1)
    ]
    assert None not in found
    assert found[0] == found[2] != found[1]


def test_an_adapter_that_was_loaded_anew_is_looked_at_anew(
    digests: AdapterDigests, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    write_adapter(folder, b"1" * 100)
    before = digest(digests, LoRARequest("a", 1, str(folder)))
    write_adapter(folder, b"2" * 101)
    assert digest(digests, LoRARequest("a", 1, str(folder))) == before  # the engine's are the old
    after = digest(digests, LoRARequest("a", 2, str(folder)))
    assert after is not None
    assert after != before


def test_an_adapter_without_weights_is_never_known(digests: AdapterDigests, tmp_path: Path) -> None:
    missing = LoRARequest("a", 1, str(tmp_path / "nowhere"))
    digests.get(missing)
    digests._digests[1, missing.lora_path].exception(10)
    assert digests.get(missing) is None


# Requests


def request(**changes: Any) -> Request:
    return Request("r", [1, 2, 3], SamplingParams(max_tokens=1), None, **changes)


def test_an_adapter_that_is_replaced_in_place_is_not_relayed() -> None:
    assert not unsupported_request(request())
    assert not unsupported_request(request(lora_request=LoRARequest("a", 1, "/a")))
    in_place = LoRARequest("a", 1, "/a", load_inplace=True)
    assert unsupported_request(request(lora_request=in_place))


def test_images_are_part_of_every_block_that_they_reach_into() -> None:
    def extras(*items: tuple[str, int, int]) -> dict[int, bytes]:
        features = [
            SimpleNamespace(identifier=name, mm_position=PlaceholderRange(offset, length))
            for name, offset, length in items
        ]
        return multimodal_extras(SimpleNamespace(mm_features=features), 32)  # type: ignore[arg-type]

    assert extras() == {}
    assert set(extras(("cat", 40, 60))) == {1, 2, 3}
    assert set(extras(("cat", 32, 32))) == {1}
    # Another image, another place of it, and another one beside it make other blocks.
    one = extras(("cat", 40, 10))[1]
    others = [(("dog", 40, 10),), (("cat", 41, 10),), (("cat", 40, 10), ("dog", 55, 3))]
    assert one not in [extras(*items)[1] for items in others]
