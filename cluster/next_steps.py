"""Says after each request which agent is expected to go on with its prompt, for `relay.prediction`.

In the ingress, since no other place sees the requests to all agents. It goes by texts and token
ids as they come, in chunks, like `owners.py`: what is expected is a hint, on which the agent's node
may fetch KV ahead (`relay/ahead.py`). A wrong one costs time of links, never rightness.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import replace

from kvrelay.cluster.front import AgentFront
from kvrelay.cluster.similarity import Prompt
from kvrelay.policies.affinity import prefix_hashes
from kvrelay.policies.prediction import Successors
from kvrelay.relay.labels import Labels

logger = logging.getLogger(__name__)


class NextSteps:
    """The recent requests of a cluster, and who came after whom. For one event loop."""

    def __init__(self, agents: Mapping[str, AgentFront], learns: bool) -> None:
        """`learns`: also where no request declares who comes next."""
        self._agents = agents
        self._successors = Successors(learns)

    def added_to(
        self,
        labels: Labels,
        *,
        agent: str,
        tenant: str | None,
        scope: Hashable,
        prompt: Prompt | None,
        declared: str | None,
    ) -> Labels:
        """A request's labels with who is expected next, and whether it was expected itself.

        Args:
            labels: to add to.
            agent: which is asked.
            tenant: whose request it is.
            scope: prompts of different scopes share no KV.
            prompt: None for a request without a single one.
            declared: who comes next, if the request says so.
        """
        if declared is not None and not self._can_follow(agent, declared):
            declared = None
        try:
            prefix = [] if prompt is None else prefix_hashes(scope, prompt)
            successor, foreseen = self._successors.saw(tenant, agent, prefix, declared)
        except Exception:  # a label is not worth a request
            logger.exception("who comes next could not be told")
            return labels
        name, probability = (None, None) if successor is None else successor
        return replace(labels, next_agent=name, next_probability=probability, foreseen=foreseen)

    def _can_follow(self, agent: str, other: str) -> bool:
        """Whether another agent could use this one's KV."""
        front = self._agents[other]
        return front.relays and front.model == self._agents[agent].model
