# `make demo` and `make test` set everything up by themselves in .venv, from package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := flower,ray,prox,tensorboard,mlflow,parquet,docs,test,check

.PHONY: setup demo test check format docs browser clean

setup: $(STAMP)

# The base install is enough for the demo; everything else comes with the test stamp.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/fedadmm compare quickstart

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs: $(STAMP)
	$(BIN)/mkdocs serve

# The report's tests open it in a real browser; without one they are skipped, and say so.
browser:
	command -v chromium || { apt-get update -q && apt-get install -y -q chromium; }

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
