# `make demo` and `make test` set everything up by themselves in .venv, from package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := flower,ray,prox,tensorboard,mlflow,wandb,onnx,tune,privacy,hugging-face,lightning,docs,test,check

.PHONY: setup demo figure test test-all coverage check format docs docs-data browser faults fuzz dst mutants bench bench-peers clean

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
	@echo "A tenth of the clients in a round:"
	$(BIN)/fedadmm compare quickstart
	@echo
	@echo "All clients in every round:"
	$(BIN)/fedadmm compare quickstart-full
	@echo
	@echo "Open the reports in a browser.  Then try:"
	@echo "  $(BIN)/fedadmm compare recommended          the methods to start from, and their evidence"
	@echo "  $(BIN)/fedadmm algorithms fedadmm           what a method does, keeps and sends"
	@echo "  $(BIN)/fedadmm run --csv YOURS.csv --target COLUMN --client COLUMN"

# The figures of the README and the docs: some seconds, from committed results and small programs.
figure: $(VENV)/.demo
	$(BIN)/python docs/_figures/around_the_global_model.py docs/clients.svg docs/starts.svg
	PYTHONPATH=tests $(BIN)/python docs/_figures/implementations.py docs/implementations.svg docs/implementations.csv
	$(BIN)/python -m studies.participation_rate --figure docs/participation-rate.svg

# What every change must pass: at most ten minutes on two idle cores.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not release"

# Everything, before a release: also long simulations, every example, notebook and recipe.
test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Which lines no test reaches; a page for each file in htmlcov.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/typing
	$(BIN)/lint-imports

# The tables of the pages, from committed results.
docs-data: $(STAMP)
	$(BIN)/python docs/_data/tables.py
	$(BIN)/python -m studies.papers page

docs: $(STAMP)
	$(BIN)/mkdocs serve

# The report's tests open it in a real browser; without one they are skipped, and say so.
browser:
	command -v chromium || { apt-get update -q && apt-get install -y -q chromium; }

# Every fault of docs/deployment-tests.md, injected into real processes: about half an hour.
faults: $(STAMP)
	FEDADMM_FAULTS=1 $(BIN)/python -m pytest tests/flower/test_real_matrix.py tests/flower/test_real.py \
		tests/flower/test_project.py tests/flower/test_flower_app.py tests/flower/test_own_parts.py \
		-v -rA --durations 0

# A million changed inputs for every parser of bytes, files and configurations: ten minutes of a core.
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run.py --inputs 1000000

# The whole deployed system as one program that a seed decides: an hour of seeds.
dst: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulation_testing --minutes 60 --workers 2

# Lines made wrong on purpose, each of which a test must notice: some minutes.
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/run.py

# Rounds a second beside other frameworks, into docs/benchmarks.md: some 20 minutes on two idle cores.
REPEATS ?= 3
bench: $(STAMP)
	$(BIN)/python -m benchmarks --repeats $(REPEATS) --out benchmarks/results.json
	$(BIN)/python -m benchmarks.page benchmarks/results.json docs/benchmarks.md

# The other frameworks, in an environment of their own: their pins are not ours.
bench-peers: $(STAMP)
	$(PYTHON) -m venv .cache/bench-peers
	.cache/bench-peers/bin/pip install --quiet "torch==2.13.0" "pfl[pytorch]==0.6.0" "flwr[simulation]==1.41.0" "jax[cpu]==0.10.2"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
