# Every target makes its own environment in .venv; nothing is needed but make and Python 3.11 or newer.
#   make demo PYTHON=python3.12
#   make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"    (CPU build of torch, far smaller)
PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
PIP_FLAGS ?=
PYTEST_FLAGS ?= -n auto --maxprocesses 4
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow lint format graph wheel clean

demo: $(STAMP)
	$(BIN)/python examples/relax_co_cu111.py

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_FLAGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Levels of the folders and who imports whom.
graph: $(STAMP)
	$(BIN)/python scripts/import_graph.py

# A build/ folder left behind would put files that no longer exist into the wheel.
wheel: $(STAMP)
	rm -rf build
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --quiet -c constraints.txt --no-deps --wheel-dir $(DIST) .

clean:
	rm -rf $(VENV) $(DIST) build *.egg-info

# The stamp makes the installation happen once, and again when its description changes.
$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "faenet-calc needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --quiet -c constraints.txt -e ".[dev]"
	touch $@
