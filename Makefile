# One virtual environment in .venv, filled from requirements.lock.
# `make` or `make help` lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Tests start Python hundreds of times; what each imports is compiled once.
unexport PYTHONDONTWRITEBYTECODE

# The first Python on the PATH that is new enough; `make PYTHON=...` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
NETWORKS_STAMP := $(VENV)/.installed-networks

.PHONY: help demo test test-long test-avx2 test-slow test-drawn test-extras test-notebooks notebooks pictures lint types bench \
	bench-networks bench-parts real-models drills fuzz lock clean venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## map, search, compile, check and time one ResNet-18 layer
	@$(BIN)/amos explore resnet18:C5 --dtype u8s8 --trials 64 --seed 0

# Processes that run the tests of different files side by side: one more than two cores, as
# tests wait for processes of their own.
JOBS ?= 3
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile
# Tests of one file are shared out too, where each takes long.
PYTEST_SHARED := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test: $(STAMP) ## run the tests, without the long and the slow ones; JOBS=3 at a time
	@$(PYTEST) -m "not slow and not long"

test-long: $(STAMP) ## run the tests that take more than two seconds each
	@$(PYTEST_SHARED) -m "long and not slow"

SLOW ?= slow

# What the system lists beyond AVX2 is overlooked, in every process of these tests.
test-avx2: export AMOS_CPU_LACKS := avx512 avx_vnni amx
test-avx2: $(STAMP) ## run the tests that look at CPU features as on a CPU with AVX2 only
	@$(PYTEST) -m "features and not slow"

test-slow: $(STAMP) ## run the slow tests only; SLOW="slow and not exhaustive" for a part
	@$(BIN)/python -m pytest -q -m "$(SLOW)" --timeout=1800

# Registers of random CUDA kernels, which take longest to compile, are left to test-slow.
test-drawn: $(STAMP) ## run the slow tests of kernels and exports, many of them drawn by chance
	@$(PYTEST_SHARED) -m "slow and not exhaustive" --timeout=1800 \
		--ignore=tests/cuda/codegen/test_registers.py tests/codegen tests/cuda tests/export tests/mapping tests/streams

EXTRAS ?=
test-extras: $(STAMP) ## install each extra in an environment of its own; EXTRAS="notebook or onnx" for some
	@AMOS_TEST_EXTRAS=1 $(BIN)/python -m pytest -q -m extras -k "$(EXTRAS)" --timeout=7200 tests/test_extras.py

test-notebooks: $(STAMP) ## run every notebook from top to bottom
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -n $(JOBS) --nbmake --nbmake-timeout=300 notebooks

notebooks: $(STAMP) ## run every notebook and keep its outputs
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python notebooks/refresh.py

pictures: $(STAMP) ## draw the pictures of the README anew; needs a browser
	@$(BIN)/python docs/pictures.py

lint: $(STAMP) ## check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## check types
	@$(BIN)/mypy

# Everything takes most of a day on two cores; it goes on where it was interrupted.
# BENCH=quick takes minutes, BENCH=short half an hour.
bench: $(BENCH_STAMP) ## compare with oneDNN and MetaSchedule; BENCH=quick or short for less
	@$(BIN)/python benchmarks/bench_cpu.py $(if $(BENCH),--$(BENCH))

bench-networks: $(NETWORKS_STAMP) ## compare whole networks with onnxruntime, OpenVINO, PyTorch; NETWORKS=all BATCHES=1,16
	@$(BIN)/python benchmarks/bench_networks.py $(if $(NETWORKS),--networks $(NETWORKS)) \
		$(if $(BATCHES),--batches $(BATCHES))

real-models: $(NETWORKS_STAMP) ## compare models that packages of PyPI ship; MODELS=rapidocr,magika for some
	@$(BIN)/python benchmarks/bench_real_models.py $(if $(MODELS),--models $(MODELS))

bench-parts: $(STAMP) ## time the parts of AMOS itself
	@for file in $(filter-out %_cpu.py %_networks.py %_real_models.py,$(wildcard benchmarks/bench_*.py)); do \
		echo "amos: $$file"; $(BIN)/python "$$file"; \
	done

drills: $(STAMP) ## kill, crash, fill and corrupt what a tuning run needs; writes drills.json
	@PYTHONPATH=. $(BIN)/python benchmarks/drills.py

MINUTES ?= 10
fuzz: $(STAMP) ## attack with random operators, kernels and inputs for MINUTES=10, new seeds each time
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

venv: $(STAMP) ## only create .venv and install into it

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "amos: Python 3.11 or newer is needed; found $$("$(or $(PYTHON),python3)" -V 2>/dev/null || echo none)." \
			"Name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "amos: this Python cannot create virtual environments;" \
			"on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "amos: creating $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@echo "amos: installing $$(grep -c == requirements.lock) packages from requirements.lock (the largest has 100 MB)"
	@$(PIP) install --requirement requirements.lock
	@echo "amos: installing this package"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@echo "amos: installing what the benchmarks compare with"
	@$(PIP) install --no-build-isolation --constraint requirements.lock --editable '.[bench]'
	@touch $@

$(NETWORKS_STAMP): $(STAMP)
	@echo "amos: installing what the networks are compared with"
	@$(PIP) install --no-build-isolation --constraint requirements.lock --editable '.[networks]'
	@touch $@

# One version for every Python from 3.11 on, wheels only, no address of any index.
lock: ## choose the newest versions that pyproject.toml allows
	@rm -rf build/lock && "$(PYTHON)" -m venv build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check --quiet install uv
	@build/lock/bin/uv pip compile pyproject.toml --extra test --quiet --upgrade \
		--universal --python-version 3.11 --fork-strategy fewest --only-binary :all: \
		--no-header --no-annotate --no-emit-package amos-mapper --output-file build/lock/versions.txt > /dev/null
	@{ echo "# What AMOS and its tests run with: exact versions for Python 3.11 and newer."; \
		echo "# Written by \`make lock\` from the ranges in pyproject.toml; do not edit."; \
		cat build/lock/versions.txt; } > requirements.lock
	@echo "amos: requirements.lock holds $$(grep -c == requirements.lock) packages"

clean: ## remove .venv and everything that was generated
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
