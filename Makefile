# Every target creates the environment .venv if needed; requires make and Python 3.11 or newer. Options, for example:
#   make test PYTHON=python3.12 VENV=/tmp/venv
#   make test PYTEST_FLAGS="-n 2 -k relax"
#   make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"    (CPU build of torch, much smaller)
PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
PIP_FLAGS ?=
PYTEST_FLAGS ?= -n auto --maxprocesses 4
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: demo docs pictures links test test-slow lint format graph walk wheel clean

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

# Pages in docs/_build/html, without the network; a warning is an error.
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Pictures of the documentation, with the present weights of the default model; needs chromium for one of them.
pictures: $(STAMP)
	$(BIN)/python scripts/docs_pictures.py

# Links of the documentation to other sites; needs the network.
links: $(STAMP)
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

# Import graph of the package by folder.
graph: $(STAMP)
	$(BIN)/python scripts/import_graph.py

# Functions that run during atoms.get_potential_energy(), in call order.
walk: $(STAMP)
	$(BIN)/python scripts/walk.py

# A leftover build/ folder would put deleted files into the wheel.
wheel: $(STAMP)
	rm -rf build
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --quiet -c constraints.txt --no-deps --wheel-dir $(DIST) .

clean:
	rm -rf $(VENV) $(DIST) build *.egg-info docs/_build docs/_generated

# The stamp file makes the installation run once, and again when its requirements or C sources change.
$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt $(wildcard faenet_calc/network/native/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "faenet-calc needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the packages of constraints.txt into $(VENV) (once; several minutes, depending on the network)"
	$(BIN)/python -m pip install $(PIP_FLAGS) --quiet -c constraints.txt -e ".[dev]"
	touch $@
