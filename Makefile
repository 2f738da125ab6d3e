# The two commands of the README are `make demo` and `make test`; each sets up what it needs. `make help` lists all.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/sh

# The system's own Python, not one that happens to stand first in PATH: what was tested is what runs.
SYSTEM_PYTHON ?= /usr/bin/python3
export SYSTEM_PYTHON
PYTHON := .venv/bin/python
STAMPS := build/stamps
PYTEST_ARGS ?=
# A checkout's runtime lies in the checkout: two of them may differ in their agent.
export SPOTSURFER_RUNTIME__PATH := $(CURDIR)/build/runtime

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# No test may ask this machine's cloud who it is, nor use a person's credentials.
TEST_ENVIRONMENT := AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null \
	NO_GCE_CHECK=true GOOGLE_APPLICATION_CREDENTIALS=/dev/null

.PHONY: help setup runtime demo test test-programs test-sizes test-environments test-aws test-package checkov lint format types layers house check docs lock lock-upgrade runtime-lock clean bench-checkpoint bench-policies bench-size bench-gpu demo-gpu

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

setup: $(STAMPS)/install runtime ## Debian packages, .venv with the spotsurfer command, the agent's runtime

$(STAMPS)/host: scripts/host.sh
	@sh scripts/host.sh
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/venv: requirements.lock | $(STAMPS)/host
	@echo "== install Python packages into .venv"
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || $(SYSTEM_PYTHON) -m venv --clear .venv
	@$(PYTHON) -m pip install --quiet --require-hashes --only-binary=:all: -r requirements.lock
	@grep -q SPOTSURFER .venv/bin/activate || echo 'export SPOTSURFER_RUNTIME__PATH="$${VIRTUAL_ENV%/*}/build/runtime"' >>.venv/bin/activate
	@touch $@

$(STAMPS)/install: $(STAMPS)/host $(STAMPS)/venv pyproject.toml
	@$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Asks each time whether the agent's sources have changed: half a second when nothing is to do.
runtime: $(STAMPS)/install
	@$(PYTHON) -m spotsurfer.runtime --out $(SPOTSURFER_RUNTIME__PATH) build --quiet

demo: setup ## the demonstration: a real assembly surfs on this host (root; under 15 minutes)
	@.venv/bin/spotsurfer demo

test: setup lint types layers ## everything: lints, types, layers, tests, end-to-end tests in boxes (root)
	@echo "== tests"
	@$(TEST_ENVIRONMENT) $(PYTHON) -m pytest -m "not slow" $(PYTEST_ARGS)

# SIZE_MB=512 for a quick look; ONLY=freeze,lazy for some parts; DIRTY_MB, DUMPS and PAGE as in `python -m bench --help`.
bench-checkpoint: setup ## benchmark of the checkpoint engine beside plain CRIU, restic and borg (root; half an hour and 50 GB of disk for 4 GB)
	@EXTRA_PACKAGES="gcc libc6-dev restic borgbackup" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests:. $(PYTHON) -m bench $(if $(SIZE_MB),--size-mb $(SIZE_MB)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(DIRTY_MB),--dirty-mb $(DIRTY_MB)) $(if $(DUMPS),--dumps $(DUMPS)) $(if $(PAGE),--page $(PAGE))

bench-policies: setup ## policies on recorded markets against baselines and hindsight, writes build/bench/policies.json, docs/policies.md (10 minutes)
	@OPENBLAS_NUM_THREADS=1 $(PYTHON) -m bench.policies $(if $(ONLY),--only $(ONLY)) $(if $(EVERY),--every $(EVERY))

# On a machine with GPUs, without a network: the agent's runtime is in build/runtime, PYTHON_GPU has the jobs' libraries.
GPU_PYTHON = build/runtime/current/bin/spotsurfer-python -c "import runpy, sys; sys.path[:0] = ['$(CURDIR)/agent', '$(CURDIR)/tests', \
	'$(CURDIR)']; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
PYTHON_GPU ?= $(shell command -v python3)
RUNS ?= pytorch:1 pytorch:10 pytorch:40 jax_program:1:hold

bench-gpu: ## jobs on this machine's GPUs, and the same by hand; RUNS="pytorch:40", FLAGS="--compact" (root, GPUs; 15 minutes)
	@mkdir -p build/bench
	@$(GPU_PYTHON) bench.gpu $(RUNS) --by-hand plain,again,compacted,touched $(FLAGS) --python $(PYTHON_GPU) \
		--out build/bench/gpu.json --verbose
	@echo "written to build/bench/gpu.json; python -m bench.gpu.page makes the tables of docs/gpu.md from bench/results/gpu.json"

demo-gpu: ## a training job from a notice to its next step in a new box; GB=4; STANDIN=1: without a GPU (root; minutes)
	@mkdir -p build
	@$(GPU_PYTHON) bench.gpu.demo $(if $(STANDIN),--standin --gb 0.02 --threads 2,--gb $(or $(GB),4)) --python $(PYTHON_GPU)

bench-size: setup ## size policies on recorded runs, writes build/bench/size.json and the tables of docs/size.md (3 minutes)
	@OPENBLAS_NUM_THREADS=1 $(PYTHON) -m bench.size $(if $(ONLY),--only $(ONLY))

test-programs: setup ## real programs saved and moved, writes docs/compatibility.md; PROGRAMS="ngspice r": only these (root; 40 minutes)
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m programs.run $(PROGRAMS)

test-sizes: setup ## twenty jobs that outgrow their machine, and MEGAHIT moved as its phases want memory (root; 30 minutes)
	@EXTRA_PACKAGES="megahit samtools" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m pytest -m slow -s tests/boxes/test_near_miss.py tests/boxes/test_sizes_megahit.py $(PYTEST_ARGS)

test-environments: setup ## what jobs bring along, with real images of programs among it (root; 15 minutes)
	@EXTRA_PACKAGES="megahit samtools r-base-core ngspice" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m pytest -m environments tests $(PYTEST_ARGS)

# Offline: SPOTSURFER_TEST_TF_MIRROR=/path/of/a/provider/mirror.
test-aws: setup ## all about AWS: terraform, rights, machines of a test EC2 (root, terraform; half an hour)
	@$(MAKE) --no-print-directory checkov || echo "checkov can't be had: its checks will be listed as not run"
	@$(TEST_ENVIRONMENT) $(PYTHON) -m pytest tests/aws $(PYTEST_ARGS)

test-package: setup ## sdist and wheel; installed on a fresh Debian and tried there; a data folder of an earlier release (root; 5 minutes)
	@$(TEST_ENVIRONMENT) $(PYTHON) -m pytest tests/architecture/test_packaging.py tests/packaging $(PYTEST_ARGS)

checkov: $(STAMPS)/host # static checks of Terraform files; 300 MB and its own old libraries, so in a place of its own
	@test -x build/checkov/bin/checkov || { echo "== install checkov" && $(SYSTEM_PYTHON) -m venv --clear build/checkov && \
		build/checkov/bin/python -m pip install --quiet checkov==3.3.30; }

check: lint types layers house

lint: $(STAMPS)/install ## ruff: rules and layout
	@echo "== ruff"
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

types: $(STAMPS)/install ## mypy and pyright
	@echo "== mypy"
	@$(PYTHON) -m mypy
	@echo "== pyright"
	@$(PYTHON) -m pyright

layers: $(STAMPS)/install ## import contracts
	@echo "== import contracts"
	@.venv/bin/lint-imports

house: $(STAMPS)/install ## sizes of files and functions, documentation that is generated or states what the code does
	@echo "== house rules"
	@$(TEST_ENVIRONMENT) $(PYTHON) -m pytest --quiet tests/architecture

format: $(STAMPS)/install ## lay out all files
	@$(PYTHON) -m ruff format .

docs: $(STAMPS)/install ## write the generated parts of the documentation: exit codes, states
	@$(PYTHON) scripts/docs.py

lock: $(STAMPS)/host ## write requirements.lock anew from pyproject.toml, keeping versions that still fit
	@$(SYSTEM_PYTHON) -m venv --clear build/lock-venv
	@build/lock-venv/bin/python -m pip install --quiet pip-tools
	@build/lock-venv/bin/python scripts/lock.py $(LOCK_ARGS)

lock-upgrade: LOCK_ARGS := --upgrade
lock-upgrade: lock ## the same with the newest versions

runtime-lock: $(STAMPS)/install ## pin today's packages of the agent's runtime
	@$(PYTHON) -m spotsurfer.runtime --out $(SPOTSURFER_RUNTIME__PATH) build --update-lock

clean: ## remove what was built here; a running demo is cleaned by `spotsurfer local clean`
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
