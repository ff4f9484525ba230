#!/usr/bin/env bash
# Tests the plug-in for SGLang against the Python sources of an SGLang wheel (39 MB into
# build/sglang): its own NGRAM worker and registry, with fakes of its kernels and its target. No GPU.
#
# Variables: SGLANG   release (default 0.5.23)
#            PYTHON   an interpreter with the tests' requirements (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python} release=${SGLANG:-0.5.23}
folder=build/sglang/$release
if [[ ! -d $folder/sglang ]]; then
  "$python" -m pip download -q --no-deps --only-binary :all: -d build/sglang "sglang==$release"
  "$python" -m zipfile -e build/sglang/sglang-"$release"-*.whl "$folder.part"
  mv "$folder.part" "$folder"
fi
SGLANG_SOURCES=$PWD/$folder exec "$python" -m pytest -q tests/python/test_sglang.py "$@"
