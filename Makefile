# Everything starts from a fresh clone: each target first makes .venv, which a second run reuses.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: help demo report format check test coverage fuzz mutants chaos compat audit test-browser test-peers test-ray test-integrations test-all docs dist bench clean

help: ## Show the targets
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("sparsum needs Python 3.11 or newer; run make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[dev]' --editable ./experiments
	touch $(READY)

##@ Try it

demo: $(READY) ## The paper's three experiments on scikit-learn's digits: sparse sums, dense sums and sampling
	$(BIN)/sparsum demo

report: $(READY) ## report.html, the page of the records in results/
	$(BIN)/sparsum report results --out report.html

##@ Change it

format: $(READY) ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(READY) ## Format, lint, types, import contracts and private names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.private_names sparsum experiments/sparsum_experiments tests examples benchmarks tools

test: check ## All checks, then every test that needs no other packages and no minutes: what CI runs
	$(BIN)/python -m pytest --numprocesses=2 --quiet

##@ Test more of it; each target installs what it needs

coverage: $(READY) ## Which lines and branches of the library the tests reach
	$(BIN)/python -m pytest --numprocesses=2 --quiet --cov --cov-report=term-missing:skip-covered

fuzz: $(READY) ## Properties of everything public on 100,000 drawn cases, in half an hour; SEED=1 CASES=1000 tries others
	$(BIN)/python -m tests.properties.fuzz --cases $(or $(CASES),100000) --seed $(or $(SEED),0)

mutants: $(READY) ## Small changes of sparsum/simplex and sparsum/solvers that tests should notice, for 20 minutes of one core
	$(INSTALL) cosmic-ray
	$(BIN)/python -m tools.mutants

test-browser: $(READY) ## The page of `sparsum report` in a browser: a chromium that is installed, or playwright's own
	$(INSTALL) --editable '.[dev,browser]' --editable ./experiments
	$(BIN)/python -m pytest --quiet -rs -m browser tests/experiments/browser

test-peers: $(READY) ## The tests of the entmax package, run against ours
	$(INSTALL) entmax
	$(BIN)/python -m tests.peers.entmax_suite

test-ray: $(READY) ## Sweeps on a cluster of Ray, with workers and nodes that are killed
	$(INSTALL) --editable '.[dev]' --editable './experiments[ray]'
	$(BIN)/python -m pytest --quiet -rs -m ray tests/experiments/sweep

test-integrations: $(READY) ## Pyro, Lightning, accelerate and torch.compile, and the pages about other packages
	$(INSTALL) --editable '.[dev,pyro]' \
		pytorch-lightning accelerate entmax torch-struct vector-quantize-pytorch
	$(BIN)/python -m pytest --quiet -rs -m integrations tests/integrations tests/documentation

test-all: test docs dist test-browser test-peers test-ray test-integrations demo ## All but fuzz, mutants, chaos, compat, audit and coverage: test, docs, dist, demo, the targets above, and tests that take minutes
	$(BIN)/python -m pytest --quiet -rs -m slow

chaos: $(READY) ## Training, evaluation, sweeps, records and reports, killed 200 times and resumed; SEED=1 for other moments
	$(BIN)/python -m tools.chaos --kills 200 --seed $(or $(SEED),0)

compat: $(READY) ## Core tests with each Python and torch that can be had, and the table in docs/compatibility.md
	$(BIN)/python -m tools.compat

audit: $(READY) ## Known vulnerabilities in pinned packages, and risky code: pip-audit and bandit
	$(INSTALL) --editable '.[dev,audit]' --editable ./experiments
	$(BIN)/python -m tools.audit

##@ Build it

docs: $(READY) ## The site, in docs/_build/html: any warning fails, tutorials are executed
	$(INSTALL) --editable '.[dev,docs]' --editable ./experiments
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

dist: $(READY) ## dist/: wheels and sdists of both distributions, installed and tried in empty environments
	$(INSTALL) --editable '.[dev,dist]' --editable ./experiments
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist experiments
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tools.try_dist dist

##@ Measure it, and clean up

bench: $(READY) ## Benchmarks against peers, on one CPU thread
	$(INSTALL) --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.simplex
	$(BIN)/python -m benchmarks.expect
	$(BIN)/python -m benchmarks.sparsemap
	$(BIN)/python -m benchmarks.estimators
	$(BIN)/python -m benchmarks.steps

clean: ## Remove .venv, caches, and what was built
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist docs/_build docs/jupyter_execute docs/_static/structures
