"""What the ingress is told when it starts: plain values that travel to its replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvrelay.agents.prompt import AgentDefaults
from kvrelay.cluster.access import Access


@dataclass(frozen=True, slots=True)
class AgentFront:
    """One agent as the ingress sees it.

    Attributes:
        defaults: what it adds to requests.
        model: the key of its model: prompts for another one are not comparable.
        relays: whether its engine has kvrelay's connector.
        pool: agents of one pool can serve each other's requests; None: none can serve this one's.
    """

    defaults: AgentDefaults
    model: str
    relays: bool
    pool: str | None


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """All that the ingress needs to know beside the engines' handles.

    Attributes:
        agents: by name.
        routing: `named` sends a request to the agent that it names, `owner_affinity` to the one of
            its pool that has its prefix.
        embedding_model: measures the cosine of prompts; None measures none.
        prediction: who is expected to go on with a prompt: nobody, whom the request declares, or
            where it does not, whom earlier requests let expect.
        access: what the headers of a request allow.
    """

    agents: Mapping[str, AgentFront]
    routing: Literal["named", "owner_affinity"] = "named"
    embedding_model: str | None = None
    prediction: Literal["none", "declared", "observed"] = "none"
    access: Access = field(default_factory=Access)
