# Every target makes its own .venv; a second call starts in seconds.
#
#   make demo    AdamW and ADana side by side on real text, in minutes on two CPU cores
#   make test    lint, types and the fast tests; make test-all: the slow ones, too
#   make coverage   the tests again, and notes/coverage.md: the lines that they do not run
#   make bench   the benchmarks; results in bench/results
#   make dist    wheel and sdist in dist/, checked, and the wheel tried beside torch alone
#   make gpu-check   the tests and the benchmark of a GPU, in eight minutes; installs nothing
#   make docs    the site, in build/docs
#   make screenshots   README's pictures of the program, from real runs: 20 minutes; needs Chromium
#   make vendor   the chat page's libraries from npm again, or another version: make vendor VERSIONS=temml=0.13.5
#   make docs-check   every command and code block of README and docs, in about 15 minutes on two idle cores; goes on where it stopped

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all coverage lint bench dist gpu-check docs docs-check screenshots vendor clean

demo: $(VENV)/.core
	$(BIN)/danalab demo

# Hundreds of processes import the package: compiled files are kept, also where the environment (a container) says no.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m "not gpu"

COVERAGE := $(BIN)/python -m coverage
# Coverage writes a file in each process, and replaces os._exit, which these tests do not allow.
NOT_COVERED := tests/cli/test_flags.py::test_a_file_beyond_a_limit_is_named \
	tests/chat/test_programs.py::test_a_system_without_seccomp_or_landlock_says_so_in_one_line \
	tests/data/preparation/test_preparation.py::test_a_process_that_dies_is_one_line

coverage: $(VENV)/.dev
	mkdir -p build/coverage
	$(COVERAGE) erase
	$(COVERAGE) run -m pytest -n auto --maxprocesses 4 $(addprefix --deselect=,$(NOT_COVERED))
	$(COVERAGE) combine --quiet
	$(COVERAGE) json --quiet --include "src/*" -o build/coverage/report.json
	$(BIN)/python docs/build_coverage.py build/coverage/report.json
	$(BIN)/python docs/build_figures.py   # the badge says how many lines

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The verbs of `danalab bench`, and the scripts that measure without data or hours.
bench: $(VENV)/.dev
	@for verb in optim train generate checkpoint moe parallel resonance; do \
		echo "== danalab bench $$verb"; $(BIN)/danalab bench $$verb --output bench/results || exit 1; done
	@for script in data delta_rule muon theory validate; do \
		echo "== bench/$$script.py"; $(BIN)/python bench/$$script.py || exit 1; done

dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python scripts/check_wheel.py dist/danalab-*.whl

gpu-check:
	scripts/gpu_check.sh

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

screenshots: $(VENV)/.dev
	$(BIN)/python docs/build_screenshots.py

vendor:
	$(PYTHON) scripts/vendor_page.py $(VERSIONS)

docs-check: $(VENV)/.dev docs
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
