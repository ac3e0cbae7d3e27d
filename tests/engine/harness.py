"""The engines of these tests, by the names that the tests use."""

from collections.abc import Callable
from typing import Any

from kvrelay.bench.driven import BLOCK_TOKENS as BLOCK
from kvrelay.bench.driven import DrivenEngine as Engine
from kvrelay.bench.driven import text_tokens, tiny_llama

__all__ = ["BLOCK", "Engine", "Settled", "text_tokens", "tiny_llama"]


class Settled:
    """An engine after whose every call something is waited for."""

    def __init__(self, engine: Engine, settle: Callable[[], None]) -> None:
        self._engine, self._settle = engine, settle

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._engine, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            self._settle()
            return answer

        return call
