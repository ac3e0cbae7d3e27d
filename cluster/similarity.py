"""Measures how much each prompt is like the recent ones, for the labels of its request.

In the ingress: no other place sees the prompts of all agents, and the most similar prompt is
mostly another agent's. A replica would know its own agent's only, and the engine's scheduler
thread, which has the token ids, must not be kept waiting. The ingress has texts and no tokenizer,
so it compares words of texts, and token ids where a prompt is brought as such.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable

from kvrelay.cluster.embedding import Encoder
from kvrelay.policies.similarity import Recent, cosine, jaccard, prompt_words, signature
from kvrelay.relay.labels import Labels

logger = logging.getLogger(__name__)
Prompt = str | list[int]


class SimilarityMeter:
    """The recent prompts of a cluster. For one event loop."""

    def __init__(self, encoder: Encoder | None = None) -> None:
        """`encoder` gives a text's embedding, of length one; None measures no cosine."""
        self._signatures = Recent(jaccard)
        self._vectors = Recent(cosine)
        self._encoder = encoder
        self._encoding = asyncio.Lock()

    async def labels(self, agent: str, scope: Hashable, prompt: Prompt | None) -> Labels:
        """Compare a prompt with the recent ones of its scope, and remember it.

        Args:
            agent: the agent that the client named.
            scope: prompts of different scopes are not compared.
            prompt: None for a request without a single one: nothing is measured.
        """
        if prompt is None:
            return Labels(agent)
        # Words and token ids of one text have nothing in common.
        scope = (scope, isinstance(prompt, str))
        row = signature(prompt_words(prompt))
        if row is None:
            return Labels(agent)
        index = self._signatures.compare_and_add(scope, row)
        return Labels(agent, index, await self._cosine(scope, prompt))

    async def _cosine(self, scope: Hashable, prompt: Prompt) -> float | None:
        if self._encoder is None or not isinstance(prompt, str):
            return None
        try:
            async with self._encoding:  # no model promises to be safe in two threads
                vector = await asyncio.to_thread(self._encoder, prompt)
        except Exception:  # a label is not worth a request
            logger.exception("the embedding model failed")
            return None
        return self._vectors.compare_and_add(scope, vector)
