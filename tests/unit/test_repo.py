"""The repository as a whole: what no file may say, and what each folder must have."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["agents", "bench", "cluster", "policies", "relay"]
MAX_LINES = 500

# Package hosts come from pip's configuration, and paths of one machine mean nothing on another.
# Spelt with a class so that this file does not hold them itself.
FORBIDDEN = [
    r"pypi[.]org",
    r"pythonhosted[.]org",
    r"debian[.]org",
    r"npmjs[.]org",
    r"npmjs[.]com",
    r"(?<![\w.])/wor[k]/",
    r"/opt/(?:wheel[s]|pyp[i])",
    r"/roo[t]/",
]
TEXT_LIMIT_BYTES = 2_000_000


def files() -> list[Path]:
    """Every file that is tracked or would be: what git lists and does not ignore."""
    try:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, or no git")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_host_or_a_machine() -> None:
    pattern = re.compile("|".join(FORBIDDEN))
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in files()
        if path.stat().st_size < TEXT_LIMIT_BYTES
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert hits == []


@pytest.mark.parametrize("folder", [*FOLDERS, "k8s", "tests"])
def test_each_folder_explains_itself(folder: str) -> None:
    readme = ROOT / folder / "README.md"
    assert readme.is_file(), f"{folder}/README.md is missing: what lives here, where to add things"
    assert 3 <= len(readme.read_text().splitlines()) <= 100, "one screen"


def test_no_module_is_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}, f"over {MAX_LINES} lines: split it"


def test_what_people_run_is_executable() -> None:
    for name in [".ci/run", "requirements/setup.sh", "requirements/lock.sh"]:
        assert (ROOT / name).stat().st_mode & 0o111, name


def test_lock_files_pin_exactly_and_agree() -> None:
    pins: dict[str, str] = {}
    for name in ["cpu.txt", "dev.txt"]:
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line.startswith("#"):
                continue
            package, _, version = line.partition("==")
            assert version, f"{name}: {line!r} is not an exact pin"
            assert package not in pins, f"{package} is pinned twice"
            pins[package] = version
    assert int(pins["setuptools"].split(".")[0]) >= 77, "builds the editable install"
    assert pins["torch"].endswith("+cpu")
