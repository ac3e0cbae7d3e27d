# One command for each job. Every target but help, clean and lock sets up what it needs first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup typing lint types test test-fast validate demo serve lock clean

PYTHON ?=
FILE ?=
CONFIG ?= cluster/configs/demo.yaml
ARGS ?=

BIN := .venv/bin
PACKAGES := agents bench cluster policies relay

help:  ## this text
	@echo "kvrelay: agents that hand over KV caches where that pays"
	@echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | \
	  awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo "  Begin with: make demo             another input: make demo FILE=path/to/file"
	@echo "  Options:    PYTHON=/path/to/python3.12   CONFIG=my.yaml (serve)   ARGS='-k name' (test, test-fast)"

setup:  ## make .venv from the lock files; does nothing when it is up to date
	@PYTHON='$(PYTHON)' requirements/setup.sh

typing:  ## link .typing/kvrelay/* to the folders, for type checkers and editors
	@mkdir -p .typing/kvrelay
	@for d in $(PACKAGES); do ln -sfn ../../$$d .typing/kvrelay/$$d; done

lint: setup typing  ## ruff, its formatting, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=.typing $(BIN)/lint-imports --no-logo

types: setup typing  ## mypy: strict in policies/ and relay/, annotated everywhere
	$(BIN)/mypy

test: setup  ## every test, real engines included (about half an hour on 2 cores)
	$(BIN)/python -m pytest tests $(ARGS)

test-fast: setup  ## tests without engines (under a minute)
	$(BIN)/python -m pytest tests/unit -m "not slow and not engine and not e2e" $(ARGS)

validate: setup  ## intervals of the audit against known truths: 1,000 draws, bench/results/validate.json
	$(BIN)/python -m kvrelay.bench.audit.analysis.validate --json bench/results/validate.json

demo: setup  ## three agents work on a file, with relay and without; prints the table (FILE=...)
	@$(BIN)/kvrelay demo $(if $(FILE),--file '$(FILE)')

serve: setup  ## the same app, staying up at http://127.0.0.1:8000/v1 (CONFIG=...)
	@$(BIN)/kvrelay serve '$(CONFIG)'

lock:  ## renew requirements/*.txt from the .in files (needs uv)
	@requirements/lock.sh

clean:  ## remove everything that was made here, .venv included
	rm -rf .venv .venv.lock .typing build dist *.egg-info .coverage htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
