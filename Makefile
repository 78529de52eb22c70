# slurmkit's targets; each can be run again after Ctrl-C.
SHELL := /bin/bash
# Images of CI often set it. Then every process of the tests compiles all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
SLURM ?= 24.11
NAME ?= lab
# A cluster keeps the release it was made with, so `up` names one only where it was asked for.
RELEASE = $(if $(filter command environment,$(firstword $(origin SLURM))),--slurm $(SLURM))
PYTEST := .venv/bin/pytest
STEP := tests/step
OTHER_RELEASES := 22.05 26.05

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz smoke lint bench up down tui pictures docs packages constraints
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "SLURM=22.05|24.11|26.05 picks the release of up and smoke, NAME=... the cluster of up,"
	@echo "down, tui, demo and pictures."

demo: up ## bring up a Slurm cluster and follow one GPU job from submit to report
	@docker/demo --name $(NAME)

test: lint docs ## everything CI asks for on the default release
	@$(STEP) "tools of the tests" tests/tools
	@$(STEP) "unit tests" $(PYTEST) -q -n 4 -m "not cluster and not slow" tests/unit tests/tui
	@$(MAKE) --no-print-directory cluster-test SLURM=24.11

# It takes two hours, so a failure does not keep the other parts from running; the last line names all.
test-all: ## test, slow unit tests, all examples and fuzz, and every cluster test, slow ones too, on Slurm 22.05 and 26.05, the ledger service also without MUNGE
	@failed=; \
	$(MAKE) --no-print-directory test || failed="$$failed test"; \
	$(STEP) "slow unit tests" $(PYTEST) -q -m "slow and not cluster" tests/unit tests/tui || failed="$$failed slow"; \
	SLURMKIT_TEST_ALL_EXAMPLES=1 $(STEP) "all examples" $(PYTEST) -q -n 2 -m "hypothesis and not cluster" \
	    tests/unit tests/tui || failed="$$failed examples"; \
	$(MAKE) --no-print-directory fuzz || failed="$$failed fuzz"; \
	for release in $(OTHER_RELEASES); do \
	    $(MAKE) --no-print-directory cluster-test SLURM=$$release SELECT= SLOW=1 || failed="$$failed $$release"; done; \
	$(MAKE) --no-print-directory cluster-test SLURM=24.11 AUTH=slurm SELECT="service or smoke" SLOW=1 || \
	    failed="$$failed without-MUNGE"; \
	[[ -z $$failed ]] || { echo "failed:$$failed" >&2; exit 1; }

# SEED= gives a seed again, CASE= and TARGET= one case of it.
FUZZ_SEED := $(or $(SEED),$(shell date +%s))
fuzz: .venv/.complete ## two minutes of random input: make fuzz SEED=7 [TARGET=parsers CASE=93]
	@SLURMKIT_TEST_FUZZ_SEED=$(FUZZ_SEED) SLURMKIT_TEST_FUZZ_CASE=$(CASE) \
	    $(STEP) "fuzz, SEED=$(FUZZ_SEED)" $(PYTEST) -q -s tests/fuzz$(if $(TARGET),/test_$(TARGET).py)

smoke: .venv/.complete ## submit -> report on one release: make smoke SLURM=22.05
	@$(MAKE) --no-print-directory cluster-test SELECT=smoke

# Fresh clusters for each run: a whole suite has three, for mostly it waits. They stay up when a test
# fails, so that one can look at them.
TEST_CLUSTER = test$(subst .,,$(SLURM))
TEST_CLUSTERS = $(TEST_CLUSTER)$(if $(SELECT),, $(TEST_CLUSTER)b $(TEST_CLUSTER)c)
.PHONY: cluster-test
cluster-test:
	@$(STEP) "Docker" docker/engine
	@for cluster in $(TEST_CLUSTERS); do $(STEP) "fresh Slurm $(SLURM) cluster $$cluster" \
	    docker/cluster reset --slurm $(SLURM) --auth $(or $(AUTH),munge) --name $$cluster || exit; done
	@$(if $(SELECT),,$(STEP) "ledger tests on its PostgreSQL" tests/on-postgres $(TEST_CLUSTER) $(if $(SLOW),,-m sql))
	@SLURMKIT_TEST_SLURM=$(SLURM) SLURMKIT_TEST_CLUSTER="$(TEST_CLUSTERS)" \
	    $(if $(SLOW),SLURMKIT_TEST_GPU_SECONDS=$${SLURMKIT_TEST_GPU_SECONDS:-300}) \
	    $(STEP) "cluster tests on Slurm $(SLURM)" tests/second-look -n $(words $(TEST_CLUSTERS)) \
	    --dist loadfile --no-loadscope-reorder -m "cluster and ($(or $(SELECT),cluster))$(if $(SLOW),, and not slow)" \
	    tests/cluster
	@for cluster in $(TEST_CLUSTERS); do \
	    $(STEP) "cluster $$cluster down" docker/cluster down --volumes --name $$cluster || exit; done

lint: .venv/.complete ## ruff, mypy, import contracts, shellcheck
	@$(STEP) "ruff check" .venv/bin/ruff check .
	@$(STEP) "ruff format" .venv/bin/ruff format --check .
	@$(STEP) "mypy" .venv/bin/mypy
	@$(STEP) "mypy of what tests run on nodes" .venv/bin/mypy tests/cluster/*_driver.py
	@$(STEP) "import contracts" .venv/bin/lint-imports
	@$(STEP) "shellcheck" tests/shellcheck

bench: .venv/.complete ## measure the speed budgets on a cluster of its own, in half an hour
	@$(STEP) "Docker" docker/engine
	@$(STEP) "benchmarks" .venv/bin/python -m tests.bench $(BENCH)

up: ## bring up the Docker cluster
	@$(STEP) "Docker" docker/engine
	@$(STEP) "Slurm cluster $(NAME)" docker/cluster up $(RELEASE) --name $(NAME)

down: ## take the Docker cluster down, its data kept
	@docker/cluster down --name $(NAME)

tui: up ## open the TUI on the cluster's login node, as alice
	@docker/cluster exec login --name $(NAME) --user alice -- slurmkit tui

pictures: up ## make the pictures of README and docs again
	@$(STEP) "pictures" docs/pictures/make --name $(NAME)

docs: .venv/.complete ## build the documentation as a site, build/docs/index.html
	@$(STEP) "documentation" .venv/bin/sphinx-build -q -W --keep-going -c docs . build/docs

packages: .venv/.complete ## build wheel, .deb, .rpm and .pyz into dist/: make packages [SUITE=bookworm]
	@$(STEP) "Docker" docker/engine
	@$(STEP) "packages" packaging/build $(SUITE)

.venv/.complete: constraints.txt pyproject.toml tests/venv
	@$(STEP) "Python environment" tests/venv
	@touch $@

constraints: ## resolve constraints.txt anew (needs uv)
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 \
	    --no-emit-find-links --extra all --group dev --group docs --quiet --output-file constraints.txt pyproject.toml
