"""Sends a request to the agent that has its prefix, for `relay.routing: owner_affinity`.

Only among agents of one pool, those with the same model and engine arguments: for them a prompt
that the ingress has completed means the same. The answer's `model` stays the agent that was
named, and the record says `served_by`. An owner that is not well costs a request nothing but
time: unless it has begun to answer, the named agent is asked instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError

from kvrelay.policies.affinity import OwnerAffinity

logger = logging.getLogger(__name__)
Parts = AsyncGenerator[Any, None]
# An owner whose replica does not say within this time that its engine is well is passed over.
CHECK_S = 1.0


class OwnerRouting:
    """Chooses the agent for each request, and asks it. For one event loop."""

    def __init__(self, check_health: Callable[[str], Awaitable[None]]) -> None:
        """`check_health` returns once an agent has said that it is well, or raises."""
        self._affinity = OwnerAffinity()
        self._in_flight: Counter[str] = Counter()
        self._check_health = check_health

    async def answer(
        self, named: str, prefix: Sequence[bytes], ask: Callable[[str], Parts]
    ) -> Parts:
        """The parts of the answer of whichever agent serves.

        Args:
            named: the agent that the client named.
            prefix: of its prompt, from `prefix_hashes`; empty to go to the named agent.
            ask: sends the request to an agent.
        """
        owner = self._affinity.choose(named, prefix, self._in_flight)
        if owner != named:
            async with aclosing(self._counted(owner, ask(owner))) as parts:
                first = await self._from_owner(owner, parts)
                if first is not None:
                    self._served(owner, prefix, first)
                    yield _renamed(first, named)
                    async for part in parts:
                        yield _renamed(part, named)
                    return
            self._affinity.forget(owner)
        async with aclosing(self._counted(named, ask(named))) as parts:
            first = await anext(parts)
            self._served(named, prefix, first)
            yield first
            async for part in parts:
                yield part

    async def _from_owner(self, owner: str, parts: Parts) -> Any:
        """The first part; None if the owner is not well.

        It is asked whether it is well while it already works: that costs the request no time.
        """
        first = asyncio.ensure_future(anext(parts))
        well = asyncio.ensure_future(self._is_well(owner))
        try:
            await asyncio.wait({first, well}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() and not await well:
                return None
            part = await first
        except VLLMClientError:
            raise  # no agent would take it
        except Exception as error:
            logger.warning("agent '%s' failed with another agent's request: %r", owner, error)
            return None
        finally:
            first.cancel()
            well.cancel()
            await asyncio.gather(first, well, return_exceptions=True)
        return None if _is_fault(part) else part

    async def _is_well(self, agent: str) -> bool:
        try:
            await asyncio.wait_for(self._check_health(agent), CHECK_S)
        except Exception as error:
            logger.warning("agent '%s' is passed over: %r", agent, error)
            return False
        return True

    def _served(self, agent: str, prefix: Sequence[bytes], first: Any) -> None:
        if not isinstance(_head(first), ErrorResponse):
            self._affinity.served(agent, prefix)

    async def _counted(self, agent: str, parts: Parts) -> Parts:
        self._in_flight[agent] += 1
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            self._in_flight[agent] -= 1


def _head(part: Any) -> Any:
    return part[0] if isinstance(part, list) and part else part


def _is_fault(part: Any) -> bool:
    """Whether an answer is an error that is not the client's."""
    head = _head(part)
    return isinstance(head, ErrorResponse) and int(head.error.code) >= 500


def _renamed(part: Any, agent: str) -> Any:
    """A part of an answer as that of an agent: a response, an event's text, or several."""
    if isinstance(part, list):
        return [_renamed(one, agent) for one in part]
    if isinstance(part, str):
        return "\n".join(_renamed_line(line, agent) for line in part.split("\n"))
    if isinstance(part, BaseModel) and "model" in type(part).model_fields:
        return part.model_copy(update={"model": agent})
    return part


def _renamed_line(line: str, agent: str) -> str:
    """A line of server-sent events: `data: {"id": ..., "model": ...}`."""
    name, _, data = line.partition(": ")
    if name != "data" or not data.startswith("{"):
        return line
    chunk = json.loads(data)
    if "model" not in chunk:
        return line
    renamed = json.dumps({**chunk, "model": agent}, ensure_ascii=False, separators=(",", ":"))
    return f"data: {renamed}"
