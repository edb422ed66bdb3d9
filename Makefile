# `make` sets everything up in .venv; the other targets do that first when it is needed.

PYTHON ?= python3

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
HOURS ?= 8
SUITE := $(BIN)/python -m pytest -n 3 --dist worksteal

.DEFAULT_GOAL := setup
.PHONY: setup demo test test-quick lint format docs covered explore campaign soak mutants bench clean help

setup: $(READY)  ## build .venv
	@echo "Ready: $(BIN)/endwell"

demo: $(READY)  ## 200 tasks, workers killed while you watch
	@$(BIN)/endwell demo

test: lint  ## everything that must hold: lint, types, tests, requirement report
	@$(SUITE)

test-quick: $(READY)  ## a selection for the inner loop, about two minutes
	@$(BIN)/ruff check
	@$(SUITE) --quick

lint: $(READY)  ## ruff and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict

format: $(READY)  ## let ruff put the code in order
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(READY)  ## regenerate the pages that are made from the code
	@$(BIN)/python -m tests.machine.lifecycle > docs/lifecycle.md

covered: $(READY)  ## run the suite and write docs/covered.txt from it
	@$(SUITE) --write-covered

explore: $(READY)  ## walk millions of states of the task machine
	@$(BIN)/python -m tests.machine.walk.explore --states 3000000

campaign: $(READY)  ## everything that is tried, with figures to reach
	@$(BIN)/python -m tests.proof.campaign

soak: $(READY)  ## the same for HOURS=8, with ever new seeds; totals are kept in a file
	@$(BIN)/python -m tests.proof.campaign.soak --hours $(HOURS)

mutants: $(READY)  ## change machine/ and policy/ by machine; do their tests notice?
	@$(BIN)/python -m tests.proof.mutants

bench: $(READY)  ## measure speed on this machine
	@$(BIN)/endwell bench

clean:  ## remove .venv and what tools left behind
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

# The stamp is older than these files exactly when the environment may be out of date.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Endwell needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(make-venv); }
	@echo "Installing what Endwell and its tests need (once) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Some systems ship Python without a working venv module; virtualenv then comes from pip, into a
# directory of its own, because such systems also refuse installs into their own Python.
define make-venv
echo "Making $(VENV) ..."; \
$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
  rm -rf $(VENV); tools=$$(mktemp -d) && \
  $(PYTHON) -m pip install -qq --disable-pip-version-check --target "$$tools" virtualenv && \
  PYTHONPATH="$$tools" $(PYTHON) -m virtualenv --quiet $(VENV); status=$$?; \
  rm -rf "$$tools"; test $$status -eq 0; }
endef
