"""The interface of a relay policy, and the frozen view it decides on.

Preconditions the caller guarantees: the candidates hold an identical token prefix
computed under an identical model fingerprint, and the view is a consistent snapshot.
Duties of the implementor: be a pure function of the view (plus the policy's own fitted
coefficients), never block, and give a reason for every answer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvrelay.policies.decision import Decision
from kvrelay.policies.prefill import NO_WORK, Work


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that holds KV beyond the local hit.

    Attributes:
        place: the slowest place that KV comes from: `arena`, this node's shared memory;
            `encoded`, this node's encoded blocks; `nodes`, other nodes.
        num_tokens: reusable tokens beyond the local hit.
        num_bytes: bytes that have to be moved for them.
        absent_bytes: how many of those are not in the arena.
        bytes_ahead: what loads under way bring from the same place.
    """

    place: str
    num_tokens: int
    num_bytes: int
    absent_bytes: int = 0
    bytes_ahead: int = 0

    @property
    def place_bytes(self) -> int:
        """What comes from `place`: the arena's part is copied while the rest is on its way."""
        return self.absent_bytes or self.num_bytes


@dataclass(frozen=True, slots=True)
class RelayView:
    """What is known about one request when it is decided.

    Attributes:
        prompt_tokens: tokens the request brings (after a preemption: output included).
        local_tokens: tokens that the engine's own prefix cache covers.
        candidates: places that hold more, best first; empty if none does.
        requests_waiting: requests queued in this engine, this one included.
        requests_running: requests in this engine's batch.
        loads_in_flight: loads this engine has under way.
        bytes_in_flight: bytes of those loads.
        similarity: embedding cosine of the prompt and the most similar recent one, 0 to 1; None if
            it was not measured. That the candidates match exactly does not rest on it.
        ahead: what this engine computes before it comes to this request: prompts of its batch.
        beside: what it decodes in each step meanwhile.
        draw: a number from [0, 1), drawn for this request or its session: policies have no
            randomness of their own. 0.5 leaves nothing to chance, see `assignment.assign`.
    """

    prompt_tokens: int
    local_tokens: int
    candidates: tuple[Candidate, ...]
    requests_waiting: int = 0
    requests_running: int = 0
    loads_in_flight: int = 0
    bytes_in_flight: int = 0
    similarity: float | None = None
    ahead: Work = NO_WORK
    beside: Work = NO_WORK
    draw: float = 0.5


class RelayPolicy(ABC):
    """Decides relay or recompute for one request at a time."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that configuration and records use, such as `min_tokens:256`."""

    @abstractmethod
    def decide(self, view: RelayView) -> Decision:
        """Decide on a view that has at least one candidate."""
