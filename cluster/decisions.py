"""Looking up the records of an answer: every node has a log of its own, so all agents are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.serve.exceptions import DeploymentUnavailableError

# A record may be queued for the log for a moment after its answer is complete.
ATTEMPTS_AFTER_S = (0.0, 0.2, 0.7)
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the agents said.

    Attributes:
        records: by arrival; the log of a node may be read by several replicas, none stands twice.
        silent: agents of which a replica did not answer.
        kept: whether any of them keeps a log.
    """

    records: list[dict[str, Any]]
    silent: list[str]
    kept: bool


async def find(
    handles: Mapping[str, Any],
    answer: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Found:
    """Ask all replicas of all agents; again for up to a second if nobody knows of it.

    Args:
        handles: of the agents' deployments, by agent.
        answer: the id of the OpenAI response.
        sleep: waits that many seconds.
    """
    found = Found([], [], False)
    for wait_s in ATTEMPTS_AFTER_S:
        await sleep(wait_s)
        found = await _ask(handles, answer)
        if found.records or not (found.kept or found.silent):
            break
    return found


async def _ask(handles: Mapping[str, Any], answer: str) -> Found:
    told = await asyncio.gather(*(_ask_agent(handle, answer) for handle in handles.values()))
    by_agent = dict(zip(handles, told, strict=True))
    logs = [log for logs in told for log in logs if isinstance(log, list)]
    records = {record["request_id"]: record for log in logs for record in log}
    return Found(
        records=sorted(records.values(), key=lambda each: (each["time_s"], each["request_id"])),
        silent=[
            agent
            for agent, logs in by_agent.items()
            if any(isinstance(log, BaseException) for log in logs)
        ],
        kept=bool(logs),
    )


async def _ask_agent(handle: Any, answer: str) -> list[Any]:
    """What each replica says: records, None if it keeps no log, or why it did not answer."""
    try:
        asked = handle.broadcast("decisions", answer)
        return list(await asked.results_async(timeout_s=TIMEOUT_S, return_exceptions=True))
    except DeploymentUnavailableError:
        return []  # scaled to zero
    except Exception as error:
        return [error]
