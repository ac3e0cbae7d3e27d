"""What the ingress is told when it starts: plain values that travel to its replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvrelay.agents.prompt import AgentDefaults


@dataclass(frozen=True, slots=True)
class AgentFront:
    """One agent as the ingress sees it.

    Attributes:
        defaults: what it adds to requests.
    """

    defaults: AgentDefaults


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """All that the ingress needs to know beside the engines' handles.

    Attributes:
        agents: by name.
    """

    agents: Mapping[str, AgentFront]
