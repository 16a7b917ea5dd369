# Every target sets up what it needs: see scripts/setup.sh. The second run finds it ready.
#   make demo [ROOT=file:///path]   offload a year of real flights, kill the writer, resume, compare
#   make test                       lint, types, all tests; says at the end which guarantees were not tested here
#   make lint | bench | soak-put | wheel | clean
# PYTHON=/path/to/python3 chooses the interpreter (3.11 or newer), JOBS the number of test processes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin/python
JOBS ?= 2
ROOT ?=
export PYTHON

.PHONY: help demo test lint types bench soak-put wheel clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

$(VENV)/.ready-run: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

$(VENV)/.ready-demo: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) demo,spark
	@touch $@ $(VENV)/.ready-run

$(VENV)/.ready-dev: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) dev
	@touch $@ $(VENV)/.ready-run $(VENV)/.ready-demo

demo: $(VENV)/.ready-demo
	@$(RUN) -m chunkstore demo $(if $(ROOT),"$(ROOT)")

test: lint types
	$(RUN) -m pytest -q -n $(JOBS) --dist worksteal

lint: $(VENV)/.ready-dev
	$(RUN) -m ruff check .

types: $(VENV)/.ready-dev
	$(RUN) -m mypy

# Ratios to bare system calls, and memory; not part of the tests, because they need a quiet machine.
bench: $(VENV)/.ready-dev
	$(RUN) -m benchmarks

# 1 GiB, twenty kills of the writer at random moments, each followed by put --resume.
soak-put: $(VENV)/.ready-dev
	CHUNKSTORE_SOAK_PUT=1 $(RUN) -m pytest -q -s tests/cli/test_put_killed.py

wheel: $(VENV)/.ready-dev
	$(RUN) -m hatchling build -t wheel
	@ls -l dist

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
