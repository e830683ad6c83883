# Everything that people and the CI machine run. `make` alone lists it.
#
# Each kind of set-up leaves a stamp in the environment, so that a second call installs nothing unless pyproject.toml or
# constraints.txt has changed since.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
# The one version that is chosen by hand; `make constraints` takes the newest of everything else.
TORCH ?= 2.13.0

VENV := .venv
BIN := $(VENV)/bin
# Twice quiet leaves out pip's remarks on package sources; errors are shown.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --constraint constraints.txt --build-constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install dev demo test structure lint format types docs constraints clean

help:
	@echo "make demo         install Edgewise into $(VENV) and run examples/demo.py"
	@echo "make test         install what the tests need and run them; PYTEST_ARGS='-k name' chooses some"
	@echo "make lint         ruff: rules and format"
	@echo "make types        pyright, strict, on src"
	@echo "make structure    the layering and the other rules of the house alone"
	@echo "make docs         build the documentation into site/; any warning is an error"
	@echo "make format       let ruff rewrite the files"
	@echo "make dev          set up everything for work on Edgewise, hooks included"
	@echo "make constraints  write constraints.txt anew from the newest releases and torch $(TORCH)"
	@echo "make clean        remove the environment and everything that was made"
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 or newer)"

install: $(VENV)/.package

demo: $(VENV)/.package
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)

structure: $(VENV)/.dev
	@$(BIN)/python -m pytest -q tests/test_structure.py

lint: $(VENV)/.dev
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@echo "ruff: rules and format are kept"

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

types: $(VENV)/.dev
	@$(BIN)/pyright

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "documentation: site/index.html"

dev: $(VENV)/.dev $(VENV)/.docs
	@$(BIN)/pre-commit install

# An environment that is there already is kept: `make clean` removes it.
$(VENV)/.made:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "there is no $(PYTHON); Edgewise needs Python 3.11 or newer: make PYTHON=... names it" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Edgewise needs Python 3.11 or newer; $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1 || true). Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making an environment in $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) -m venv failed; on Debian and Ubuntu, install the package python3-venv first" >&2; \
	  rm -rf $(VENV); exit 1; }
	@touch $@

# The pip that comes with Python 3.11 knows no dependency groups.
$(VENV)/.pip: $(VENV)/.made constraints.txt
	@$(BIN)/python -m pip --disable-pip-version-check -qq install --upgrade --constraint constraints.txt pip
	@touch $@

$(VENV)/.package: $(VENV)/.pip $(INPUTS)
	@echo "installing Edgewise and its seven dependencies; torch is a large download the first time"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	@echo "installing the tools for tests, lint and types"
	@$(INSTALL) --group dev
	@touch $@

$(VENV)/.docs: $(VENV)/.package
	@echo "installing the tools for the documentation"
	@$(INSTALL) --group docs
	@touch $@

constraints:
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/python -m pip -qq install --upgrade pip
	@build/constraints/bin/python -m pip -qq install torch==$(TORCH)
	@build/constraints/bin/python -m pip -qq install --editable . --group dev --group docs hatchling editables
	@{ sed '/^[^#]/,$$d' constraints.txt; \
	   build/constraints/bin/python -m pip freeze --all --exclude-editable --exclude setuptools --exclude wheel \
	     | sed 's/+[a-z0-9.]*$$//'; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints
	@echo "wrote constraints.txt; run make test before it is committed"

clean:
	@rm -rf $(VENV) build dist site demo-output .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "removed the environment and everything that was made"
