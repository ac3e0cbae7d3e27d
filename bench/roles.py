"""Which engine plays which part, restart by restart, in `kvrelay bench miss`."""

from __future__ import annotations

from dataclasses import dataclass

CONNECTOR, PLAIN, CONTROL = "connector", "plain", "control"
ROLES = (CONNECTOR, PLAIN, CONTROL)


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents of one start of the engines, in the order in which they are started.

    Attributes:
        agents: role of each agent, by name.
    """

    agents: dict[str, str]

    def who(self, role: str) -> str:
        """The agent that plays a role."""
        return next(name for name, each in self.agents.items() if each == role)


def cast(restart: int) -> Cast:
    """The parts after that many restarts.

    A Latin square: over three starts every agent has the connector once, is plain once and is
    the control once, so that what comes of an agent's place (the order of the starts, memory)
    falls on all roles alike.
    """
    names = ("e1", "e2", "e3")
    shift = restart % len(ROLES)
    return Cast(dict(zip(names, ROLES[-shift:] + ROLES[:-shift] if shift else ROLES, strict=True)))


def share(repeats: int, restarts: int, restart: int) -> int:
    """How many of all repeats fall on one restart; they differ by one at most."""
    return repeats // restarts + (restart < repeats % restarts)
