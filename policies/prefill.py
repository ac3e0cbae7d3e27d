"""What computing a prompt costs, as a function of its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Tokens = TypeVar("Tokens", int, NDArray[np.int64])


class Work(NamedTuple):
    """What is to be computed, in units that add up.

    Attributes:
        tokens: n.
        squares: (c+n)^2 - c^2, twice the pairs of tokens that attention looks at.
    """

    tokens: int = 0
    squares: int = 0

    @classmethod
    def of(cls, there: int, tokens: int) -> Work:
        """Computing `tokens` behind `there` that are there."""
        return cls(tokens, tokens * (2 * there + tokens))

    def plus(self, other: Work) -> Work:
        """Both."""
        return Work(self.tokens + other.tokens, self.squares + other.squares)


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """T(c, n) = g + a*n + b*((c+n)^2 - c^2) seconds for n tokens behind c that are there.

    The defaults fit SmolLM2-135M on 2 CPU cores, 512 to 7900 tokens, within 3 %. What matters
    to eviction is a/b, the length (here 2600 tokens) at which attention costs as much as all
    else; larger models and GPUs have a larger one.

    Attributes:
        fixed_s: g.
        per_token_s: a.
        per_token_squared_s: b.
    """

    fixed_s: float = 0.096
    per_token_s: float = 6.0e-4
    per_token_squared_s: float = 2.3e-7

    def added_s(self, start: Tokens, end: Tokens) -> float | NDArray[np.float64]:
        """Seconds that tokens [start, end) add to a prefill that computes them."""
        length = end - start
        return length * (self.per_token_s + self.per_token_squared_s * (start + end))
