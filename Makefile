# SPDX-License-Identifier: GPL-3.0-or-later
# `make` lists the targets. Everything is kept in .venv, build/ and EDGE_MOE_HOME (~/.cache/edge-moe).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export EDGE_MOE_HOME ?= $(HOME)/.cache/edge-moe
export EDGE_MOE_BOARD_PORT ?= 2222
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Ansible wants a UTF-8 locale, which a minimal machine does not set.
export LC_ALL := C.UTF-8

PYTHON ?= python3
TESTBED := .venv/bin/python -m edge_moe_testbed
COLLECTION := collections/ansible_collections/edge/moe
DEMO_BOARD := virtual-orin-nano
PYTEST := .venv/bin/python -m pytest
CONTAINER_SCENARIOS := $(filter-out virtual_jetson,$(patsubst molecule/%/converge.yml,%,$(wildcard molecule/*/converge.yml)))
# the longest first, so that the two that run last end together
SIDE_BY_SIDE := test-containers test-release test-testbed test-unit test-native lint test-native-arm

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.ready ## install what the controller needs: Debian packages (asks for sudo) and .venv
	@testbed/install-packages

.venv/.ready: pyproject.toml testbed/install-packages
	@testbed/install-packages
	@echo "== Python packages into .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); the controller needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@testbed/with-heartbeat 'installing Python packages' \
		.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	@touch $@

.PHONY: demo
demo: setup ## from nothing to a verified virtual board (build, boot, site.yml, table)
	@testbed/demo $(DEMO_BOARD)

.PHONY: demo-stop
demo-stop: setup ## switch the demo's board off (make demo starts it again)
	@$(TESTBED) board down $(DEMO_BOARD)

.PHONY: build
build: setup ## build the patched llama.cpp for the virtual board, and only that
	@$(TESTBED) source
	@ansible-playbook playbooks/build.yml -i inventories/demo

.PHONY: test
test: test-host ## every test (what CI runs), in about an hour
	@printf '%s\n' $(SIDE_BY_SIDE) | xargs -P 2 -I {} testbed/logged {} $(MAKE) --no-print-directory {}
	@$(MAKE) --no-print-directory test-board

.PHONY: lint
lint: setup ## ruff, mypy, yamllint, ansible-lint (production), cppcheck
	@echo "== ruff"; ruff check . && ruff format --check .
	@echo "== mypy"; mypy
	@echo "== yamllint"; yamllint .
	@echo "== ansible-lint"; ansible-lint --offline -q
	@echo "== cppcheck"; cppcheck --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr \
		--std=c++17 --suppress=missingIncludeSystem -I native/src native/src native/sim native/tests native/bench native/glue

.PHONY: test-unit
test-unit: setup ## Python unit tests, and the roles' refusals on this machine
	@$(PYTEST) $(COLLECTION)/tests/unit tests -m 'not board and not llama and not release' -q -n auto --durations=25

.PHONY: test-release
test-release: collection ## the archive under ansible-test (newest ansible-core, a board's Python) and Galaxy's importer
	@.venv/bin/nox

.PHONY: test-release-all
test-release-all: collection ## the same, and all of ansible-test with every supported ansible-core
	@.venv/bin/nox --tags all

NATIVE_FLAGS := -DCMAKE_BUILD_TYPE=RelWithDebInfo -G Ninja

.PHONY: test-native
test-native: setup ## the cache's own tests: plain, with the thread sanitizer, with those of addresses and undefined behaviour
	@for sanitizer in none thread address,undefined; do \
		echo "== native tests, sanitizer: $$sanitizer"; \
		folder=build/native-$${sanitizer%,*}; \
		cmake -S native -B $$folder $(NATIVE_FLAGS) -DEDGE_MOE_SANITIZE=$${sanitizer/none/} > /dev/null; \
		cmake --build $$folder -- --quiet; \
		ctest --test-dir $$folder --output-on-failure --parallel 4; \
	done

.PHONY: test-native-arm
test-native-arm: setup ## the same tests built for the boards' processor (aarch64), run under qemu-user
	@cmake -S native -B build/native-aarch64 $(NATIVE_FLAGS) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu' > /dev/null
	@cmake --build build/native-aarch64
	@# qemu-user has no io_uring: those tests see the refusal of a kernel without it, and are shown as skipped
	@ctest --test-dir build/native-aarch64 --output-on-failure

.PHONY: test-host
test-host: build ## the patched llama-server on this machine: text equal to mmap at every cache size
	@$(PYTEST) tests -m llama -q

.PHONY: test-containers
test-containers: build ## the roles, each in a container: all Molecule scenarios but virtual_jetson, two at a time
	@$(TESTBED) container image > /dev/null
	@printf '%s\n' $(CONTAINER_SCENARIOS) | xargs -P 2 -I {} testbed/logged scenario-{} molecule test -s {}

.PHONY: test-testbed
test-testbed: setup ## the commands of the virtual board: its image, booting, files and numbers as on a Jetson
	@$(PYTEST) tests -m board -q

.PHONY: test-board
test-board: build ## the virtual board: Molecule scenario virtual_jetson, all steps
	@molecule test -s virtual_jetson

.PHONY: bench
bench: build ## all benchmarks into build/bench/*.json and one table (NAME=x runs one)
	@$(TESTBED) bench $(NAME)

.PHONY: docs
docs: setup .venv/.docs-ready ## a page for each module and role from its own documentation, and all pages as a site into build/site
	@$(TESTBED) docs
	@.venv/bin/mkdocs --quiet build
	@echo "build/site/index.html"

.venv/.docs-ready: .venv/.ready
	@testbed/with-heartbeat 'installing mkdocs' .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

.PHONY: collection
collection: setup ## the Galaxy archive, native sources inside, into build/
	@rm -rf build/collection && mkdir -p build/collection
	@cp -a $(COLLECTION)/. build/collection/
	@# the one link that leaves the collection: an archive needs the files themselves
	@rm build/collection/roles/llama_cpp/files/native && cp -a native build/collection/roles/llama_cpp/files/native
	@find build/collection -name __pycache__ -prune -exec rm -rf {} +
	@ansible-galaxy collection build build/collection --output-path build --force

.PHONY: clean
clean: ## remove build/ and .venv (boards and caches stay: see EDGE_MOE_HOME)
	rm -rf build .venv
