"""Reduce a universal `uv pip compile` result to a lock for Linux x86_64, Python 3.11 and 3.12.

Usage: clean_lock.py TITLE COMPILED [WITHOUT]

Prints the title as a comment, then one exact pin a line. Drops what no target environment needs and
what the lock file WITHOUT already pins; keeps a marker only where the two Pythons differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from packaging.requirements import Requirement

TARGETS: list[dict[str, str]] = [
    {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.7",
        "python_version": python,
        "sys_platform": "linux",
    }
    for python in ("3.11", "3.12")
]


def pins(path: Path) -> list[Requirement]:
    """The requirements in a compiled file, in its order, comments and options left out."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


def clean(compiled: Path, without: Path | None) -> list[str]:
    """The lock lines for TARGETS; see the module's head."""
    known = {pin.name for pin in pins(without)} if without else set()
    lines = []
    for pin in pins(compiled):
        wanted = [pin.marker is None or pin.marker.evaluate(target) for target in TARGETS]
        if pin.name in known or not any(wanted):
            continue
        lines.append(f"{pin.name}{pin.specifier}" if all(wanted) else str(pin))
    return lines


def main() -> None:
    """Command line: see the module's head."""
    title, compiled, *rest = sys.argv[1:]
    print(f"# {title}; installed with --no-deps. Made by: make lock")
    print("\n".join(clean(Path(compiled), Path(rest[0]) if rest else None)))


if __name__ == "__main__":
    main()
