# Every target sets up what it needs: see scripts/setup.sh. The second run finds it ready.
#   make demo [ROOT=file:///path]   offload a year of real flights, kill the writer, resume, compare; then read a Pulsar broker's bucket
#   make test                       lint, types, tests: a share of everything; says at the end which guarantees were not tested here
#   make proofs                     the tests that make test leaves out: more servers, kills, flipped bits, the other worlds
#   make fuzz                       10^6 hostile inputs for every decoder; make test runs a share
#   make chaos                      half an hour of processes that fight for one container, hundreds of kills
#   make crash-points               every call of every core operation fails in every way; make test runs a share
#   make simulate                   ten minutes of random runs: production code on a seeded scheduler; make test runs a share
#   make mutants                    fifteen planted bugs, each of which the simulated runs must notice; make test runs a share
#   make models                     every state of the protocol's models in large scopes; make test runs small ones
#   make spark-cluster              Spark as a cluster, through Connect, with pipelines, from the built wheel; kills, machines that lack things
#   make spark-versions             the tests of the Spark part on the older versions of PySpark that are supported
#   make lint | bench | soak-put | wheel | clean
# PYTHON=/path/to/python3 chooses the interpreter (3.11 or newer), JOBS the number of processes of long runs, TEST_JOBS that
# of tests (one more than processors: they wait for servers a third of the time).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin/python
PROCESSORS := $(shell nproc 2>/dev/null || echo 2)
JOBS ?= $(PROCESSORS)
TEST_JOBS ?= $(shell expr $(PROCESSORS) + 1)
ROOT ?=
export PYTHON

.PHONY: help demo test lint types bench chaos crash-points fuzz models mutants proofs simulate soak-put spark-cluster spark-versions wheel clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

$(VENV)/.ready-run: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

$(VENV)/.ready-demo: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) demo,hdfs,messages,s3,spark
	@touch $@ $(VENV)/.ready-run

$(VENV)/.ready-dev: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) dev
	@touch $@ $(VENV)/.ready-run $(VENV)/.ready-demo

demo: $(VENV)/.ready-demo
	@$(RUN) -m chunkstore demo $(if $(ROOT),"$(ROOT)")
	@echo; echo "A bucket that a Pulsar broker filled, read without the broker (examples/pulsar/bucket.py):"
	@PYTHONPATH=.:bindings:journal $(RUN) examples/pulsar/bucket.py tests/fixtures/pulsar-broker/indexed/objects

test: lint
	@# Beside the check of types, the tests are compiled: else each worker does that for all of them, at the same time.
	@env -u PYTHONDONTWRITEBYTECODE $(RUN) -m pytest -q --collect-only > /dev/null 2>&1 & \
		echo "$(RUN) -m mypy"; $(RUN) -m mypy; typed=$$?; wait; exit $$typed
	@scripts/servers.sh
	@$(RUN) -m tests.support.servers.hdfs_jars
	@# Without bytecode every worker, and every process that a test starts, would compile everything anew.
	env -u PYTHONDONTWRITEBYTECODE $(RUN) -m pytest -q -n $(TEST_JOBS) --dist worksteal -m "not proof" --durations 10
	@echo "the rest of the tests: make proofs"

proofs: $(VENV)/.ready-dev
	@scripts/servers.sh
	@$(RUN) -m tests.support.servers.hdfs_jars
	@$(RUN) -m tests.support.servers.pulsar
	@$(RUN) -m tests.support.servers.kafka
	env -u PYTHONDONTWRITEBYTECODE $(RUN) -m pytest -q -n $(TEST_JOBS) --dist worksteal -m proof

lint: $(VENV)/.ready-dev
	$(RUN) -m ruff check .

types: $(VENV)/.ready-dev
	$(RUN) -m mypy

# Ratios to bare system calls, and memory; not part of the tests, because they need a quiet machine.
bench: $(VENV)/.ready-dev
	@scripts/servers.sh
	$(RUN) -m benchmarks

# 10^6 inputs for every decoder. FUZZ="--inputs 10000000 --seed 7" for more.
fuzz: $(VENV)/.ready-dev
	$(RUN) -m tests.fuzz $(FUZZ)

# An hour. TEST_JOBS says how many processes.
crash-points: $(VENV)/.ready-dev
	CHUNKSTORE_FAULTS=full $(RUN) -m pytest -q -n $(TEST_JOBS) --timeout 0 -m "proof or not proof" tests/faults/test_crash_points.py

# Added up in benchmarks/results/simulate.json. SIMULATE="--seconds 60 --claims 8" for another campaign.
SIMULATE ?= --seconds 600
simulate: $(VENV)/.ready-dev
	PYTHONPATH=.:bindings:journal $(RUN) -m tests.simulator --jobs $(JOBS) --save benchmarks/results/simulate.json $(SIMULATE)

# Saved in benchmarks/results/mutants.json.
mutants: $(VENV)/.ready-dev
	PYTHONPATH=.:bindings:journal $(RUN) -m tests.simulator.hunt --jobs $(JOBS) --save benchmarks/results/mutants.json $(MUTANTS)

# Some minutes, and a few GiB of memory.
models: $(VENV)/.ready-dev
	$(RUN) -m tests.models

# 1 GiB, twenty kills of the writer at random moments, each followed by put --resume.
soak-put: $(VENV)/.ready-dev
	CHUNKSTORE_SOAK_PUT=1 $(RUN) -m pytest -q -s tests/cli/test_put_killed.py

# Real processes, SIGKILL, SIGSTOP, full disks (as root); exits 1 and keeps the evidence if anything acknowledged is lost.
chaos: $(VENV)/.ready-dev
	PYTHONPATH=.:bindings:journal $(RUN) -m tests.chaos --seconds 1800 --json benchmarks/results/chaos.json

# A master, workers and an application are five JVMs: 4 GiB of memory, some minutes.
spark-cluster: $(VENV)/.ready-dev
	@scripts/servers.sh
	@$(RUN) -m tests.support.servers.hdfs_jars
	env -u PYTHONDONTWRITEBYTECODE $(RUN) -m pytest -q --timeout 600 tests/spark/stage_cluster.py tests/spark/stage_connect.py tests/spark/stage_pipelines.py

# Downloads half a gigabyte for each version, once, into build/. SPARK_VERSIONS="--versions 4.1 --fresh tests/spark/test_guide.py" for less.
spark-versions: $(VENV)/.ready-dev
	$(RUN) -m tests.support.spark_versions $(SPARK_VERSIONS)

wheel: $(VENV)/.ready-dev
	$(RUN) -m hatchling build -t wheel
	@ls -l dist

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
