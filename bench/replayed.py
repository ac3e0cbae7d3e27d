"""Policies in a replay: which, and how those that learn hear what came of their decisions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvrelay.cluster.errors import ConfigError
from kvrelay.policies import RelayPolicy, parse_policy


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
        num_bytes: what it was to bring.
        loaded_bytes: what it has brought.
        bytes_ahead: of loads of this engine from the same place, under way when it began.
        seconds: from the decision to its end.
    """

    place: str
    num_bytes: int
    loaded_bytes: int
    bytes_ahead: int
    seconds: float


@runtime_checkable
class Learns(Protocol):
    """A policy that wants to hear."""

    def observe(self, what: Step | Load) -> None:
        """It has happened in the engine where this policy decides."""


def teach(policy: RelayPolicy, what: Step | Load) -> None:
    """Tell a policy, if it is one that learns; fixed rules do not."""
    if isinstance(policy, Learns):
        policy.observe(what)


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
