"""Checks `engine_kwargs` against what the installed vLLM takes."""

from __future__ import annotations

import dataclasses
import difflib

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from kvrelay.cluster.config import ClusterConfig
from kvrelay.cluster.errors import ConfigError

# ray.serve.llm sets these itself, from `models` and the agent's name.
_OURS = {"model": "models.NAME.source", "served_model_name": "agents[].name"}


def check_engine_kwargs(config: ClusterConfig) -> None:
    """Fail on arguments that vLLM does not have.

    Raises:
        ConfigError: naming each of them with its path and the nearest known one.
    """
    known = {f.name for args in (AsyncEngineArgs, FrontendArgs) for f in dataclasses.fields(args)}
    places = {f"models.{name}": model.engine_kwargs for name, model in config.models.items()}
    places |= {f"agents[{i}]": agent.engine_kwargs for i, agent in enumerate(config.agents)}
    problems = []
    for place, kwargs in places.items():
        for key in kwargs:
            path = f"{place}.engine_kwargs.{key}"
            if key in _OURS:
                problems.append(f"{path}: not allowed here; set {_OURS[key]}")
            elif key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                problems.append(f"{path}: unknown vLLM engine argument{hint}")
    if problems:
        raise ConfigError("\n  ".join(problems))
