#!/usr/bin/env bash
# Renews requirements/cpu.txt and dev.txt from their .in files; `make lock` runs this.
# Needs uv on PATH and .venv. uv reads its own index settings, not pip's. TORCH_SOURCE replaces where
# torch's CPU build comes from, for instance TORCH_SOURCE="--find-links DIR".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

command -v uv >/dev/null || { echo "lock: error: uv is not on PATH; pip install uv, then make lock" >&2; exit 1; }
read -ra torch_source <<<"${TORCH_SOURCE:---extra-index-url https://download.pytorch.org/whl/cpu}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
  uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --no-annotate --no-header "$@"
}
clean() { ../.venv/bin/python clean_lock.py "$@"; }

# unsafe-best-match: torch's CPU build is on PyTorch's index, everything else on the default one.
compile ../pyproject.toml --extra cpu --extra audit cpu.in --overrides overrides.txt --index-strategy unsafe-best-match \
  "${torch_source[@]}" -o "$work/cpu.full"
clean "CPU lock: Linux x86_64, Python 3.11 and 3.12" "$work/cpu.full" >"$work/cpu.txt"
# The editable install is built without isolation, from the setuptools in the lock.
grep -q '^setuptools==' "$work/cpu.txt" || { echo "lock: error: no setuptools in the lock" >&2; exit 1; }
mv "$work/cpu.txt" cpu.txt

compile dev.in -o "$work/dev.full"
clean "Development lock, on top of cpu.txt" "$work/dev.full" cpu.txt >"$work/dev.txt"
mv "$work/dev.txt" dev.txt
