# Two commands are enough on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The tests of a file stay together: what they share is made once.
WORKERS := -n auto --maxprocesses 4 --dist loadfile
TESTBED := PYTHONPATH=tests/testbed $(BIN)/python -m durable_testbed

# Of `make images`: where the images will be pushed, and what builds them (docker, podman, buildah).
REGISTRY ?= localhost/durable
TAG ?= dev
DOCKER ?= docker

.PHONY: help demo test check unit images cluster cluster-shell cluster-down generate clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about $$(grep -c == constraints.txt) packages, a minute or two the first time ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	@set -o pipefail; $(BIN)/python -m pip install --progress-bar off -c constraints.txt -e '.[test]' | awk '\
	  /^Collecting / {print "  " $$2; fflush()} /^Installing collected/ {print "  writing them ..."; fflush()}'
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
	@if $(TESTBED) requirements; then $(TESTBED) build-binaries >/dev/null && $(TESTBED) build-images >/dev/null; fi
	$(BIN)/python -m pytest $(WORKERS) --durations=15

unit: $(VENV)/.ready ## What needs no cluster: some minutes
	$(BIN)/python -m pytest $(WORKERS) tests/unit tests/harness tests/space tests/adapter tests/driver tests/local

images: $(VENV)/.ready ## Build the three images: REGISTRY=registry.example/team TAG=0.1.0 DOCKER=podman
	@$(TESTBED) wheels build/images
	@for name in operator driver space; do \
	  $(DOCKER) build --file images/$$name/Containerfile --tag $(REGISTRY)/$$name:$(TAG) $(BUILD_OPTIONS) build/images || exit 1; \
	done
	@echo "push them:  for name in operator driver space; do $(DOCKER) push $(REGISTRY)/\$$name:$(TAG); done"

cluster: $(VENV)/.ready ## Start the two-node test cluster, the images loaded; prints how to install the chart
	@$(TESTBED) up --images

cluster-shell: $(VENV)/.ready ## A shell in its network, with kubectl, helm and kubectl-durable
	@$(TESTBED) exec

cluster-down: $(VENV)/.ready ## End it
	$(TESTBED) down

generate: $(VENV)/.ready ## Generate proto/durable_protocol and docs/reference-manifest.md from their sources
	$(BIN)/python proto/generate.py
	$(BIN)/python docs/generate.py

clean: ## Remove the environment and caches; sessions in .durable stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
