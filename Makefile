# Each target works alone on a fresh machine that has Python (3.11 or newer) and make: it makes .venv, installs
# what it needs there, and does its job.

PYTHON ?= python3
BIN    := .venv/bin
CHECKED := build/checked
# Processes that run tests, on two cores: many tests wait for other processes.
TESTERS := 4

.PHONY: help demo test test-fast test-slow test-gpu test-ray lint ruff layers typecheck bench bench-gpu docs dist clean distclean
.NOTPARALLEL:   # pip can't install twice into one environment at a time
unexport PYTHONDONTWRITEBYTECODE  # the demo's processes start in half the time when bytecode is kept

help:
	@echo 'make demo        train a classifier over four processes and show what ran where'
	@echo 'make test        all tests, the fast ones first (test-fast, test-slow: one half)'
	@echo 'make test-gpu    all tests of GPUs on the NVIDIA GPU of this machine, instead of on stand-ins'
	@echo 'make test-ray    the tests on clusters of Ray, with the packages that they need'
	@echo 'make lint        ruff, import layers, mypy --strict (ruff, layers, typecheck: one of them)'
	@echo 'make bench       every benchmark, its short form (bench-gpu: the one for an NVIDIA GPU, 9 minutes)'
	@echo 'make docs        the site, into site/'
	@echo 'make dist        the sdist and the wheel, into dist/, tried in empty environments of Python 3.11 to 3.13'
	@echo 'make clean       remove what was built (distclean: .venv too)'

demo: .venv/stamp-demo
	$(BIN)/dovetail demo

test: .venv/stamp-dev
	$(BIN)/python -m pytest -n $(TESTERS) -q

test-fast: .venv/stamp-dev
	$(BIN)/python -m pytest -n $(TESTERS) -q -m 'not slow'

test-slow: .venv/stamp-dev
	$(BIN)/python -m pytest -n $(TESTERS) -q -m slow

test-gpu: .venv/stamp-test .venv/stamp-cuda
	DOVETAIL_TEST_GPU=1 $(BIN)/python -m pytest -n auto -q -m gpu

test-ray: .venv/stamp-test .venv/stamp-demo .venv/stamp-ray
	$(BIN)/python -m pytest -n 0 -q -k ray_cluster tests/dovetail/distribute/launchers

lint: ruff layers typecheck

ruff: .venv/stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

layers: $(CHECKED)
	cd $(CHECKED) && ../../$(BIN)/lint-imports --config ../../.importlinter --cache-dir ../../.import_linter_cache

typecheck: $(CHECKED)
	cd $(CHECKED) && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p dovetail

bench: .venv/stamp-dev
	@set -e; for file in $(filter-out bench/_% bench/gpu.py bench/step_workloads.py,$(sort $(wildcard bench/*.py))); do \
	    echo "$$file"; $(BIN)/python $$file --quick; \
	done

bench-gpu: .venv/stamp-test .venv/stamp-cuda
	$(BIN)/python bench/gpu.py --json bench/results/gpu.json

docs: $(CHECKED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel is built from the sdist, so a file that the sdist lacks is missed here.
dist: .venv/stamp-dist
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py

clean:
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv

# The package as users get it. In the checkout the five folders are not one tree, so the tools that read the
# whole package read this copy. Always made anew, without build/lib, where setuptools would keep deleted modules.
.PHONY: $(CHECKED)
$(CHECKED): .venv/stamp-dev
	@rm -rf $(CHECKED) build/lib build/bdist.*
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target $(CHECKED) .

# .venv/stamp-X stands for "installed with the extra X". Versions are pip's choice, as they are
# for users.
.venv/stamp-%: pyproject.toml setup.py | $(BIN)/pip
	@echo 'installing dovetail[$*] into .venv'
	@$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# pip is the last thing that venv writes, so it stands for a finished environment.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'Dovetail needs Python 3.11 or newer; $(PYTHON) is older or missing. Try: make PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv .venv
