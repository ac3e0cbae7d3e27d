"""What an agent is told when it starts: plain values that travel to the replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvrelay.relay.settings import RelaySettings


class SamplingDefaults(BaseModel):
    """Sampling parameters that apply where a request brings none; None leaves it to vLLM.

    The names and ranges are those of the OpenAI and vLLM request fields.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    stop: list[str] | None = None
    seed: int | None = None

    def given(self) -> dict[str, Any]:
        """Only what is set."""
        return self.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent as its replica sees it.

    Attributes:
        name: the `model` name that callers use.
        relay: the connector's settings, without the store's address; None for an engine
            that gets no connector from kvrelay.
        cpu_binding: cores of a CPU engine's threads, such as `0-3`; None takes every core
            that the replica may use.
    """

    name: str
    relay: RelaySettings | None = None
    cpu_binding: str | None = None
