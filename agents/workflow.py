"""An append-only pipeline of agents: each one continues what those before it read and wrote.

layout = ChatLayout.load(model_dir)
pipeline = Pipeline([Step("reader", "Summarize."), Step("writer", "Rewrite.")], client, layout)
for result in pipeline.run(text):
    print(result.agent, result.relayed_tokens, result.ttft_s)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai import APIError, OpenAI

from kvrelay.agents.errors import WorkflowError
from kvrelay.agents.layout import ChatLayout
from kvrelay.policies.modes import Mode


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a pipeline.

    Attributes:
        agent: who takes it.
        instruction: what it is asked.
        max_tokens: longest output; at least 1.
    """

    agent: str
    instruction: str
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. The token counts are the engine's own, None if it runs no connector.

    Attributes:
        agent: who took the step.
        prompt_tokens: tokens of its prompt = local + relayed + recomputed.
        local_tokens: found in the agent's own prefix cache.
        relayed_tokens: taken over from other agents.
        recomputed_tokens: computed here.
        reason: why it was relayed or not.
        ttft_s: from sending the request to having its first token, seen by the client.
        prompt: token ids.
        output: token ids.
        text: the output.
        record: the whole record of the decision.
    """

    agent: str
    prompt_tokens: int
    local_tokens: int | None
    relayed_tokens: int | None
    recomputed_tokens: int | None
    reason: str | None
    ttft_s: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    text: str
    record: Mapping[str, Any] | None


class Pipeline:
    """Agents in a row over one shared context.

    A step is two requests. The first asks for a single token and is not a stream: its whole
    duration is the time to first token, and its answer carries the record of the decision,
    which vLLM's stream has no field for. The second goes on from that token; what the first
    computed is in the agent's own cache by then. Both say who takes the next step, so that a
    cluster that is configured to can have the KV there before (`relay.prediction`).
    """

    def __init__(self, steps: Sequence[Step], client: OpenAI, layout: ChatLayout) -> None:
        """Set up a pipeline.

        Args:
            steps: the turns, in order; at least one.
            client: of the cluster's endpoint.
            layout: of the model that all agents run: token ids mean nothing to another one.
        """
        if not steps:
            raise ValueError("a pipeline needs at least one step")
        self._steps = tuple(steps)
        self._client = client
        self._layout = layout

    def run(
        self,
        context: str,
        relay: bool = True,
        cache_salt: str | None = None,
        replay: Sequence[StepResult] | None = None,
    ) -> list[StepResult]:
        """Let the agents work on a text.

        Args:
            context: what they all read.
            relay: False has every agent recompute what its own cache lacks.
            cache_salt: runs of different salts share no KV, neither in an agent's own cache
                nor between agents.
            replay: results of an earlier run whose outputs the prompts are made of, so that
                both runs have the same prompts, token for token.

        Raises:
            WorkflowError: an agent refused a step or could not be reached.
        """
        results: list[StepResult] = []
        prompt = self._layout.open(context, self._steps[0].instruction)
        for i, step in enumerate(self._steps):
            after = self._steps[i + 1].agent if i + 1 < len(self._steps) else None
            result = self._take(step, prompt, relay, cache_salt, after)
            results.append(result)
            if i + 1 < len(self._steps):
                output = replay[i].output if replay is not None else result.output
                prompt = self._layout.extend(prompt, output, self._steps[i + 1].instruction)
        return results

    def _take(
        self,
        step: Step,
        prompt: list[int],
        relay: bool,
        cache_salt: str | None,
        after: str | None,
    ) -> StepResult:
        control = {"mode": str(Mode.AUTO if relay else Mode.RECOMPUTE)}
        if relay and after is not None:
            control["next"] = after
        started_s = time.perf_counter()
        first = self._complete(step.agent, prompt, 1, control, cache_salt)
        ttft_s = time.perf_counter() - started_s
        output = _token_ids(first)
        if first.choices[0].finish_reason == "length" and step.max_tokens > 1:
            longer = [*prompt, *output]
            rest = self._complete(step.agent, longer, step.max_tokens - 1, control, cache_salt)
            output += _token_ids(rest)
        record = _record(first)
        return StepResult(
            agent=step.agent,
            prompt_tokens=len(prompt),
            local_tokens=record.get("local_tokens"),
            relayed_tokens=record.get("relayed_tokens"),
            recomputed_tokens=record.get("recomputed_tokens"),
            reason=record.get("reason"),
            ttft_s=ttft_s,
            prompt=tuple(prompt),
            output=tuple(output),
            text=self._layout.decode(output),
            record=record or None,
        )

    def _complete(
        self,
        agent: str,
        prompt: list[int],
        max_tokens: int,
        control: Mapping[str, str],
        cache_salt: str | None,
    ) -> Any:
        extra: dict[str, Any] = {
            "return_token_ids": True,
            "kv_transfer_params": {"kvrelay": dict(control)},
        }
        if cache_salt is not None:
            extra["cache_salt"] = cache_salt
        try:
            return self._client.completions.create(
                model=agent, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body=extra
            )
        except APIError as error:
            raise WorkflowError(f"agent '{agent}' refused its step: {error.message}") from error


def _token_ids(completion: Any) -> list[int]:
    ids = completion.choices[0].model_extra.get("token_ids")
    if ids is None:
        raise WorkflowError("the endpoint returns no token ids; is it kvrelay's?")
    return list(ids)


def _record(completion: Any) -> Mapping[str, Any]:
    params = completion.model_extra.get("kv_transfer_params") or {}
    return params.get("kvrelay") or {}
