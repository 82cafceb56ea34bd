# Every target that needs the environment makes it (tools/setup); "make" alone is help.
# PYTHON=/path/to/python3.12 chooses the interpreter; ARGS="..." is passed on.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules

PY := .venv/bin/python
READY := .venv/.ready
export PYTHON

# From the fastest to the slowest: a failure shows as early as it can.
LAYERS := pure bugs postgres spark node faults

# Tests run beside each other: most of a node's test is waiting, and Spark plans on one core.
# Each process has servers, a node and a Spark session of its own.
WORKERS ?= 2
LAYERED = $(PY) tools/layers.py --workers $(WORKERS) $(LAYERS) --

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format docs bench screenshots dist clean

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
	    sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(READY): requirements.lock pyproject.toml tools/setup
	@tools/setup

setup: $(READY) ## make .venv and fetch Spark's jars (all others do it when needed)

demo: $(READY) ## replicate a live PostgreSQL into Delta tables, kill -9 included
	@.venv/bin/wal2lake demo $(ARGS)

test: lint docs ## lint, docs, then all tests but the slow ones, fast layers first
	@$(LAYERED) -m "not slow" $(ARGS)

test-all: lint docs ## lint, docs, then all tests
	@WAL2LAKE_ALL_EXAMPLES=1 $(LAYERED) $(ARGS)

lint: $(READY) ## ruff, mypy --strict, the import contracts and the house rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-logo
	@$(PY) tools/house.py

format: $(READY) ## rewrite the sources as lint wants them
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format --quiet .

docs: $(READY) ## build the documents as a site in build/site; a dead link fails
	@$(PY) tools/reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --clean

bench: $(READY) ## measure; ratios to a native subscriber in the same run
	@$(PY) -m benchmarks $(ARGS)

screenshots: $(READY) ## make the pictures of the page in docs/images, with a real Chromium
	@$(PY) -m tools.screenshots $(ARGS)

dist: $(READY) ## build sdist and wheel, and prove the wheel in an environment without a checkout
	@$(PY) tools/dist.py

clean: ## remove everything that make has made, .venv too
	rm -rf .venv build dist src/*.egg-info spark-warehouse metastore_db derby.log \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} +
