# One command for one wish; every target sets up what it needs first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
export PYTHON TORCH_INDEX OPENFST_SRC
export PATH := $(CURDIR)/.venv/bin:$(PATH)

BUILD := build/dev
JOBS := $(shell nproc)
CXX_FILES = $(shell find cpp src tests/cpp tests/fuzz -name '*.h' -o -name '*.cc')
STUB := python/lattice_bpd/_core.pyi
ARGS ?=
SECONDS ?= 60
unexport SECONDS  # bash has one of its own

.PHONY: help setup build demo test bench bench-rescore bench-ngram results lint tidy sanitize fuzz \
  soak format stubs wheel test-wheel docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv with everything in it (installs what is missing, or says what to type)
	@scripts/setup.sh

build: setup  ## compile what changed in the C++ code
	@[ -f $(BUILD)/build.ninja ] || { rm -f .venv/setup.stamp; scripts/setup.sh; }
	@echo "build: C++ sources that changed"
	@touch $(BUILD)/next.stamp
	@flock $(BUILD)/rebuild_on_import.lock cmake --build $(BUILD) --parallel $(JOBS) -- --quiet
	@mv $(BUILD)/next.stamp $(BUILD)/rebuild_on_import.stamp
	@python -c 'import lattice_bpd._core'  # puts the new module into the editable install

demo: build  ## train a small model, decode with rescored drafts, print the table (ARGS=--quick)
	@lattice-bpd demo $(ARGS)

test: build  ## C++ unit tests, then Python tests (ARGS are pytest's)
	@echo "test: ctest"
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS) --no-tests=ignore
	@echo "test: pytest"
	@python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

bench: build  ## check answers against the peers, then time them
	@for file in benchmarks/bench_*.py; do echo "bench: $$file"; python $$file $(ARGS); done

bench-rescore: build  ## rescoring and top-k against their peers; benchmarks/results/rescore.json
	@python benchmarks/bench_rescore.py $(ARGS)

bench-ngram: build  ## n-gram training, size, scoring and pruning against KenLM (builds it once)
	@python benchmarks/bench_ngram.py $(ARGS)

results: build  ## measure the tables of docs/results.md on the models we can hold (minutes)
	@python scripts/write_results.py $(ARGS)

lint: build  ## every check that needs no running: ruff, mypy, clang-format, stub
	@echo "lint: ruff"; ruff check . && ruff format --check .
	@echo "lint: mypy --strict"; mypy
	@echo "lint: clang-format"; clang-format --dry-run -Werror $(CXX_FILES)
	@echo "lint: stub of _core"; python scripts/check_stubs.py $(STUB)

tidy: build  ## clang-tidy over the C++ code (slow)
	@find cpp src -name '*.cc' | xargs -P $(JOBS) -n 1 clang-tidy -p $(BUILD) --quiet

sanitize: setup  ## tests under AddressSanitizer with UBSan, and under ThreadSanitizer (slow)
	@scripts/sanitize.sh

fuzz: build  ## hostile input for SECONDS (default 60), coverage-guided; installs clang (ARGS=--targets=...)
	@python scripts/fuzz.py --seconds $(SECONDS) $(ARGS)

soak: build  ## threads rescore for SECONDS while LMs are replaced; same answers, flat memory
	@python scripts/soak.py --seconds $(SECONDS) $(ARGS)

format: setup  ## rewrite Python and C++ code in the project's format
	@ruff check --fix --quiet . || true
	@ruff format .
	@clang-format -i $(CXX_FILES)

stubs: build  ## regenerate the stub of the extension module
	@python scripts/check_stubs.py --write $(STUB)

.PHONY: test-wheel docs
wheel: setup  ## sdist and manylinux wheels for the Pythons found, checked (PYTHONS=..)
	@python scripts/build_wheels.py $(PYTHONS)

test-wheel: setup  ## the tests against the wheel in a fresh venv (EXTRAS, ARGS)
	@python scripts/test_wheel.py --extras "$(EXTRAS)" $(ARGS)

docs: setup  ## the documentation as a site that loads nothing from elsewhere: build/docs/index.html
	@mkdocs --quiet build --strict
	@echo "docs: build/docs/index.html"

clean:  ## remove build results (.venv stays; rm -rf .venv removes that too)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .venv/setup.stamp
	@find python tests -name __pycache__ -type d -prune -exec rm -rf {} +
