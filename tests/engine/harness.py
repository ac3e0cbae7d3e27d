"""The engines of these tests, by the names that the tests use."""

from kvrelay.bench.driven import BLOCK_TOKENS as BLOCK
from kvrelay.bench.driven import DrivenEngine as Engine
from kvrelay.bench.driven import text_tokens, tiny_llama

__all__ = ["BLOCK", "Engine", "text_tokens", "tiny_llama"]
