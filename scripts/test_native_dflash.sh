#!/usr/bin/env bash
# Compares BlockDrafter with the DFlash of transformers 5.24, as the ordinary tests do with the version
# that constraints.txt pins. It is installed into a folder of its own, found before that of .venv.
#
# Usage: test_native_dflash.sh [PYTEST-ARGUMENT...]
#
# Variables: PYTHON  an interpreter with this package, pytest and torch (default: .venv's)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly version=5.24.0
readonly folder=build/transformers-$version
python=${PYTHON:-.venv/bin/python}

if [[ ! -f $folder/installed.stamp ]]; then
  printf 'test_native_dflash: pip install transformers==%s into %s\n' "$version" "$folder"
  rm -rf "$folder"
  "$python" -m pip install --disable-pip-version-check --quiet --no-compile --no-deps \
    --target "$folder" "transformers==$version"
  touch "$folder/installed.stamp"
fi
PYTHONPATH=$PWD/$folder${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest \
  packages/drafters/tests/test_native_dflash.py "$@"
