# Works with Python 3.11 or newer and make alone: `make demo`, `make test`. Everything is installed into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Tests that are about the update, the replay and runs; on a GPU machine without the extras the others could only be skipped.
GPU_TESTS := tests/algo tests/data tests/measure tests/run tests/store tests/actors

.PHONY: help setup demo test test-system test-all test-gpu check lint clean

help:
	@echo "make demo      train Pendulum-v1 (half a minute once installed) and show the results"
	@echo "make test      all checks and quick tests"
	@echo "make test-system  tests with whole programs: Ray, browsers, simulators, servers"
	@echo "make test-all  both, and the slow tests"
	@echo "make test-gpu  quick tests on a GPU machine, which needs no network: installs nothing, uses the packages of PYTHON"
	@echo "               (torch, gymnasium, pytest, ...) and of the folder SITE: make test-gpu PYTHON=python3 SITE=folder"
	@echo "make check     format, lint, types, import layers, and the tests of the algorithm"
	@echo "make setup     install into $(VENV), nothing else"
	@echo "make clean     remove $(VENV) and caches"

setup: $(VENV)/.installed

demo: $(VENV)/.installed
	$(VENV)/bin/t3d train Pendulum-v1 --preset quick

test: lint
	$(VENV)/bin/pytest -n 2 --dist loadscope -m "not slow and not system"

test-system: $(VENV)/.installed-dev
	$(VENV)/bin/pytest -n 2 --dist loadscope -m "system and not slow"

test-all: test test-system
	$(VENV)/bin/pytest -m "slow or hypothesis" --hypothesis-profile thorough

test-gpu:
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/tests$(if $(SITE),:$(abspath $(SITE)))" \
		$(PYTHON) -m pytest -n 12 -m "not slow and not system" $(PYTEST_FLAGS) $(GPU_TESTS)

check: lint
	$(VENV)/bin/pytest -q tests/algo/test_td3.py tests/data/test_replay.py tests/test_config.py tests/test_docs.py

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff format --check --quiet src tests scripts experiments examples
	$(VENV)/bin/ruff check --quiet src tests scripts experiments examples
	$(VENV)/bin/mypy --num-workers 2
	$(VENV)/bin/lint-imports --no-logo

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or newer, or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Creating the virtual environment $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing T3D and its dependencies into $(VENV) (a few minutes the first time)"
	@$(PIP) --editable .
	@touch $@
	@echo "Installed. To use t3d in this shell: . $(VENV)/bin/activate"

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing T3D and its development dependencies into $(VENV) (a few minutes the first time)"
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $@
