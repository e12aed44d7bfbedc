# make run: a broker on 127.0.0.1:9092 with its data in ./data. make test: the whole suite. Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LISTEN ?= 127.0.0.1:9092
DATA ?= data
# The broker's environment, and what the tests add to it: each is made again when its requirements change.
RUN_STAMP := $(VENV)/.run-installed
DEV_STAMP := $(VENV)/.dev-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# $(call check_python,PROGRAM,TARGETS): fails unless the program is new enough, and says what to type.
check_python = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Diamant needs CPython 3.11 or newer; $(1) is $$($(1) --version 2>&1 | sed 's/^Python //'). make $(2) PYTHON=python3.11" >&2; exit 1; }
GOALS := $(or $(filter-out clean,$(MAKECMDGOALS)),run)
# Byte code of the tests and of the processes they start is kept, whatever the shell says: without it they take half as long again.
unexport PYTHONDONTWRITEBYTECODE
# The files to look at; the top-level links into the package are not among them.
SOURCES := diamant tests $(wildcard bench examples)

.PHONY: run test quick check format bench docs clean help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUN_STAMP) ## start a broker (LISTEN=127.0.0.1:9092 DATA=data)
	$(BIN)/diamant start --listen $(LISTEN) --data $(DATA)

test: $(DEV_STAMP) ## the whole suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(DEV_STAMP) ## the part of the suite to run before every commit
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

check: $(DEV_STAMP) ## format, lint, types, layers
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_STAMP) ## put the sources into shape
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(DEV_STAMP) ## measure (bench/README.md says what)
	$(BIN)/python bench/run.py

docs: $(DEV_STAMP) ## write docs/configuration.md and docs/metrics.md from the tables
	$(BIN)/python -m diamant.broker.config_docs docs/configuration.md
	$(BIN)/python -m diamant.broker.metrics_docs docs/metrics.md

clean: ## remove what was made; data stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find diamant tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found. make $(GOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(call check_python,$(PYTHON),$(GOALS))
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements.txt pyproject.toml | $(VENV)/bin/python
	@$(call check_python,$(BIN)/python,clean $(GOALS))
	@echo "installing into $(VENV), about a minute the first time"
	$(PIP) -r requirements.txt
	$(PIP) --no-deps --config-settings editable_mode=compat --editable .
	@touch $@

$(DEV_STAMP): requirements-dev.txt $(RUN_STAMP)
	$(PIP) -r requirements-dev.txt
	@touch $@
