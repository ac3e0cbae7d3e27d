#!/usr/bin/env bash
# Makes .venv from the lock files and installs the project into it; `make setup` runs this.
# Idempotent: each step is skipped while the inputs it was done for are unchanged, so a second run
# takes well under a second. PYTHON=/path/to/python3.12 chooses the interpreter.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly MARKS=.venv/.kvrelay-setup

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; }

find_python() {
  local candidate found=""
  for candidate in ${PYTHON:-python3.11 python3.12 python3 python}; do
    command -v "$candidate" >/dev/null && fits "$candidate" || continue
    found=$candidate
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  if [[ -n $found ]]; then
    die "$found has no venv module; install its package (for instance: apt install $("$found" -c \
      'import sys; print("python%d.%d-venv" % sys.version_info[:2])')) and run make setup again"
  fi
  die "no Python 3.11 or 3.12${PYTHON:+ in PYTHON=$PYTHON}; install one, or name it:" \
    "make setup PYTHON=/path/to/python3.11"
}

# A .venv is usable with a fitting Python and in the place it was made in: its scripts name that.
usable() { fits .venv/bin/python && grep -qF "$PWD/.venv" .venv/bin/activate; }

digest() { cat "$@" | sha256sum | cut -c1-16; }
is_done() { [[ -f $MARKS/$1 && $(<"$MARKS/$1") == "$2" ]]; }
mark() { mkdir -p "$MARKS"; echo "$2" >"$MARKS/$1"; }

install_torch() {
  # Alone and first: the fallback index then serves torch only, and fails before the long download.
  # Any failure is retried there, since pip words a missing version in several ways.
  local pin log
  pin=$(grep -m1 '^torch==' requirements/cpu.txt)
  log=$(pip install -qq --no-deps "$pin" 2>&1) && return
  say "no $pin on the configured indexes, trying $TORCH_CPU_INDEX"
  pip install -qq --no-deps --extra-index-url "$TORCH_CPU_INDEX" "$pin" && return
  printf 'First, without that index:\n%s\n' "$log" >&2
  die "pip could not install $pin (above); name an index that has PyTorch's CPU wheels in" \
    "PIP_EXTRA_INDEX_URL and run make setup again"
}

install_lock() {
  pip install -qq --no-deps -r "$1" \
    || die "pip could not install $1 (above); run make setup again to go on from here"
}

main() {
  [[ $(uname -sm) == "Linux x86_64" ]] \
    || die "the lock files are for Linux x86_64; elsewhere: pip install -e '.[cpu,dev]' in an environment of yours"
  if command -v flock >/dev/null; then # two make targets at once: the second waits
    exec 9>.venv.lock
    flock 9
  fi

  local cpu dev project started=$SECONDS
  cpu=$(digest requirements/cpu.txt)
  dev=$(digest requirements/cpu.txt requirements/dev.txt)
  project=$(digest requirements/cpu.txt pyproject.toml)
  if is_done cpu "$cpu" && is_done dev "$dev" && is_done project "$project" && usable; then
    return
  fi

  if ! usable; then
    local python
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || die "could not make .venv (above)"
  fi
  if ! is_done cpu "$cpu"; then
    say "installing $(grep -c == requirements/cpu.txt) pinned packages (about 1 GB, some minutes)"
    install_torch
    install_lock requirements/cpu.txt
    mark cpu "$cpu"
  fi
  if ! is_done dev "$dev"; then
    say "installing the development tools"
    install_lock requirements/dev.txt
    mark dev "$dev"
  fi
  if ! is_done project "$project"; then
    say "installing kvrelay (editable)"
    pip install -qq --no-deps --no-build-isolation -e . || die "could not install the project (above)"
    mark project "$project"
  fi
  say "ready in $((SECONDS - started)) s: .venv/bin/kvrelay --help"
}

main
