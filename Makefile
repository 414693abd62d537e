# Works with Python 3.11 or newer and make alone: `make demo`, `make test`. Everything is installed into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help setup demo test test-all check clean

help:
	@echo "make demo      train Pendulum-v1 (about a minute) and show what was learned"
	@echo "make test      all quick tests and checks"
	@echo "make test-all  the long trials too"
	@echo "make check     format, lint, types and import layers"
	@echo "make setup     only install, into $(VENV)"
	@echo "make clean     remove $(VENV) and caches"

setup: $(VENV)/.installed

demo: $(VENV)/.installed
	$(VENV)/bin/t3d train Pendulum-v1 --preset quick

test: $(VENV)/.installed-dev check
	$(VENV)/bin/pytest -n 2 -m "not slow"

test-all: $(VENV)/.installed-dev check
	$(VENV)/bin/pytest -n 2 -m "not slow"
	$(VENV)/bin/pytest -m slow

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff format --check --quiet src tests experiments
	$(VENV)/bin/ruff check --quiet src tests experiments
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or newer, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Making the virtual environment $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing T3D and what it needs into $(VENV) (a few minutes the first time)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing what the tests use into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@touch $@
