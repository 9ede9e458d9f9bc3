PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint docs bench clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*##\(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

demo: $(STAMP)  ## install into .venv and play a short session
	$(BIN)/layerstep demo

test: lint  ## lint, types, layers and the test suite
	$(BIN)/python -m pytest

lint: $(STAMP)-test  ## lint, format, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)-docs  ## build the documentation into site/
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

bench: $(STAMP)-bench  ## measure against the bare model and other tools
	$(BIN)/python -m benchmarks

clean:  ## remove .venv, builds and caches
	rm -rf .venv dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	@touch $@

# test, docs and bench: the same with the extra of that name
$(STAMP)-%: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[$*]'
	@touch $@
