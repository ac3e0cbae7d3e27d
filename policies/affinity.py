"""Owner affinity: a request goes to the engine that has its prefix, not the KV to the request.

The strongest alternative to relay, and a yardstick for it. It works on what the ingress has, texts
or token ids, in chunks of about an engine block, so who holds what is a guess: an engine may have
evicted it, or a template may have put something in front. A wrong guess costs time, never
rightness, since the engine looks up its own cache by token ids as always.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from kvrelay.policies.similarity import prompt_words

CHUNK_BYTES = 512  # of text; of token ids, four bytes each, 128 of them
MAX_CHUNKS = 1 << 16  # about a thousand prompts of 8,000 tokens
MAX_HOLDERS = 4
# An owner that has so many more requests in flight than the named agent is passed over.
MAX_AHEAD = 8


def prefix_hashes(scope: Hashable, prompt: str | Sequence[int]) -> list[bytes]:
    """A hash for each whole chunk of a prompt and all before it.

    Args:
        scope: prompts of different scopes have no hash in common.
        prompt: text or token ids.
    """
    if isinstance(prompt, str):
        content = prompt.encode("utf-8", "replace")
    else:
        content = prompt_words(prompt).tobytes()
    digest, hashes = repr(scope).encode(), []
    for end in range(CHUNK_BYTES, len(content) + 1, CHUNK_BYTES):
        chunk = content[end - CHUNK_BYTES : end]
        digest = hashlib.blake2b(digest + chunk, digest_size=16).digest()
        hashes.append(digest)
    return hashes


class OwnerAffinity:
    """Who has lately served which prefixes; bounded, the longest unused are forgotten first."""

    def __init__(self, max_chunks: int = MAX_CHUNKS) -> None:
        """`max_chunks` bounds what is remembered, in chunks of all prompts."""
        self._max_chunks = max_chunks
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def choose(self, named: str, prefix: Sequence[bytes], in_flight: Mapping[str, int]) -> str:
        """The agent to serve a request: who holds most of its prefix; in doubt who is named.

        Args:
            named: the agent that the client named.
            prefix: from `prefix_hashes`.
            in_flight: requests in flight, by agent; 0 where there is no entry.
        """
        held = self._held_chunks(prefix)
        limit = in_flight.get(named, 0) + MAX_AHEAD
        able = [agent for agent in held if agent == named or in_flight.get(agent, 0) < limit]
        best = max(able, default=named, key=lambda agent: (held[agent], agent == named))
        return best if held.get(best, 0) > held.get(named, 0) else named

    def served(self, agent: str, prefix: Sequence[bytes]) -> None:
        """An agent's engine has computed a prompt with this prefix."""
        for digest in reversed(prefix):  # so that the end of a prompt is forgotten before its head
            others = [a for a in self._holders.get(digest, ()) if a != agent]
            self._holders[digest] = (*others[1 - MAX_HOLDERS :], agent)
            self._holders.move_to_end(digest)
        while len(self._holders) > self._max_chunks:
            self._holders.popitem(last=False)

    def forget(self, agent: str) -> None:
        """An agent's engine is gone, and what it held with it."""
        for digest, agents in list(self._holders.items()):
            if agents == (agent,):
                del self._holders[digest]
            elif agent in agents:
                self._holders[digest] = tuple(a for a in agents if a != agent)

    def _held_chunks(self, prefix: Sequence[bytes]) -> dict[str, int]:
        """How many chunks from the start on each agent holds, as far as is known."""
        held: dict[str, int] = {}
        for number, digest in enumerate(prefix):
            holders = [a for a in self._holders.get(digest, ()) if held.get(a, 0) == number]
            if not holders:
                break
            held.update(dict.fromkeys(holders, number + 1))
        return held
