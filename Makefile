# Everything happens in .venv, which is made and filled when it is missing or when what it needs has changed.
# PYTHON picks the interpreter (3.11 or newer); PIP_FLAGS goes to pip, for a mirror or an index of CPU builds.

PYTHON ?= python3
PIP_FLAGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) -c constraints.txt
CHANGES := pyproject.toml constraints.txt

.PHONY: help demo test check format bench-transfer bench-results bench-broker bench-sim train clean

help:
	@echo "make demo    draw a handful of pictures on a private cluster: demo.png"
	@echo "make test    run the tests"
	@echo "make check   lint, types, layers"
	@echo "make format  let ruff format everything"
	@echo "make bench-transfer  measure what moving tensors costs: bench/results/transfer.json"
	@echo "make bench-results   measure what large results cost: bench/results/results.json"
	@echo "make bench-broker    measure what the broker costs, beside a forwarder: bench/results/broker.json"
	@echo "make bench-sim       measure what the machine costs as a cluster grows: bench/results/sim.json"
	@echo "make train   train the reference model again (hours)"
	@echo "make clean   remove what these commands made"

demo: .venv/serve.stamp
	$(BIN)/triptych demo --output demo.png

test: .venv/dev.stamp
	$(BIN)/pytest

check: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench-transfer: .venv/dev.stamp
	$(BIN)/python -m bench.transfer

bench-results: .venv/dev.stamp
	$(BIN)/python -m bench.results_out

bench-broker: .venv/dev.stamp
	$(BIN)/python -m bench.broker

bench-sim: .venv/dev.stamp
	$(BIN)/python -m bench.sim

train: .venv/dev.stamp
	PYTHON=$(BIN)/python sh training/train.sh

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; make PYTHON=python3.12 names one" >&2; exit 1; }
	@$(PYTHON) -m venv .venv \
		|| { rm -rf .venv; echo "error: venv is missing; try: sudo apt-get install python3-venv" >&2; exit 1; }

.venv/serve.stamp: $(CHANGES) | $(BIN)/python
	@echo "installing what the demo needs into .venv (the first time takes some minutes) …"
	@$(PIP) -e '.[serve]'
	@touch $@

.venv/dev.stamp: $(CHANGES) | $(BIN)/python
	@echo "installing what development needs into .venv (the first time takes some minutes) …"
	@$(PIP) -e '.[dev]'
	@mkdir -p .venv/checkout && ln -sfn ../.. .venv/checkout/triptych
	@touch $@ .venv/serve.stamp
