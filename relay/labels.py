"""What the server tells the connector about a request, beside what the client asks of it.

vLLM carries one dictionary of a request to the connector, `kv_transfer_params`, and clients may
fill it. So the ingress replaces this field of it always: what a client writes there is lost.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from kvrelay.policies.similarity import band

FIELD = "kvrelay_labels"


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one request; None where nothing is known.

    Attributes:
        agent: the agent that the client named.
        minhash_jaccard: likeness of its prompt's word shingles and those of the most similar
            recent prompt, 0 to 1.
        embedding_cosine: the same of their embeddings.
        is_probe: nobody has asked: the agent measures its engine. No record, metric or block of it
            is kept.
        next_agent, next_probability: who is expected to go on with its prompt, and how likely.
        foreseen: whether its own agent had been expected, if it goes on with an earlier prompt.
    """

    agent: str | None = None
    minhash_jaccard: float | None = None
    embedding_cosine: float | None = None
    is_probe: bool = False
    next_agent: str | None = None
    next_probability: float | None = None
    foreseen: bool | None = None

    @property
    def similarity_band(self) -> str | None:
        """`high`, `mid` or `low`: by the cosine if there is one, else by the Jaccard index."""
        measured = self.embedding_cosine
        if measured is None:
            measured = self.minhash_jaccard
        return None if measured is None else str(band(measured))

    def in_record(self, served_by: str) -> dict[str, Any]:
        """The fields of the record that come from here, given the agent whose engine serves."""
        return {
            "agent": self.agent or served_by,
            "served_by": served_by,
            "minhash_jaccard": self.minhash_jaccard,
            "embedding_cosine": self.embedding_cosine,
            "similarity_band": self.similarity_band,
            "next_agent": self.next_agent,
            "next_probability": self.next_probability,
            "foreseen": self.foreseen,
        }

    def added_to(self, kv_transfer_params: Mapping[str, Any] | None) -> dict[str, Any]:
        """A request's parameters with these labels in the place of any others."""
        return {**(kv_transfer_params or {}), FIELD: asdict(self)}

    @classmethod
    def of(cls, kv_transfer_params: object) -> "Labels":
        """The labels that a request carries; none if the ingress has written none."""
        if not isinstance(kv_transfer_params, dict):
            return cls()
        try:
            return msgspec.convert(kv_transfer_params.get(FIELD, {}), cls)
        except msgspec.ValidationError:
            return cls()


def without_labels(kv_transfer_params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A request's parameters without what a client may have written there; None if empty."""
    return {k: v for k, v in (kv_transfer_params or {}).items() if k != FIELD} or None
