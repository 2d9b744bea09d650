# Every target works right after the clone: it makes the environment in .venv first. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# CuPy (100 MB) is of use only where there is an NVIDIA GPU.
EXTRAS ?= cutile,cuda,thunder,notebooks,dev$(if $(wildcard /dev/nvidiactl /dev/dxg),$(comma)cupy)
comma := ,
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: help env run test lab lint format notebooks gpu-test bench stamp clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## make .venv with everything the lessons and tests need

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "tilekit needs Python 3.10 or newer, and $(PYTHON) is older (or missing). Try: make env PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { \
	  echo "$(PYTHON) comes without venv. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@# Without a working pip, an earlier attempt was stopped half-way; venv completes it.
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

run: env ## execute the lessons on what this machine has (one: make run ONLY=03)
	@$(BIN)/python notebooks/tools/run.py $(ONLY)

test: env ## run all tests, the lessons included
	@$(BIN)/python tests/run.py

lab: env ## open the lessons in JupyterLab
	$(BIN)/jupyter lab notebooks

lint: env ## check the form of code and lessons
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python notebooks/tools/canonical.py --check

format: env ## give code and notebooks their form
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
	$(BIN)/python notebooks/tools/canonical.py

notebooks: env ## execute the lessons and keep the outputs that may be kept
	$(BIN)/python notebooks/tools/canonical.py --execute $(ONLY)

gpu-test: env ## run the tests that need an NVIDIA GPU
	$(BIN)/python tests/run.py gpu

bench: env ## time the kernels; without a GPU, show recorded figures
	$(BIN)/python -m tilekit bench

stamp: env ## write the repository's owner everywhere: make stamp OWNER=name
	$(BIN)/python notebooks/tools/stamp.py $(OWNER)

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
