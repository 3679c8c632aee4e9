# Two commands are enough on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTBED := PYTHONPATH=tests/testbed $(BIN)/python -m durable_testbed

.PHONY: help demo test check unit cluster cluster-down generate clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

demo: $(VENV)/.ready ## Run the example while everything is killed once; compare with an uninterrupted run
	@$(BIN)/durable run --chaos examples/fix-bug/

check: $(VENV)/.ready ## Style, types, import arrows, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check

test: check ## Everything, on a real Kubernetes (built once per machine)
	bash tests/testbed/install-packages.sh
	$(BIN)/python -m pytest --durations=15

unit: $(VENV)/.ready ## What needs no cluster: seconds
	$(BIN)/python -m pytest tests/unit tests/harness tests/space tests/adapter tests/driver tests/local

cluster: $(VENV)/.ready ## Start the two-node test cluster; prints its KUBECONFIG
	$(TESTBED) up --images

cluster-down: $(VENV)/.ready ## End it
	$(TESTBED) down

generate: $(VENV)/.ready ## Generate proto/durable_protocol and docs/reference-manifest.md from their sources
	$(BIN)/python proto/generate.py
	$(BIN)/python docs/generate.py

clean: ## Remove the environment and caches; sessions in .durable stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
