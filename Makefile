# Every target makes its own .venv; a second call starts in seconds. Plain `make` prints this.
#
#   make demo    AdamW and ADana side by side on real text, in minutes on two CPU cores
#   make test    the fast tests; make test-all: the slow ones, too
#   make lint    ruff and pyright
#   make test-machines   the tests that compute, with the kernels of other processors
#   make bench   the benchmarks; results in bench/results
#   make dist    wheel and sdist in dist/, checked, and the wheel tried beside torch alone
#   make gpu-check   correctness and speed on a GPU, in eight minutes; installs nothing
#   make docs    the site, in build/docs
#   make vendor   the chat page's libraries from npm again, or another version: make vendor VERSIONS=temml=0.13.5
#   make docs-check   every command and code block of README and docs, in about 15 minutes on two idle cores

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test test-all test-machines lint bench dist gpu-check docs docs-check vendor clean

help:
	@sed -n '/^[^#]/q; /^#/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.core
	$(BIN)/danalab demo

# Hundreds of processes import the package: compiled files are kept, also where the environment (a container) says no.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4

test: $(VENV)/.dev
	$(PYTEST)

test-all: $(VENV)/.dev
	$(PYTEST) -m "not gpu"

test-machines: $(VENV)/.dev
	scripts/test_machines.sh

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.dev
	@for verb in optim train data generate checkpoint; do \
		echo "== danalab bench $$verb"; $(BIN)/danalab bench $$verb --output bench/results || exit 1; done
	$(BIN)/python bench/theory.py

dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python scripts/check_wheel.py dist/danalab-*.whl

gpu-check:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) bench/gpu_check.py

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

vendor:
	$(PYTHON) scripts/vendor_page.py $(VERSIONS)

docs-check: $(VENV)/.dev
	$(BIN)/python docs/check.py

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis build dist docs/reference
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "danalab needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no .venv was made; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	$(PIP) --upgrade pip

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (some minutes the first time)"
	$(PIP) torch
	$(PIP) --editable '.[lab]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.dist: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) --editable '.[dist]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs]'
	@touch $@
