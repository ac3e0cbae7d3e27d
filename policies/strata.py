"""The strata by which savings are told apart: where KV comes from, how long the prompt, how shared.

All three are known before the arm is chosen. Where bytes in the end came from (`load_path`) is
not: a recomputed request has none, and strata by it would compare an arm with nothing.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from kvrelay.policies.base import RelayView

MAX_STRATA = 64
_PROMPT_EDGES = (512, 2048, 8192)
_PROMPT_BANDS = ("<512", "512-2k", "2k-8k", ">=8k")
_SHARED_EDGES = (0.5, 0.9)
_SHARED_BANDS = ("<50%", "50-90%", ">=90%")


@dataclass(frozen=True, slots=True)
class Stratum:
    """One kind of request.

    Attributes:
        place: where the best candidate's KV lies, or the class of the link to it.
        prompt: band of the prompt's tokens.
        shared: band of the share of the prompt whose KV is held, locally or elsewhere.
    """

    place: str
    prompt: str
    shared: str

    @property
    def label(self) -> str:
        """One word for metrics and tables: `nodes/512-2k/>=90%`."""
        return f"{self.place}/{self.prompt}/{self.shared}"


OTHER = Stratum("other", "any", "any")


def stratum(place: str, prompt_tokens: int, shared_prefix_fraction: float) -> Stratum:
    """The stratum of a request."""
    return Stratum(
        place,
        _PROMPT_BANDS[bisect_right(_PROMPT_EDGES, prompt_tokens)],
        _SHARED_BANDS[bisect_right(_SHARED_EDGES, shared_prefix_fraction)],
    )


def stratum_of(view: RelayView) -> Stratum:
    """The stratum of a request that is being decided; it has a candidate."""
    best = view.candidates[0]
    held = view.local_tokens + best.num_tokens
    return stratum(best.place, view.prompt_tokens, held / max(view.prompt_tokens, 1))


def bounded(wanted: Stratum, known: Collection[Stratum]) -> Stratum:
    """A stratum, or `OTHER` once there are as many as metrics should have labels."""
    return wanted if wanted in known or len(known) < MAX_STRATA else OTHER
