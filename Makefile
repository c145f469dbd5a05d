# Everything starts from a fresh clone: each target first makes .venv, which a second run reuses.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test fuzz test-browser test-peers test-ray test-integrations test-all docs check format bench report clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("sparsum needs Python 3.11 or newer; run make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./experiments
	touch $(READY)

demo: $(READY) ## The paper's three experiments on scikit-learn's digits: sparse sums beside dense sums and sampling
	$(BIN)/sparsum demo

docs: $(READY) ## The site, in docs/_build/html: any warning fails, tutorials are executed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]' --editable ./experiments
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

check: $(READY) ## Format, lint, types, import contracts and private names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.private_names sparsum experiments/sparsum_experiments tests examples benchmarks tools

test: check ## All checks, and all tests that need neither a browser nor Ray nor minutes each
	$(BIN)/python -m pytest --numprocesses=2 --quiet

fuzz: $(READY) ## Properties of everything public on 100,000 random cases, for half an hour; make fuzz SEED=1 CASES=1000 tries others
	$(BIN)/python -m tests.properties.fuzz --cases $(or $(CASES),100000) --seed $(or $(SEED),0)

test-browser: $(READY) ## The page of `sparsum report` in a browser: a chromium that is installed, or playwright's own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,browser]' --editable ./experiments
	$(BIN)/python -m pytest --quiet -rs -m browser tests/experiments/browser

test-peers: $(READY) ## The tests of the entmax package, run against ours
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt entmax
	$(BIN)/python -m tests.peers.entmax_suite

test-ray: $(READY) ## Sweeps on a cluster of Ray, with workers and nodes that are killed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable './experiments[ray]'
	$(BIN)/python -m pytest --quiet -rs -m ray tests/experiments/sweep

test-integrations: $(READY) ## Pyro, Lightning and accelerate
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,pyro]' pytorch-lightning accelerate
	$(BIN)/python -m pytest --quiet -rs -m integrations tests/integrations tests/documentation

test-all: test docs test-browser test-peers test-ray test-integrations demo ## All of it, the site, the page in a browser, tests of peers, sweeps on Ray, Lightning and accelerate, the demo, the wheels, and recorded runs made again
	$(BIN)/python -m pytest --quiet -rs -m slow

format: $(READY) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## Benchmarks against peers, on one CPU thread
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.simplex
	$(BIN)/python -m benchmarks.expect
	$(BIN)/python -m benchmarks.sparsemap
	$(BIN)/python -m benchmarks.estimators
	$(BIN)/python -m benchmarks.steps

report: $(READY) ## report.html, the page of the records in results/
	$(BIN)/sparsum report results --out report.html

clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
