"""Policies in a replay: which, and how those that learn hear what came of their decisions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvrelay.cluster.errors import ConfigError
from kvrelay.policies import RelayPolicy, parse_policy
from kvrelay.policies.cost import CostPolicy
from kvrelay.policies.prefill import NO_WORK, Work


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an engine that computed prompts.

    Attributes:
        prompts: of each, the tokens that were there before, and those that it computed.
        seconds: how long it took.
    """

    prompts: tuple[tuple[int, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has ended, in time or not.

    Attributes:
        place: the slowest that it came from, as in `Candidate`.
        num_bytes: what it was to bring that was not in the arena, or all if all was.
        loaded_bytes: what of it has come.
        bytes_ahead: the same of the loads from that place that were under way when it was decided.
        seconds: from its begin, behind the step beside it, to its end.
    """

    place: str
    num_bytes: int
    loaded_bytes: int
    bytes_ahead: int
    seconds: float


def teach(policy: RelayPolicy, what: Step | Load) -> None:
    """Tell a policy, if it is one that learns; fixed rules do not."""
    if not isinstance(policy, CostPolicy):
        return
    costs = policy.costs
    if isinstance(what, Step):
        work = NO_WORK
        for there, tokens in what.prompts:
            work = work.plus(Work.of(there, tokens))
        costs.observe_step(work, what.seconds)
        return
    way, num_bytes = (what.place,), what.num_bytes
    if what.loaded_bytes < num_bytes:
        costs.observe_unfinished_load(
            way, num_bytes, what.bytes_ahead, what.loaded_bytes, what.seconds
        )
    else:
        costs.observe_load(way, num_bytes, what.bytes_ahead, what.seconds)


def parse_policies(text: str) -> tuple[str, ...]:
    """`always,floor_and_queue:1024,8` as names, each once; a number belongs to the name before it.

    Raises:
        ConfigError: there is no such policy.
    """
    names = tuple(dict.fromkeys(re.split(r",\s*(?=[a-z])", text.strip())))
    for name in names:
        try:
            parse_policy(name)
        except ValueError as error:
            raise ConfigError(f"--policies: {error}") from None
    return names
