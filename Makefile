# Two commands matter: `make demo` and `make test`. Both need nothing but make and Python 3.11, 3.12 or 3.13.
PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3; do \
	  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3,11) <= sys.version_info[:2] <= (3,13))' 2>/dev/null \
	  && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-slow backends lint types docs bench clean

demo: $(VENV)/.base
	$(BIN)/boardtune demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --cov --cov-report=term -m "not slow" $(PYTEST_ARGS)

# What takes longer than a person waits for: chaos, whole searches in processes of their own, vendors' backends, QEMU.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest --cov --cov-append --cov-report=term -m slow $(PYTEST_ARGS)

# Environments of vendors' quantizers, for the slow tests; those that are there already are left.
backends: $(VENV)/.dev
	@for name in esp_ppq quark; do \
	  $(BIN)/boardtune backends check $$name 2>/dev/null || $(BIN)/boardtune backends install $$name || exit 1; done

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/docs

bench: $(VENV)/.dev
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "boardtune needs Python 3.11, 3.12 or 3.13 on PATH (or make PYTHON=/path/to/python)"; exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian or Ubuntu, apt install python3-venv"; exit 2; }

# Stamps, so that a second run starts at once and a change of the dependencies installs again.
$(VENV)/.base: $(VENV)/bin/python pyproject.toml
	@echo "installing boardtune and what it needs into $(VENV): a minute or two"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	@echo "installing boardtune and what its development needs into $(VENV): a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
